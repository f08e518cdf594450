//! The scripts of the waiting line, for users who lack a permission and for members that are no mailboxes.

use redis::{Connection, Value};
use redlock_core::transport::{
    Argument, Command, Mailbox, Place, Reply, ScriptCall, VoteConditions,
};
use redlock_core::{MAILBOX_PREFIX, QUEUE_KEY_PREFIX, Token};
use redlock_tests::Server;

const KEY: &str = "dock";

fn words(command: &Command<'_>) -> Vec<Vec<u8>> {
    words_of(command, ScriptCall::Text)
}

fn words_of(command: &Command<'_>, call: ScriptCall) -> Vec<Vec<u8>> {
    let words = command.arguments(call);
    words
        .map(|word| match word {
            Argument::Bytes(bytes) => bytes.to_vec(),
            Argument::Integer(number) => number.to_string().into_bytes(),
            Argument::Line(word) => {
                let (prefix, bytes) = word.pieces();
                [prefix.as_bytes(), bytes].concat()
            }
            other => panic!("{other:?}"),
        })
        .collect()
}

fn send(connection: &mut Connection, words: &[Vec<u8>]) -> redis::RedisResult<Value> {
    let mut cmd = redis::Cmd::new();
    words.iter().for_each(|word| {
        cmd.arg(&word[..]);
    });
    cmd.query(connection)
}

fn connect(server: &Server) -> Connection {
    let client = redis::Client::open(server.url()).unwrap();
    client.get_connection().unwrap()
}

fn line(connection: &mut Connection) -> Vec<String> {
    let mut zrange = redis::cmd("ZRANGE");
    zrange
        .arg(format!("{QUEUE_KEY_PREFIX}{KEY}"))
        .arg(0)
        .arg(-1);
    zrange.query(connection).unwrap()
}

/// The client that waits is alive: it has subscribed. An error of the node is no proof that it is gone. Without a turn, it would stay
/// the first one for ever if it does not come.
#[test]
fn a_user_who_may_not_call_gives_the_turn_to_the_next_one_all_the_same() {
    let server = Server::start();
    let mut admin = connect(&server);
    let [holder, waiter] = [1, 2].map(|number| Mailbox::new([number; 8]));
    let [its, mine] = [1, 2].map(|byte| Token::from_bytes([byte; Token::LEN]));
    let conditions = VoteConditions::NONE;
    let mut subscriber = connect(&server);
    let channel = format!("{MAILBOX_PREFIX}{waiter}");
    redis::cmd("SUBSCRIBE")
        .arg(channel)
        .exec(&mut subscriber)
        .unwrap();
    for missing in ["-publish", "-pubsub", "resetchannels", "-zadd"] {
        redis::cmd("FLUSHALL").exec(&mut admin).unwrap();
        let mut user = redis::cmd("ACL");
        user.arg(&["SETUSER", "default", "on", "nopass", "~*", "&*", "+@all"]);
        user.exec(&mut admin).unwrap();
        let mut user = redis::cmd("ACL");
        user.arg(&[
            "SETUSER", "poor", "reset", "on", ">secret", "~*", "&*", "+@all", missing,
        ]);
        user.exec(&mut admin).unwrap();
        let key = KEY.as_bytes();
        let acquire = |token, mailbox| {
            let place = Place::waiting(mailbox, Place::NOW, 125);
            Command::acquire(key, token, 60_000, conditions).with_place(Some(place))
        };
        send(&mut admin, &words(&acquire(&its, holder))).unwrap();
        send(&mut admin, &words(&acquire(&mine, waiter))).unwrap();
        let mut poor = connect(&server);
        redis::cmd("AUTH")
            .arg("poor")
            .arg("secret")
            .exec(&mut poor)
            .unwrap();
        let release = Command::release(key, &its).with_place(Some(Place::outside(125)));
        let released = send(&mut poor, &words(&release)).unwrap();
        // With a 1, the user would overtake the clients that wait for ever.
        assert_eq!(released, Value::Int(2), "{missing}: clients wait");
        let its_turn = format!("!{waiter}");
        if missing == "-zadd" {
            assert_eq!(line(&mut admin), [waiter.to_string()]);
        } else {
            assert_eq!(line(&mut admin), [its_turn.clone(), waiter.to_string()]);
            // The user may look at the lock too, and wait behind the first one.
            let third = Mailbox::new([3; 8]);
            let command = acquire(&its, third);
            let answer = send(&mut poor, &words(&command)).unwrap();
            let numbers: [i64; 4] = redis::from_redis_value(answer).unwrap();
            let reply = command.reply(redlock_core::transport::Answer::Integers(numbers));
            let Some(Ok(Reply::Waiting(position, None))) = reply else {
                panic!("{missing}: {reply:?}");
            };
            // A client that was not called has time for a look.
            let is_long = position.left_ms > 125;
            assert_eq!(
                (position.ahead, is_long),
                (1, missing != "-pubsub"),
                "{missing}: {position:?}"
            );
            let members = [its_turn, waiter.to_string(), third.to_string()];
            assert_eq!(line(&mut admin), members);
        }
    }
}

/// A device that has not stood in the line sends it to a node that lacks the script of the line.
#[test]
fn the_short_release_calls_the_first_two_clients_that_hear_and_only_if_it_deletes_the_key() {
    let server = Server::start();
    let mut connection = connect(&server);
    let holder = Token::from_bytes([1; Token::LEN]);
    let release = Command::release(KEY.as_bytes(), &holder).with_place(Some(Place::outside(125)));
    let release = words_of(&release, ScriptCall::ShortText);
    let set = |connection: &mut Connection, token: &[u8]| {
        redis::cmd("SET")
            .arg(KEY)
            .arg(token)
            .exec(connection)
            .unwrap();
    };
    set(&mut connection, holder.as_bytes());
    let nobody = send(&mut connection, &release).unwrap();
    assert_eq!(nobody, Value::Int(1));
    let [gone, first, second, third] = [1, 3, 4, 5].map(|number| Mailbox::new([number; 8]));
    let uncallable = Mailbox::new([2; 8]).uncallable();
    let mut zadd = redis::cmd("ZADD");
    zadd.arg(format!("{QUEUE_KEY_PREFIX}{KEY}"));
    for (ticket, mailbox) in [gone, uncallable, first, second, third].iter().enumerate() {
        zadd.arg(ticket).arg(mailbox.to_string());
    }
    zadd.arg(-1).arg(format!("!{gone}"));
    zadd.exec(&mut connection).unwrap();
    let mut subscriber = connect(&server);
    let mut messages = subscriber.as_pubsub();
    for mailbox in [first, second, third] {
        messages
            .subscribe(format!("{MAILBOX_PREFIX}{mailbox}"))
            .unwrap();
    }
    // The lock is another client's.
    set(&mut connection, b"another");
    assert_eq!(send(&mut connection, &release).unwrap(), Value::Int(0));
    set(&mut connection, holder.as_bytes());
    assert_eq!(send(&mut connection, &release).unwrap(), Value::Int(2));
    // So that there is a message to wait for if there was no call.
    let end = format!("{MAILBOX_PREFIX}{third}");
    redis::cmd("PUBLISH")
        .arg(end)
        .arg("end")
        .exec(&mut connection)
        .unwrap();
    let heard = [(); 3].map(|()| {
        let message = messages.get_message().unwrap();
        let payload: String = message.get_payload().unwrap();
        (message.get_channel_name().to_owned(), payload)
    });
    let wanted = [
        (format!("{MAILBOX_PREFIX}{first}"), format!("1{KEY}")),
        (format!("{MAILBOX_PREFIX}{second}"), format!("2{KEY}")),
        (format!("{MAILBOX_PREFIX}{third}"), "end".to_owned()),
    ];
    assert_eq!(heard, wanted);
}

#[test]
fn the_short_release_deletes_the_key_whatever_is_wrong_with_the_line() {
    let server = Server::start();
    let user = ["ACL", "SETUSER", "poor", "on", ">secret", "~*", "+@all"];
    assert_eq!(server.query::<String>(&user).unwrap(), "OK");
    let mut poor = connect(&server);
    let login = ["AUTH", "poor", "secret"].map(|word| word.as_bytes().to_vec());
    send(&mut poor, &login).unwrap();
    let holder = Token::from_bytes([1; Token::LEN]);
    let release = Command::release(KEY.as_bytes(), &holder).with_place(Some(Place::outside(125)));
    let release = words_of(&release, ScriptCall::ShortText);
    let queue = format!("{QUEUE_KEY_PREFIX}{KEY}");
    let waits: &[&[&str]] = &[
        // A key of another program.
        &["SET", &queue, "x"],
        // The user may not publish.
        &["ZADD", &queue, "1", "0101010101010101"],
        &["ACL", "SETUSER", "poor", "-zrange"],
    ];
    for (setup, answer) in waits.iter().zip([1, 2, 1]) {
        server.query::<()>(&["FLUSHALL"]).unwrap();
        let _done: Value = server.query(setup).unwrap();
        let mut set = redis::cmd("SET");
        set.arg(KEY).arg(holder.as_bytes()).exec(&mut poor).unwrap();
        let released = send(&mut poor, &release).unwrap();
        assert_eq!(released, Value::Int(answer), "{setup:?}");
        assert_eq!(server.query::<u8>(&["EXISTS", KEY]).unwrap(), 0);
    }
}

/// Redis 7 gives a new user no channels. Then all its clients stand in the line as ones that cannot be called.
#[test]
fn a_client_that_is_gone_and_could_not_be_called_costs_one_turn_also_if_the_user_may_not_publish() {
    let server = Server::start();
    let user = ["ACL", "SETUSER", "poor", "on", ">secret", "~*", "+@all"];
    assert_eq!(server.query::<String>(&user).unwrap(), "OK");
    let mut poor = connect(&server);
    let login = ["AUTH", "poor", "secret"].map(|word| word.as_bytes().to_vec());
    send(&mut poor, &login).unwrap();
    let [its, mine] = [1, 2].map(|byte| Token::from_bytes([byte; Token::LEN]));
    let [gone, waiter] = [1, 2].map(|number| Mailbox::new([number; 8]).uncallable());
    let acquire = |token, mailbox| {
        let place = Place::waiting(mailbox, Place::NOW, 1);
        Command::acquire(KEY.as_bytes(), token, 60_000, VoteConditions::NONE)
            .with_place(Some(place))
    };
    let set = ["SET", KEY, "another"].map(|word| word.as_bytes().to_vec());
    send(&mut poor, &set).unwrap();
    for (token, mailbox) in [(&its, gone), (&mine, waiter)] {
        send(&mut poor, &words(&acquire(token, mailbox))).unwrap();
    }
    let delete = ["DEL", KEY].map(|word| word.as_bytes().to_vec());
    send(&mut poor, &delete).unwrap();
    // The first look gives the turn to the client that is gone. A look after that takes the lock.
    let start = std::time::Instant::now();
    loop {
        let answer = send(&mut poor, &words(&acquire(&mine, waiter))).unwrap();
        let [code, ..]: [i64; 4] = redis::from_redis_value(answer).unwrap();
        if code == 0 {
            break;
        }
        assert!(start.elapsed() < std::time::Duration::from_secs(20));
    }
}

/// A client that does not stand in the line was faster. Without this, the one that came would lose its place to those behind it.
#[test]
fn a_client_that_comes_in_its_turn_and_finds_the_lock_taken_keeps_its_place() {
    let server = Server::start();
    let mut connection = connect(&server);
    let [holder, first, second] = [1, 2, 3].map(|byte| Token::from_bytes([byte; Token::LEN]));
    let [one, two] = [1, 2].map(|number| Mailbox::new([number; 8]).uncallable());
    let acquire = |token, mailbox| {
        let place = Place::waiting(mailbox, Place::NOW, 1);
        Command::acquire(KEY.as_bytes(), token, 60_000, VoteConditions::NONE)
            .with_place(Some(place))
    };
    let release = Command::release(KEY.as_bytes(), &holder).with_place(Some(Place::outside(1)));
    let plain = Command::acquire(KEY.as_bytes(), &holder, 60_000, VoteConditions::NONE);
    send(&mut connection, &words(&plain)).unwrap();
    for (token, mailbox) in [(&first, one), (&second, two)] {
        send(&mut connection, &words(&acquire(token, mailbox))).unwrap();
    }
    for _ in 0..3 {
        send(&mut connection, &words(&release)).unwrap();
        send(&mut connection, &words(&plain)).unwrap();
        send(&mut connection, &words(&acquire(&first, one))).unwrap();
        // The turn of a millisecond is over by the next release.
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    send(&mut connection, &words(&release)).unwrap();
    let members = [format!("!{one}"), one.to_string(), two.to_string()];
    assert_eq!(line(&mut connection), members);
}

/// Otherwise two clients that begin to wait in the same microsecond could each come first on half of the nodes, for ever.
#[test]
fn clients_with_one_ticket_have_one_order_whichever_of_them_a_node_can_call() {
    let server = Server::start();
    let mut connection = connect(&server);
    let mailboxes = [3, 7].map(|number| Mailbox::new([number; 8]));
    let token = Token::from_bytes([1; Token::LEN]);
    let set = ["SET", KEY, "another"].map(|word| word.as_bytes().to_vec());
    for can_call in [[true, true], [true, false], [false, true], [false, false]] {
        server.query::<()>(&["FLUSHALL"]).unwrap();
        send(&mut connection, &set).unwrap();
        let standing = std::array::from_fn(|client| match can_call[client] {
            true => mailboxes[client],
            false => mailboxes[client].uncallable(),
        });
        for mailbox in standing {
            let place = Place::waiting(mailbox, 1, 125);
            let acquire = Command::acquire(KEY.as_bytes(), &token, 60_000, VoteConditions::NONE);
            send(&mut connection, &words(&acquire.with_place(Some(place)))).unwrap();
        }
        let [first, second] = standing.map(|mailbox: Mailbox| mailbox.to_string());
        assert_eq!(line(&mut connection), [first.clone(), second.clone()]);
        let scores: Vec<String> = server
            .query(&[
                "ZRANGE",
                &format!("{QUEUE_KEY_PREFIX}{KEY}"),
                "0",
                "-1",
                "WITHSCORES",
            ])
            .unwrap();
        assert_eq!(
            scores,
            [&*first, &*scores[1], &*second, &*scores[1]],
            "one ticket"
        );
    }
}

/// For example because it was stopped for as long as its turn. The others have waited for less time than it has.
#[test]
fn a_client_that_has_waited_for_days_and_lost_its_place_is_not_behind_those_that_came_later() {
    let server = Server::start();
    let mut connection = connect(&server);
    let [seconds, _]: [u64; 2] = server.query(&["TIME"]).unwrap();
    let ago = |days: u64| (seconds - days * 86_400) * 1_000_000;
    let others = [2, 3].map(|number| Mailbox::new([number; 8]).uncallable());
    let back = Mailbox::new([9; 8]).uncallable();
    let mut zadd = redis::cmd("ZADD");
    zadd.arg(format!("{QUEUE_KEY_PREFIX}{KEY}"));
    for (mailbox, age) in others.iter().zip([30, 20]) {
        zadd.arg(ago(age)).arg(mailbox.to_string());
    }
    zadd.exec(&mut connection).unwrap();
    let set = ["SET", KEY, "another"].map(|word| word.as_bytes().to_vec());
    send(&mut connection, &set).unwrap();
    let token = Token::from_bytes([1; Token::LEN]);
    let ranks = [(40, 1), (25, 1), (10, 2)].map(|(age, rank)| {
        let place = Place::waiting(back, ago(age), 125);
        let acquire = Command::acquire(KEY.as_bytes(), &token, 60_000, VoteConditions::NONE);
        send(&mut connection, &words(&acquire.with_place(Some(place)))).unwrap();
        let members = line(&mut connection);
        let at = members
            .iter()
            .position(|member| *member == back.to_string());
        let mut zrem = redis::cmd("ZREM");
        zrem.arg(format!("{QUEUE_KEY_PREFIX}{KEY}"))
            .arg(back.to_string());
        zrem.exec(&mut connection).unwrap();
        // Of two with one ticket, the name decides.
        (at, rank)
    });
    for (at, rank) in ranks {
        assert_eq!(at, Some(rank), "{ranks:?}");
    }
}

#[test]
fn a_member_that_is_no_mailbox_is_refused() {
    let server = Server::start();
    let mut connection = connect(&server);
    let token = Token::from_bytes([1; Token::LEN]);
    let mailbox = Mailbox::new([0xab; 8]);
    let place = Place::waiting(mailbox, Place::NOW, 125);
    let acquire = Command::acquire(KEY.as_bytes(), &token, 60_000, VoteConditions::NONE);
    let words = words(&acquire.with_place(Some(place)));
    redis::cmd("SET")
        .arg(KEY)
        .arg("another")
        .exec(&mut connection)
        .unwrap();
    for member in [
        "",
        "!abababababababab",
        "abababababababa",
        "ababababababababa",
        "bababababababab~~",
        "abababababababag",
    ] {
        let mut words = words.clone();
        let slot = words
            .iter_mut()
            .find(|word| **word == mailbox.to_string().into_bytes());
        *slot.unwrap() = member.into();
        let _error = send(&mut connection, &words).unwrap_err();
        assert!(line(&mut connection).is_empty(), "{member}");
    }
    send(&mut connection, &words).unwrap();
    assert_eq!(line(&mut connection), [mailbox.to_string()]);
}

/// Leaves room for no other client. As after the restart of a large deployment.
#[test]
fn clients_that_are_gone_cost_a_free_lock_nothing_however_many_they_are() {
    let server = Server::start();
    let mut connection = connect(&server);
    let token = Token::from_bytes([1; Token::LEN]);
    let place = Place::waiting(Mailbox::new([0xff; 8]), Place::NOW, 125);
    let acquire = Command::acquire(KEY.as_bytes(), &token, 60_000, VoteConditions::NONE);
    for gone in [17, 999, 1_000] {
        let mut zadd = redis::cmd("ZADD");
        zadd.arg(format!("{QUEUE_KEY_PREFIX}{KEY}"));
        for number in 1..=gone {
            zadd.arg(number).arg(format!("{number:016x}"));
        }
        zadd.exec(&mut connection).unwrap();
        let answer = send(&mut connection, &words(&acquire.with_place(Some(place)))).unwrap();
        let [code, ..]: [i64; 4] = redis::from_redis_value(answer).unwrap();
        assert_eq!(code, 0, "{gone}: granted");
        assert!(line(&mut connection).is_empty(), "{gone}");
        redis::cmd("DEL").arg(KEY).exec(&mut connection).unwrap();
    }
}

/// Another program can write anything into the line.
#[test]
fn what_is_no_turn_ends_like_one() {
    let server = Server::start();
    let mut connection = connect(&server);
    let token = Token::from_bytes([1; Token::LEN]);
    let place = Place::waiting(Mailbox::new([0xff; 8]), Place::NOW, 125);
    let acquire = Command::acquire(KEY.as_bytes(), &token, 60_000, VoteConditions::NONE);
    for nonsense in [
        &[("-5", "foo"), ("-4", "bar")][..],
        &[("-inf", "foo"), ("-4", "!")],
        &[("-5", "~foo"), ("-4", "!~"), ("0", "")],
    ] {
        let mut zadd = redis::cmd("ZADD");
        zadd.arg(format!("{QUEUE_KEY_PREFIX}{KEY}"));
        for (score, member) in nonsense {
            zadd.arg(score).arg(member);
        }
        zadd.exec(&mut connection).unwrap();
        // One look for each of them, at most.
        let codes = (0..=nonsense.len()).map(|_| {
            let answer = send(&mut connection, &words(&acquire.with_place(Some(place)))).unwrap();
            let [code, _, _, rest]: [i64; 4] = redis::from_redis_value(answer).unwrap();
            assert!(rest >= 0, "{nonsense:?}: {rest}");
            code
        });
        assert!(codes.into_iter().any(|code| code == 0), "{nonsense:?}");
        redis::cmd("FLUSHALL").exec(&mut connection).unwrap();
    }
}
