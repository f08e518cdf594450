use std::collections::VecDeque;
use std::format;
use std::string::String;
use std::vec;
use std::vec::Vec;

use super::*;

/// A command of one word, so long that it takes `len` bytes on the wire.
fn command(len: usize, letter: u8) -> Vec<u8> {
    let word = (0..len)
        .map(|word| vec![letter; word])
        .find(|word| wire(word).len() == len);
    word.unwrap_or_else(|| panic!("no word takes {len} bytes"))
}

fn words(word: &[u8]) -> impl ExactSizeIterator<Item = Argument<'_>> {
    [Argument::Bytes(word)].into_iter()
}

fn wire(word: &[u8]) -> Vec<u8> {
    let head = format!("*1\r\n${}\r\n", word.len());
    [head.as_bytes(), word, b"\r\n"].concat()
}

fn pushed<const TX: usize, const RX: usize>(commands: u8) -> Pipeline<TX, RX> {
    let mut pipeline = Pipeline::new();
    for _ in 0..commands {
        assert_eq!(pipeline.push(words(b"x")), Ok(()));
        pipeline.sent(usize::MAX);
    }
    pipeline
}

/// Gives the node's `bytes` as the network does, in pieces of at most `size` bytes and of the room.
fn receive<const TX: usize, const RX: usize>(
    pipeline: &mut Pipeline<TX, RX>,
    bytes: &[u8],
    size: usize,
) -> Result<(), Malformed> {
    for piece in bytes.chunks(size.min(RX)) {
        pipeline.room()[..piece.len()].copy_from_slice(piece);
        pipeline.received(piece.len(), &mut Mail::new())?;
    }
    Ok(())
}

#[test]
fn a_new_one_has_nothing_to_send_and_is_owed_nothing() {
    let mut pipeline = Pipeline::<64, 8>::default();
    assert_eq!(pipeline.unsent(), b"");
    assert_eq!(pipeline.outstanding(), 0);
    assert_eq!(pipeline.take_reply(), None);
    assert_eq!(pipeline.room().len(), 8);
}

#[cfg(feature = "fence")]
#[test]
fn of_commands_that_were_fed_all_but_the_last_must_be_answered_with_ok() {
    type Answers<'a> = (&'a [u8], Option<Value>, u8);
    let cases: [Answers<'_>; 4] = [
        (b"+OK\r\n+OK\r\n:7\r\n", Some(Value::Integer(7)), 0),
        (b"+OK\r\n:5\r\n:7\r\n", Some(Value::Integer(5)), 1),
        (b"$-1\r\n+OK\r\n:7\r\n", Some(Value::Nil), 2),
        (b"+OK\r\n+OK\r\n", None, 1),
    ];
    for (answers, reply, outstanding) in cases {
        let mut pipeline = Pipeline::<64, 32>::new();
        for _ in 0..3 {
            assert_eq!(
                pipeline.feed([Argument::Bytes(b"PING")].into_iter(), 0),
                None
            );
        }
        assert_eq!(receive(&mut pipeline, answers, 32), Ok(()));
        assert_eq!(pipeline.take_reply(), reply);
        assert_eq!(pipeline.outstanding(), outstanding);
        // A command that is pushed may have any answer.
        let mut pipeline = Pipeline::<64, 32>::new();
        for _ in 0..3 {
            pipeline
                .push([Argument::Bytes(b"PING")].into_iter())
                .unwrap();
        }
        assert_eq!(receive(&mut pipeline, answers, 32), Ok(()));
        assert!(reply.is_none() || pipeline.take_reply() == Some(Value::Integer(7)));
    }
}

#[test]
fn commands_leave_whole_and_in_order_in_pieces_of_every_size() {
    for size in 1..=40 {
        let mut pipeline = Pipeline::<64, 8>::new();
        let mut arrived = Vec::new();
        let mut expected = Vec::new();
        for number in 0..50_u8 {
            let word = vec![b'a' + number % 26; usize::from(number % 11)];
            // Until there is room, the network takes another piece.
            for attempts in 0.. {
                if pipeline.push(words(&word)) == Ok(()) {
                    break;
                }
                assert!(attempts < 64, "there is no room for ever");
                let piece = pipeline.unsent();
                let piece = piece[..size.min(piece.len())].to_vec();
                pipeline.sent(piece.len());
                arrived.extend(piece);
            }
            expected.extend(wire(&word));
            let owed = pipeline.outstanding();
            assert_eq!(receive(&mut pipeline, b"+OK\r\n", 8), Ok(()));
            assert_eq!(pipeline.outstanding(), owed - 1);
        }
        arrived.extend_from_slice(pipeline.unsent());
        assert_eq!(arrived, expected, "in pieces of {size}");
    }
}

#[test]
fn bytes_that_were_sent_are_not_sent_again_and_the_others_stay() {
    let mut pipeline = Pipeline::<64, 8>::new();
    pipeline.push(words(b"one")).unwrap();
    let whole = wire(b"one");
    for count in 0..=whole.len() {
        assert_eq!(pipeline.unsent(), &whole[count..]);
        pipeline.sent(1);
    }
    // More than there is does no harm.
    pipeline.sent(usize::MAX);
    pipeline.sent(1);
    assert_eq!(pipeline.unsent(), b"");
    pipeline.push(words(b"two")).unwrap();
    assert_eq!(pipeline.unsent(), wire(b"two"));
}

#[test]
fn room_is_made_by_what_was_sent_and_only_by_that() {
    let long = command(64, b'l');
    for sent in 0..=64 {
        let mut pipeline = Pipeline::<64, 8>::new();
        pipeline.push(words(&long)).unwrap();
        pipeline.sent(sent);
        let room = sent;
        for len in 10..=64 {
            let Some(word) = (0..len)
                .map(|word| vec![b's'; word])
                .find(|word| wire(word).len() == len)
            else {
                continue;
            };
            let mut expected = pipeline.unsent().to_vec();
            let owed = pipeline.outstanding();
            if len > room {
                assert_eq!(pipeline.push(words(&word)), Err(Refused::Full));
                assert_eq!(
                    (pipeline.unsent(), pipeline.outstanding()),
                    (&*expected, owed)
                );
            } else {
                expected.extend(wire(&word));
                assert_eq!(pipeline.push(words(&word)), Ok(()));
                assert_eq!(
                    (pipeline.unsent(), pipeline.outstanding()),
                    (&*expected, owed + 1)
                );
                break;
            }
        }
    }
}

#[test]
fn a_command_of_exactly_the_room_fits_and_one_byte_more_never_does() {
    for (len, pushed) in [
        (63, Ok(())),
        (64, Ok(())),
        (65, Err(Refused::TooLong)),
        (66, Err(Refused::TooLong)),
        (1_000, Err(Refused::TooLong)),
    ] {
        let word = command(len, b'x');
        let mut pipeline = Pipeline::<64, 8>::new();
        assert_eq!(pipeline.push(words(&word)), pushed, "{len} bytes");
        let is_in = pushed.is_ok();
        assert_eq!(pipeline.outstanding(), u8::from(is_in));
        assert_eq!(pipeline.unsent(), if is_in { wire(&word) } else { vec![] });
    }
}

#[test]
fn a_command_that_is_refused_leaves_everything_as_it_was() {
    for (word, refused) in [
        (command(30, b'x'), Refused::Full),
        (command(64, b'x'), Refused::Full),
        (command(65, b'x'), Refused::TooLong),
    ] {
        let mut pipeline = Pipeline::<64, 8>::new();
        let first = command(40, b'a');
        pipeline.push(words(&first)).unwrap();
        pipeline.sent(5);
        // Half a reply and a whole one are in.
        pipeline.push(words(b"")).unwrap();
        assert_eq!(receive(&mut pipeline, b":1\r\n:", 8), Ok(()));
        let unsent = pipeline.unsent().to_vec();
        assert_eq!(pipeline.push(words(&word)), Err(refused));
        assert_eq!((pipeline.unsent(), pipeline.outstanding()), (&*unsent, 1));
        assert_eq!(pipeline.take_reply(), None);
        assert_eq!(receive(&mut pipeline, b"2\r\n", 8), Ok(()));
        assert_eq!(pipeline.push(words(&word)), Err(refused));
        assert_eq!(pipeline.take_reply(), Some(Value::Integer(2)), "kept");
    }
}

#[test]
fn no_more_replies_may_be_owed_than_the_bound() {
    let max = Pipeline::<64, 8>::OUTSTANDING_MAX;
    let mut pipeline = pushed::<64, 8>(max);
    assert_eq!(pipeline.push(words(b"x")), Err(Refused::Full));
    assert_eq!((pipeline.outstanding(), pipeline.unsent()), (max, &*vec![]));
    assert_eq!(receive(&mut pipeline, b"+OK\r\n", 8), Ok(()));
    assert_eq!(pipeline.push(words(b"x")), Ok(()));
    assert_eq!(pipeline.push(words(b"x")), Err(Refused::Full));
}

#[test]
fn the_reply_that_is_given_is_the_one_to_the_last_command() {
    for commands in 1..=64_u8 {
        let replies: String = (1..=commands)
            .map(|number| format!(":{number}\r\n"))
            .collect();
        for size in 1..=8 {
            let mut pipeline = pushed::<64, 8>(commands);
            let (last, dropped) = replies.as_bytes().split_last().unwrap();
            assert_eq!(receive(&mut pipeline, dropped, size), Ok(()));
            assert_eq!((pipeline.outstanding(), pipeline.take_reply()), (1, None));
            assert_eq!(receive(&mut pipeline, &[*last], 1), Ok(()));
            let reply = pipeline.take_reply();
            assert_eq!(reply, Some(Value::Integer(commands.into())));
            assert_eq!((pipeline.outstanding(), pipeline.take_reply()), (0, None));
        }
    }
}

#[test]
fn a_reply_that_was_not_taken_is_not_given_to_the_next_command() {
    let mut pipeline = pushed::<64, 8>(1);
    assert_eq!(receive(&mut pipeline, b":1\r\n", 8), Ok(()));
    pipeline.push(words(b"x")).unwrap();
    assert_eq!(pipeline.take_reply(), None);
    assert_eq!(receive(&mut pipeline, b":2\r\n", 8), Ok(()));
    assert_eq!(pipeline.take_reply(), Some(Value::Integer(2)));
}

#[test]
fn a_reply_is_owed_from_the_push_on_also_while_the_one_before_is_half_in() {
    let mut pipeline = pushed::<64, 8>(1);
    assert_eq!(receive(&mut pipeline, b":1", 8), Ok(()));
    pipeline.push(words(b"x")).unwrap();
    assert_eq!(receive(&mut pipeline, b"1\r\n", 8), Ok(()));
    assert_eq!((pipeline.outstanding(), pipeline.take_reply()), (1, None));
    assert_eq!(receive(&mut pipeline, b":2\r\n", 8), Ok(()));
    assert_eq!(pipeline.take_reply(), Some(Value::Integer(2)));
}

#[test]
fn a_reply_that_is_not_outstanding_is_malformed() {
    for commands in 0..=3 {
        for size in 1..=64 {
            let mut pipeline = pushed::<64, 64>(commands);
            let owed = b":1\r\n".repeat(commands.into());
            let last = [&*owed, b":2\r"].concat();
            assert_eq!(
                receive(&mut pipeline, &last, size),
                Ok(()),
                "not yet a reply"
            );
            assert_eq!(receive(&mut pipeline, b"\n", size), Err(Malformed));
            let mut pipeline = pushed::<64, 64>(commands);
            let more = [&*owed, b":2\r\n"].concat();
            assert_eq!(receive(&mut pipeline, &more, size), Err(Malformed));
        }
    }
}

#[test]
fn pushes_are_no_replies() {
    let mut pipeline = pushed::<64, 64>(0);
    assert_eq!(receive(&mut pipeline, b">1\r\n+OK\r\n", 64), Ok(()));
    pipeline.push(words(b"x")).unwrap();
    assert_eq!(receive(&mut pipeline, b">1\r\n+OK\r\n>0\r\n", 64), Ok(()));
    assert_eq!((pipeline.outstanding(), pipeline.take_reply()), (1, None));
    assert_eq!(receive(&mut pipeline, b"_\r\n>0\r\n", 64), Ok(()));
    assert_eq!(
        (pipeline.outstanding(), pipeline.take_reply()),
        (0, Some(Value::Nil))
    );
}

#[test]
fn garbage_is_malformed_however_many_replies_are_owed() {
    for commands in 0..=3 {
        let mut pipeline = pushed::<64, 64>(commands);
        assert_eq!(
            receive(&mut pipeline, b"HTTP/1.1 400\r\n", 64),
            Err(Malformed)
        );
    }
}

#[test]
fn a_network_that_reports_more_bytes_than_there_is_room_does_no_harm() {
    let mut pipeline = pushed::<64, 4>(1);
    pipeline.room().copy_from_slice(b":1\r\n");
    assert_eq!(pipeline.received(usize::MAX, &mut Mail::new()), Ok(()));
    assert_eq!(pipeline.take_reply(), Some(Value::Integer(1)));
    assert_eq!(pipeline.received(0, &mut Mail::new()), Ok(()));
}

/// Everything that can happen, in every order, for a while: beside the pipeline stands what should be.
#[test]
fn every_short_sequence_of_events_keeps_order_and_replies() {
    #[derive(Debug, Clone, Copy)]
    enum Event {
        Push(usize),
        Sent(usize),
        Reply,
        Half,
        Take,
    }
    const EVENTS: [Event; 7] = [
        Event::Push(0),
        Event::Push(7),
        Event::Sent(1),
        Event::Sent(13),
        Event::Reply,
        Event::Half,
        Event::Take,
    ];
    const DEPTH: u32 = 6;

    for number in 0..EVENTS.len().pow(DEPTH) {
        let events =
            (0..DEPTH).map(|place| EVENTS[number / EVENTS.len().pow(place) % EVENTS.len()]);
        let mut pipeline = Pipeline::<24, 8>::new();
        let mut unsent = VecDeque::new();
        let (mut asked, mut answered, mut is_half) = (0_i64, 0_i64, false);
        let mut reply = None;
        for event in events.clone() {
            match event {
                Event::Push(len) => {
                    let word = vec![b'x'; len];
                    let fits = unsent.len() + wire(&word).len() <= 24;
                    let expected = if fits { Ok(()) } else { Err(Refused::Full) };
                    assert_eq!(pipeline.push(words(&word)), expected);
                    if fits {
                        unsent.extend(wire(&word));
                        asked += 1;
                        reply = None;
                    }
                }
                Event::Sent(count) => {
                    pipeline.sent(count);
                    unsent.drain(..count.min(unsent.len()));
                }
                // A reply names its command. Replies that are not outstanding are not sent here.
                Event::Reply if answered < asked => {
                    let text = format!(":{answered}\r\n");
                    let text = &text[usize::from(is_half)..];
                    assert_eq!(receive(&mut pipeline, text.as_bytes(), 8), Ok(()));
                    answered += 1;
                    is_half = false;
                    if answered == asked {
                        reply = Some(Value::Integer(answered - 1));
                    }
                }
                Event::Half if answered < asked && !is_half => {
                    assert_eq!(receive(&mut pipeline, b":", 8), Ok(()));
                    is_half = true;
                }
                Event::Reply | Event::Half => {}
                Event::Take => assert_eq!(pipeline.take_reply(), reply.take()),
            }
            assert_eq!(i64::from(pipeline.outstanding()), asked - answered);
            assert!(
                pipeline.unsent().iter().eq(unsent.iter()),
                "{:?}",
                events.clone().collect::<Vec<_>>(),
            );
        }
    }
}

#[test]
fn what_is_fed_leaves_whole_through_any_room_in_pieces_of_every_size() {
    fn feed<const TX: usize>(piece: usize) {
        for len in [11, 12, 60, 300] {
            let word = vec![b'x'; len];
            let mut pipeline = Pipeline::<TX, 8>::new();
            let mut arrived = Vec::new();
            let mut from = Some(0);
            while let Some(so_far) = from {
                from = pipeline.feed(words(&word), so_far);
                assert_eq!(pipeline.outstanding(), u8::from(from.is_none()));
                while !pipeline.unsent().is_empty() {
                    let count = pipeline.unsent().len().min(piece);
                    arrived.extend_from_slice(&pipeline.unsent()[..count]);
                    pipeline.sent(count);
                    // Also where nothing more was asked for: what is waiting is as it was.
                    if let (Some(so_far), true) = (from, piece.is_multiple_of(2)) {
                        from = pipeline.feed(words(&word), so_far);
                    }
                }
            }
            assert_eq!(arrived, wire(&word));
            // And commands go on as ever.
            assert_eq!(receive(&mut pipeline, b":7\r\n", 8), Ok(()));
            assert_eq!(pipeline.take_reply(), Some(Value::Integer(7)));
        }
    }
    for piece in 1..=20 {
        feed::<1>(piece);
        feed::<2>(piece);
        feed::<13>(piece);
        feed::<64>(piece);
        feed::<1_024>(piece);
    }
}

#[test]
fn nothing_is_fed_while_as_many_replies_are_owed_as_may_be() {
    let mut pipeline: Pipeline<64, 8> = pushed(Pipeline::<64, 8>::OUTSTANDING_MAX);
    assert_eq!(pipeline.feed(words(b"x"), 3), Some(3));
    assert_eq!(pipeline.unsent(), b"");
    assert_eq!(receive(&mut pipeline, b"+OK\r\n", 8), Ok(()));
    assert_eq!(pipeline.feed(words(b"x"), 0), None);
    assert_eq!(pipeline.unsent(), wire(b"x"));
}
