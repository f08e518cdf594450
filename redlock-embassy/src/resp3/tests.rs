use std::format;
use std::string::String;
use std::vec;
use std::vec::Vec;

use super::*;

type Events = Vec<(Event, Vec<u8>)>;

const CHUNKS: [usize; 4] = [1, 2, 7, usize::MAX];

/// The events in `input`, with the payloads of messages, however it is cut; and how it ends.
fn decode(input: impl AsRef<[u8]>) -> (Events, Result<(), Malformed>) {
    let input = input.as_ref();
    let results = CHUNKS.map(|chunk| {
        let mut decoder = Decoder::new();
        let mut events = Vec::new();
        for mut piece in input.chunks(chunk.min(input.len().max(1))) {
            loop {
                match decoder.decode(&mut piece) {
                    Ok(Some(event)) => {
                        let payload = match event {
                            Event::Message => decoder.message().as_bytes().to_vec(),
                            _ => Vec::new(),
                        };
                        events.push((event, payload));
                    }
                    Ok(None) => break,
                    Err(malformed) => return (events, Err(malformed)),
                }
            }
            assert!(piece.is_empty(), "everything is taken");
        }
        (events, Ok(()))
    });
    let shown = input.escape_ascii();
    assert!(results.windows(2).all(|pair| pair[0] == pair[1]), "{shown}");
    let [result, ..] = results;
    result
}

fn events(input: impl AsRef<[u8]>) -> Vec<Event> {
    let (events, end) = decode(input);
    assert_eq!(end, Ok(()));
    events.into_iter().map(|(event, _)| event).collect()
}

const OTHER: Event = Event::Reply(Value::Other);

#[test]
fn what_resp3_has_more_than_resp2_is_one_reply_and_the_next_one_is_its_own() {
    for reply in [
        "#t\r\n",
        "#f\r\n",
        ",1.25\r\n",
        ",inf\r\n",
        "(3492890328409238509324850943850943825024385\r\n",
        "=15\r\ntxt:Some string\r\n",
        "~3\r\n+a\r\n:1\r\n_\r\n",
        "%0\r\n",
        "%2\r\n+a\r\n:1\r\n$1\r\nb\r\n*2\r\n%1\r\n_\r\n#t\r\n,1\r\n",
        "%1\r\n+a\r\n|1\r\n+ttl\r\n:7\r\n+b\r\n",
        "%1\r\n$-1\r\n*-1\r\n",
        "~1\r\n!3\r\nERR\r\n",
    ] {
        let input = format!("{reply}:7\r\n{reply}_\r\n+OK\r\n");
        let [seven, nil, ok] = [Value::Integer(7), Value::Nil, Value::Ok].map(Event::Reply);
        assert_eq!(events(&input), [OTHER, seven, OTHER, nil, ok], "{reply}");
    }
}

#[test]
fn a_long_error_is_an_error() {
    let found = events("!21\r\nSYNTAX invalid syntax\r\n-ERR\r\n");
    let [
        Event::Reply(Value::Error(long)),
        Event::Reply(Value::Error(short)),
    ] = found[..]
    else {
        panic!("{found:?}");
    };
    assert_eq!((long.code(), short.code()), (&b"SYNTAX"[..], &b"ERR"[..]));
}

#[test]
fn an_attribute_is_passed_over_and_its_reply_is_not() {
    let input = "|1\r\n+ttl\r\n:3600\r\n:7\r\n|1\r\n*1\r\n+a\r\n%1\r\n_\r\n_\r\n+OK\r\n";
    let [seven, ok] = [Value::Integer(7), Value::Ok].map(Event::Reply);
    assert_eq!(events(input), [seven, ok]);
}

#[test]
fn a_message_is_a_push_of_three_strings_with_this_name() {
    for (input, payload) in [
        (
            "$7\r\nmessage\r\n$1\r\nc\r\n$5\r\n1dock\r\n",
            Some(&b"1dock"[..]),
        ),
        ("$7\r\nmessage\r\n$0\r\n\r\n$0\r\n\r\n", Some(b"")),
        (
            "$7\r\nmessage\r\n$1\r\nc\r\n$7\r\n1\r\n\r\nk\n\r\n",
            Some(b"1\r\n\r\nk\n"),
        ),
        ("$7\r\nmessage\r\n$1\r\nc\r\n$-1\r\n", Some(b"")),
        ("$8\r\npmessage\r\n$1\r\nc\r\n$5\r\n1dock\r\n", None),
        ("$8\r\nmessages\r\n$1\r\nc\r\n$5\r\n1dock\r\n", None),
        ("+message\r\n$1\r\nc\r\n$5\r\n1dock\r\n", None),
        ("$7\r\nmessage\r\n$1\r\nc\r\n:5\r\n", None),
        ("$7\r\nmessage\r\n*1\r\n$1\r\nc\r\n$5\r\n1dock\r\n", None),
        ("$7\r\nmessage\r\n$1\r\nc\r\n*1\r\n$5\r\n1dock\r\n", None),
    ] {
        let (found, end) = decode(format!(">3\r\n{input}:7\r\n"));
        assert_eq!(end, Ok(()));
        let (last, front) = found.split_last().unwrap();
        assert_eq!(last.0, Event::Reply(Value::Integer(7)));
        let expected: Vec<_> = payload
            .map(|payload| (Event::Message, payload.to_vec()))
            .into_iter()
            .collect();
        assert_eq!(front, expected, "{input}");
    }
    for count in [0, 1, 2, 4] {
        let strings = "$7\r\nmessage\r\n".repeat(count);
        assert_eq!(events(format!(">{count}\r\n{strings}")), []);
    }
}

#[test]
fn of_a_long_message_the_first_bytes_are_kept() {
    let subscribed = ">3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n";
    let payload = "1".repeat(100_000);
    let message = format!(">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$100000\r\n{payload}\r\n");
    let (found, end) = decode(format!("{subscribed}{message}:7\r\n"));
    assert_eq!(end, Ok(()));
    let kept = &payload.as_bytes()[..65];
    let expected = vec![
        (Event::Subscribed, vec![]),
        (Event::Message, kept.to_vec()),
        (Event::Reply(Value::Integer(7)), vec![]),
    ];
    assert_eq!(found, expected);
    assert_eq!(decode(message), (vec![], Err(Malformed)), "not subscribed");
}

#[test]
fn what_is_no_value_is_refused() {
    for input in [
        ">\r\n",
        ">x\r\n",
        ">-2\r\n",
        ">4294967296\r\n",
        "%2147483648\r\n",
        ">3\r\n>1\r\n",
        "%1\r\n>1\r\n",
        ">1\r\n?\r\n",
        ">1\rx",
        "%1\r\n+a\nb\r\n",
        "%1\r\n$1\r\nab\r\n",
        "%1\r\n$+1\r\na\r\n",
        "=1\r\nab",
        "#t\n",
        "~4294967295\r\n*4294967295\r\n",
        "~4294967295\r\n|1\r\n+a\r\n+a\r\n|4294967295\r\n",
    ] {
        let (found, end) = decode(input);
        assert_eq!((found, end), (vec![], Err(Malformed)), "{input}");
    }
}

#[test]
fn every_short_input_is_decoded_alike_wherever_it_is_cut() {
    let mut inputs = vec![String::new()];
    for _ in 0..6 {
        inputs = inputs
            .iter()
            .flat_map(|input| {
                [">", "|", "%", "$", "+", "1", "\r\n"].map(|piece| format!("{input}{piece}"))
            })
            .collect();
    }
    let complete = inputs.iter().filter(|input| !decode(input).0.is_empty());
    assert!(complete.count() > 10);
}

#[test]
fn what_resp2_has_is_decoded_as_without_resp3() {
    for input in [
        "+OK\r\n-ERR x\r\n:7\r\n$-1\r\n$3\r\nabc\r\n*-1\r\n_\r\n",
        "*4\r\n:1\r\n:2\r\n:3\r\n:4\r\n*2\r\n*0\r\n$1\r\n>\r\n",
        "*1\r\n%0\r\n",
        "*1\r\n>0\r\n",
        "$2000\r\n",
    ] {
        let mut decoder = resp::Decoder::new();
        let (mut values, mut rest) = (Vec::new(), input.as_bytes());
        let end = loop {
            match decoder.decode(&mut rest) {
                Ok(Some(value)) => values.push((Event::Reply(value), vec![])),
                Ok(None) => break Ok(()),
                Err(malformed) => break Err(malformed),
            }
        };
        assert_eq!(decode(input), (values, end), "{input}");
    }
}
