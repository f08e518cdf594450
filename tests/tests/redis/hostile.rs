//! Nodes that are in the wrong hands.

use std::time::{Duration, Instant};

use redlock_core::transport::{Argument, Command, NodeInfo, Reply, VoteConditions};
use redlock_core::{Token, Transport};
use redlock_std::{Failure, RedisNode, Redlock, TransportError};
use redlock_tests::{Impostor, Mischief, Server, Servers, eventually};

use crate::setup::patient;

const LIMIT: Duration = Duration::from_secs(10);

/// What the kernel keeps for a connection, which is not ours, and a few replies.
const MOST: u64 = 16 << 20;

/// Each is endless: what it begins with, and what comes again and again.
const FLOODS: [(&[u8], &[u8]); 9] = [
    (b"+OK\r\n", b"+OK\r\n"),
    (b"*1000000000\r\n", b"_\r\n"),
    (b"$9000000000000000000\r\n", b"x"),
    (b"*1\r\n", b"*1\r\n"),
    (b"*2147483647\r\n", b"*2147483647\r\n"),
    (b"%1000000000\r\n", b"+a\r\n"),
    (b"-", b"no end of this line "),
    (b">2\r\n+a\r\n+b\r\n", b">2\r\n+a\r\n+b\r\n"),
    (b"|9223372036854775807\r\n", b":1\r\n"),
];

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_sends_without_an_end_is_cut_off_whenever_it_does() {
    // In the login, with the scripts, unasked after the last question of the handshake, to an acquire, to a script.
    for on in ["CLIENT", "SCRIPT", "EVAL", "SET", "EVALSHA"] {
        for (answer, flood) in FLOODS {
            let answer = match on {
                "EVAL" => b"*4\r\n:1\r\n:2\r\n:400000003\r\n:60000\r\n",
                _ => answer,
            };
            let impostor = Impostor::flooding(on, answer, flood);
            let mut node = RedisNode::connect(&impostor.url(), Duration::from_secs(1)).unwrap();
            let token = Token::from_bytes([1; Token::LEN]);
            let what = String::from_utf8_lossy(flood).into_owned();
            let mut calls = 0;
            while impostor.cut_off() == 0 {
                let _failed = node.execute(&acquire(&token)).await;
                let _failed = node.execute(&release(&token)).await;
                calls += 1;
                assert!(calls < 2_000, "{what:?} on {on}");
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            assert!(impostor.longest() < MOST, "{what:?} on {on}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_sends_slowly_while_nothing_is_asked_is_cut_off_and_the_error_says_why() {
    for (answer, flood) in [
        (
            &b"*4\r\n:1\r\n:2\r\n:400000003\r\n:60000\r\n"[..],
            &[b'+'; 1_000][..],
        ),
        (
            b"*4\r\n:1\r\n:2\r\n:400000003\r\n:60000\r\n$9000000000000000000\r\n",
            &[b'x'; 1_000],
        ),
    ] {
        let impostor = Impostor::start(Mischief {
            on: "EVAL",
            answer,
            flood,
            pause: Duration::from_millis(1),
        });
        let mut node = RedisNode::connect(&impostor.url(), Duration::from_secs(60)).unwrap();
        eventually("it is cut off", LIMIT, || impostor.cut_off() > 0).await;
        assert!(impostor.longest() < 100_000, "{}", impostor.longest());
        let token = Token::from_bytes([1; Token::LEN]);
        let start = Instant::now();
        loop {
            let error = node.execute(&acquire(&token)).await.unwrap_err();
            if *error.failure() == Failure::Transport(TransportError::Flooded) {
                let words = error.to_string();
                assert!(words.contains("more than was asked for"), "{words}");
                assert!(words.contains("127.0.0.1:"), "{words}");
                break;
            }
            assert!(start.elapsed() < LIMIT, "{error}");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reply_that_nothing_has_asked_for_is_no_answer_to_the_next_command_and_ends_the_connection()
 {
    // A refusal, and a grant.
    let impostor = Impostor::answering("SET", b"$-1\r\n+OK\r\n");
    let mut node = RedisNode::connect(&impostor.url(), LIMIT).unwrap();
    let token = Token::from_bytes([1; Token::LEN]);
    let start = Instant::now();
    loop {
        match node.execute(&acquire(&token)).await {
            Ok(reply) => assert_eq!(reply, Reply::Held(None)),
            Err(error) if *error.failure() == Failure::Transport(TransportError::Flooded) => break,
            Err(error) => assert!(start.elapsed() < LIMIT, "{error}"),
        }
    }
}

/// What it is, and words of the error.
const PROHIBITED: [(&[u8], &str); 6] = [
    (
        b">3\r\n$9\r\nsubscribe\r\n$6\r\ndock-7\r\n:1\r\n",
        "a push message",
    ),
    (b">2\r\n+invalidate\r\n*0\r\n", "a push message"),
    (b"|1\r\n+ttl\r\n:1\r\n:1\r\n", "attributes"),
    (const { &deep(b"*1\r\n") }, "nested too deep"),
    (const { &deep(b"~1\r\n") }, "nested too deep"),
    (
        b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n",
        "not RESP",
    ),
];

/// As deep as the parser of the redis crate allows.
const fn deep(open: &[u8; 4]) -> [u8; 400] {
    let mut bytes = [b':'; 400];
    let mut at = 0;
    while at < 396 {
        bytes[at] = open[at % 4];
        at += 1;
    }
    [bytes[397], bytes[398], bytes[399]] = *b"1\r\n";
    bytes
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_sends_what_no_lock_asks_for_loses_its_connection_and_the_error_says_why() {
    for on in ["CLIENT", "SCRIPT", "EVAL", "SET", "EVALSHA"] {
        for (answer, words) in PROHIBITED {
            let impostor = Impostor::answering(on, answer);
            let mut node = RedisNode::connect(&impostor.url(), LIMIT).unwrap();
            let token = Token::from_bytes([1; Token::LEN]);
            let start = Instant::now();
            loop {
                let acquired = node.execute(&acquire(&token)).await;
                let released = node.execute(&release(&token)).await;
                let error = acquired.and(released).err().map(|error| error.to_string());
                let error = error.unwrap_or_default();
                if error.contains(words) {
                    assert!(error.contains("is this a Redis server?"), "{error}");
                    break;
                }
                assert!(start.elapsed() < LIMIT, "{words} on {on}: {error}");
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            // After delays of 20, 40 .. ms, not for each call.
            assert!(impostor.connections() < 10, "{words} on {on}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_may_be_as_long_as_an_error_is_however_often() {
    // 300 bytes beside the few that the others are: far more than the base in the life of a connection.
    let impostor = Impostor::answering("EVALSHA", const { &long_error() });
    let mut node = RedisNode::connect(&impostor.url(), LIMIT).unwrap();
    let token = Token::from_bytes([1; Token::LEN]);
    for _ in 0..1_000 {
        let error = node.execute(&release(&token)).await.unwrap_err();
        assert!(
            matches!(
                error.failure(),
                Failure::Transport(TransportError::Rejected(_))
            ),
            "{error}"
        );
    }
    assert_eq!(impostor.connections(), 1);
}

const fn long_error() -> [u8; 700] {
    let mut error = [b'x'; 700];
    [error[0], error[1], error[2], error[3], error[4]] = *b"-ERR ";
    [error[698], error[699]] = *b"\r\n";
    error
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_nodes_cost_their_votes_and_nothing_else() {
    let servers = Servers::start(3);
    let flooding = FLOODS[..2]
        .iter()
        .map(|(answer, flood)| Impostor::flooding("SET", answer, flood));
    let impostors: Vec<_> = flooding.collect();
    let urls = servers.urls().into_iter();
    let urls = urls.chain(impostors.iter().map(Impostor::url));
    let redlock = Redlock::connect(urls, patient(LIMIT)).unwrap();
    for _ in 0..200 {
        redlock.acquire("dock-7").await.unwrap().release().await;
    }
    servers.expect_no_keys().await;
    eventually("they are cut off", LIMIT, || {
        impostors.iter().all(|impostor| impostor.cut_off() > 0)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_floods_each_connection_has_few_of_them_however_many_locks_are_taken() {
    const TIME: Duration = Duration::from_secs(3);

    let servers = Servers::start(2);
    let impostor = Impostor::flooding(
        "EVAL",
        b"*4\r\n:1\r\n:2\r\n:400000003\r\n:60000\r\n",
        b"+OK\r\n",
    );
    let urls = servers.urls().into_iter().chain([impostor.url()]);
    let redlock = Redlock::connect(urls, patient(LIMIT)).unwrap();
    let start = Instant::now();
    while start.elapsed() < TIME {
        redlock.acquire("dock-7").await.unwrap().release().await;
    }
    // The delay before each doubles, from 20 ms up to a second, and jitter halves it at the most: the first, seven more in
    // 1.2 s, then two a second.
    let most = 1 + 7 + 2 * 2;
    let connections = impostor.connections();
    assert!((2..=most).contains(&connections), "{connections}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_node_says_cannot_write_into_a_terminal() {
    for on in ["SET", "SCRIPT", "EVAL", "SELECT"] {
        let impostor = Impostor::answering(
            on,
            b"-LOADING foo\nFAKE LINE\x1b[2J\xe2\x80\xae\xc2\x9b\r\n",
        );
        let url = impostor.url().replace("//", "//:secret@") + "/1";
        let redlock = Redlock::connect([url], patient(LIMIT)).unwrap();
        let Err(error) = redlock.try_acquire("dock-7").await else {
            assert_eq!(on, "SCRIPT", "scripts that are not loaded are sent as text");
            continue;
        };
        for words in [error.to_string(), format!("{error:?}")] {
            assert!(words.contains("FAKE LINE"), "{words}");
            let is_clean = |character: char| !character.is_control() && character != '\u{202e}';
            assert!(words.chars().all(is_clean), "{words:?}");
            assert!(!words.contains("secret"), "{words}");
        }
    }
}

/// Redis quotes the arguments of a command that it does not know.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_quotes_a_key_does_not_bring_it_into_an_error() {
    const QUOTE: &[u8] =
        b"-ERR unknown command 'SET', with args beginning with: 'dock-7' 'a token\xff\xfe\x80' \r\n";

    let impostor = Impostor::answering("SET", QUOTE);
    let redlock = Redlock::connect([impostor.url()], patient(LIMIT)).unwrap();
    let error = redlock.try_acquire("secret-key").await.unwrap_err();
    let words = format!("{error} {error:?}");
    assert!(words.contains("unknown command 'SET'"), "{words}");
    assert!(
        !words.contains("dock-7") && !words.contains("a token"),
        "{words}"
    );
}

const fn acquire(token: &Token) -> Command<'_> {
    Command::acquire(b"dock-7", token, 60_000, VoteConditions::NONE)
}

const fn release(token: &Token) -> Command<'_> {
    Command::release(b"dock-7", token)
}

/// Redis keeps a line of INFO for each name of an error, and any client may choose such names.
#[test]
fn what_other_clients_do_does_not_make_the_question_for_the_identity_of_a_node_expensive() {
    const ERROR: &str = "return redis.error_reply('N' .. ARGV[1] .. ' x')";

    let server = Server::start();
    let question: Vec<Vec<u8>> = NodeInfo::question()
        .map(|word| match word {
            Argument::Bytes(bytes) => bytes.to_vec(),
            Argument::Integer(number) => number.to_string().into_bytes(),
            other => panic!("{other:?}"),
        })
        .collect();
    let least = || {
        let times = (0..9).map(|_| {
            let start = Instant::now();
            let answer: Vec<i64> = server.query(&question).unwrap();
            assert_eq!(answer.len(), 4);
            start.elapsed()
        });
        times.min().unwrap()
    };
    let before = least();
    let mut errors = redis::pipe();
    for name in 0..30_000 {
        errors.cmd("EVAL").arg(ERROR).arg(0).arg(name).ignore();
    }
    let client = redis::Client::open(server.url()).unwrap();
    let mut connection = client.get_connection().unwrap();
    let _errors = errors.exec(&mut connection).unwrap_err();
    let info: String = server.query(&["INFO", "errorstats"]).unwrap();
    assert!(info.len() > 300_000, "{} bytes", info.len());
    let after = least();
    assert!(after < before * 8, "{before:?}, then {after:?}");
}
