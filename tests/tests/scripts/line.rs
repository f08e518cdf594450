//! The scripts of the waiting line, for users who lack a permission and for members that are no mailboxes.

use redis::{Connection, Value};
use redlock_core::transport::{
    Argument, Command, Mailbox, Place, Reply, ScriptCall, VoteConditions,
};
use redlock_core::{MAILBOX_PREFIX, QUEUE_KEY_PREFIX, Token};
use redlock_tests::Server;

const KEY: &str = "dock";

fn words(command: &Command<'_>) -> Vec<Vec<u8>> {
    let words = command.arguments(ScriptCall::Text);
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

/// The client that waits is alive: it has subscribed. An error of the node is no proof that it is gone.
#[test]
fn a_user_who_may_not_call_releases_and_leaves_the_line_as_it_is() {
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
        assert_eq!(line(&mut admin), [waiter.to_string()], "{missing}: no turn");
        // Another user may look at the lock, and wait behind the first one.
        if missing != "-zadd" {
            let third = Mailbox::new([3; 8]);
            let command = acquire(&its, third);
            let answer = send(&mut poor, &words(&command)).unwrap();
            let numbers: [i64; 4] = redis::from_redis_value(answer).unwrap();
            let reply = command.reply(redlock_core::transport::Answer::Integers(numbers));
            let Some(Ok(Reply::Waiting(position, None))) = reply else {
                panic!("{missing}: {reply:?}");
            };
            assert_eq!((position.ahead, position.left_ms), (1, 0), "{missing}");
            assert_eq!(
                line(&mut admin),
                [waiter, third].map(|member| member.to_string())
            );
        }
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
        "~~bababababababab",
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
