//! A real server and a node in memory, to which the same is done.

use std::fmt::Debug;
use std::time::Duration;

use redis::{Cmd, Connection, ConnectionLike, Pipeline, Value};
use redlock_core::mock::{MockClock, MockError, MockName, MockNode};
use redlock_core::transport::{Answer, Argument, Command, Proposal, Reply, Rules, ScriptCall};
use redlock_core::{
    Denial, FENCE_KEY_PREFIX, Fence, Fleet, GUARD_KEY, NodeError, Options, Token, Transport,
};
use redlock_tests::Server;

use crate::step::Step;

pub(crate) struct Twins<'a> {
    server: &'a Server,
    connection: Connection,
    memory: MockNode<&'a MockClock>,
    clock: &'a MockClock,
    /// What both wall clocks show, in microseconds.
    wall: u64,
    clock_step: i64,
    /// When the quarantine is over, as far as anybody was told.
    pub(crate) quarantined_until: u64,
}

/// What is there of a key: a token or a fence, and for how many milliseconds.
type Entry<T> = Option<(T, i64)>;

pub(crate) const KEYS: [&str; 2] = ["a", "b"];

impl<'a> Twins<'a> {
    /// Both empty, of the [fleet] and vouched for.
    pub(crate) fn begin(server: &'a Server, clock: &'a MockClock) -> Self {
        let client = redis::Client::open(server.url()).unwrap();
        let mut connection = client.get_connection().unwrap();
        let memory = MockNode::new(1, clock);
        // The node in memory is of the fleet of the first who asks it, and says what time it is.
        let token = Token::from_bytes([0; Token::LEN]);
        let first = Command::acquire(b"a", &token, 1, Rules::NONE).with_proposal(Some(Proposal {
            fence: Fence::from_u64(1),
            fleet: fleet(),
            time: 0,
            vouches: false,
        }));
        let denial = denial(clock.run((&memory).execute(&first))).unwrap_err();
        let Denial::TooOld(reading) = denial else {
            panic!("{denial}");
        };
        server.stop_clock(reading.time.cast_signed());
        redis::cmd("FLUSHALL").exec(&mut connection).unwrap();
        let rules = [fleet().max_ttl(), fleet().window(), fleet().step_back()];
        let rules = rules.map(|rule| rule.as_millis().to_string());
        server.vouch(&rules.join(":"));
        Self {
            server,
            connection,
            memory,
            clock,
            wall: reading.time,
            clock_step: 0,
            quarantined_until: 0,
        }
    }

    pub(crate) const fn wall(&self) -> u64 {
        self.wall
    }

    pub(crate) fn fence(&self, key: &str) -> Fence {
        self.memory.fence(key).unwrap_or(Fence::ZERO)
    }

    /// When the last whole millisecond of `key` or of its fence begins.
    pub(crate) fn deadlines(&self, key: &str) -> impl Iterator<Item = u64> {
        let lives = [self.memory.ttl(key), self.memory.fence_ttl(key)];
        let millis = self.wall / 1_000;
        let micros =
            move |left: Duration| (millis + u64::try_from(left.as_millis()).unwrap()) * 1_000;
        lives.into_iter().flatten().map(micros)
    }

    /// Does `step` to both and compares what they say and what they remember. The name of their reply.
    pub(crate) fn take(&mut self, step: &Step, context: impl Fn() -> String) -> Option<String> {
        let mut name = None;
        match step {
            Step::Ask(asked) => {
                let command = asked.command();
                let had_key = self.memory.token(asked.key).is_some();
                let theirs = self.ask_server(&command);
                let ours = denial(self.clock.run((&self.memory).execute(&command)));
                assert_eq!(theirs, ours, "redis and memory, {}", context());
                if let Err(Denial::Quarantined { left_ms, .. }) = ours {
                    self.quarantined_until = self.wall + u64::from(left_ms) * 1_000;
                }
                let is_made_again = matches!(ours, Ok(Reply::Extended(_))) && !had_key;
                name = Some(if is_made_again {
                    "Extended, key made again".into()
                } else {
                    reply_name(&ours)
                });
            }
            Step::Pass(micros) => {
                self.clock.advance(Duration::from_micros(*micros));
                self.wall += micros;
                self.server.stop_clock(self.wall.cast_signed());
            }
            Step::SetClock(micros) => {
                self.clock_step += micros;
                self.memory.set_clock_step(self.clock_step);
                self.wall = self.wall.saturating_add_signed(*micros);
                self.server.stop_clock(self.wall.cast_signed());
            }
            Step::Delete(key) => {
                redis::cmd("DEL")
                    .arg(key)
                    .exec(&mut self.connection)
                    .unwrap();
                self.memory.remove(key);
            }
            Step::Flush => {
                redis::cmd("FLUSHALL").exec(&mut self.connection).unwrap();
                self.memory.clear();
            }
            Step::FailBack => {
                // Nothing listens there: what changes is the history.
                for words in [&["127.0.0.1", "1"], &["NO", "ONE"]] {
                    let replicaof = &mut redis::cmd("REPLICAOF");
                    replicaof.arg(words).exec(&mut self.connection).unwrap();
                }
                self.begin_history();
            }
            Step::AgeGuard => {
                let colons = |record: &[u8]| record.iter().filter(|byte| **byte == b':').count();
                let record = self.get(GUARD_KEY.as_bytes());
                if let Some(record) = record.filter(|record| colons(record) == 5) {
                    let end = record.iter().rposition(|byte| *byte == b':').unwrap();
                    self.set(GUARD_KEY.as_bytes(), &record[..end]);
                }
                self.begin_history();
            }
            Step::AgeFence(key) => {
                let key = [FENCE_KEY_PREFIX.as_bytes(), key.as_bytes()].concat();
                // The node in memory has no such records: only where nothing is lost by it.
                if let Some(known) = self.get(&key).filter(|known| known.ends_with(b":")) {
                    self.set(&key, &known[..known.len() - 1]);
                }
            }
            Step::Restart => {
                self.disown();
                self.memory.restart();
            }
        }
        for key in KEYS {
            assert_eq!(
                self.remembered_by_server(key),
                self.remembered_by_memory(key),
                "redis and memory, of {key:?}, {}",
                context()
            );
        }
        name
    }

    fn ask_server(&mut self, command: &Command<'_>) -> Result<Reply, Denial> {
        let mut cmd = Cmd::new();
        for word in command.arguments(ScriptCall::Text) {
            match word {
                Argument::Bytes(bytes) => cmd.arg(bytes),
                Argument::Integer(number) => cmd.arg(number),
                Argument::FenceKey(key) => cmd.arg([FENCE_KEY_PREFIX.as_bytes(), key].concat()),
            };
        }
        let said = self.connection.req_command(&cmd).unwrap();
        let answer = match &said {
            Value::Okay => Answer::Ok,
            Value::Nil => Answer::Nil,
            Value::Int(number) => Answer::Integer(*number),
            Value::Array(_) => Answer::Integers(redis::from_redis_value(said).unwrap()),
            other => panic!("{command:?}: {other:?}"),
        };
        command.reply(answer).unwrap()
    }

    /// In memory, the same data in another history.
    fn begin_history(&self) {
        self.memory.save();
        self.memory.fail_back();
    }

    fn get(&mut self, key: &[u8]) -> Option<Vec<u8>> {
        let get = &mut redis::cmd("GET");
        get.arg(key).query(&mut self.connection).unwrap()
    }

    fn set(&mut self, key: &[u8], value: &[u8]) {
        let set = &mut redis::cmd("SET");
        let set = set.arg(key).arg(value).arg("KEEPTTL");
        set.exec(&mut self.connection).unwrap();
    }

    /// Another process with the same data: the guard record names one that this is not.
    fn disown(&mut self) {
        if let Some(record) = self.get(GUARD_KEY.as_bytes()) {
            let end = record.iter().position(|byte| *byte == b':').unwrap();
            let other = [&[b'0'; 40], &record[end..]].concat();
            self.set(GUARD_KEY.as_bytes(), &other);
        }
    }

    fn remembered_by_server(&mut self, key: &str) -> (Entry<Vec<u8>>, Entry<u64>) {
        let fence_key = format!("{FENCE_KEY_PREFIX}{key}");
        let mut pipe = Pipeline::new();
        for key in [key, &fence_key] {
            pipe.cmd("GET").arg(key).cmd("PTTL").arg(key);
        }
        let (token, ttl, fence, fence_ttl): (Option<_>, _, Option<_>, _) =
            pipe.query(&mut self.connection).unwrap();
        (
            token.map(|token| (token, ttl)),
            fence.map(|known: Vec<u8>| {
                let fence = known.split(|byte| *byte == b':').next().unwrap();
                let fence = str::from_utf8(fence).unwrap();
                (fence.parse().unwrap(), fence_ttl)
            }),
        )
    }

    fn remembered_by_memory(&self, key: &str) -> (Entry<Vec<u8>>, Entry<u64>) {
        let millis = |left: Duration| i64::try_from(left.as_millis()).unwrap();
        let token = self.memory.token(key);
        let token = token.map(|token| token.as_bytes().to_vec());
        let fence = self.memory.fence(key).map(Fence::as_u64);
        (
            token.zip(self.memory.ttl(key).map(millis)),
            fence.zip(self.memory.fence_ttl(key).map(millis)),
        )
    }
}

/// Whose leases are short, so that quarantines and fences end within a few steps.
pub(crate) fn fleet() -> Fleet {
    const MS: Duration = Duration::from_millis(1);

    let options = Options::new(100 * MS).unwrap();
    let fenced = options.fenced(20 * MS).unwrap();
    let fenced = fenced.max_ttl(300 * MS).unwrap();
    fenced.step_back(100 * MS).unwrap().fleet().unwrap()
}

/// One with other rules.
pub(crate) fn other_fleet() -> Fleet {
    let options = Options::new(Duration::from_millis(100)).unwrap();
    options.fenced(fleet().window()).unwrap().fleet().unwrap()
}

fn denial(result: Result<Reply, NodeError<MockName, MockError>>) -> Result<Reply, Denial> {
    result.map_err(|error| error.denial().unwrap_or_else(|| panic!("{error}")))
}

fn reply_name(reply: &Result<Reply, Denial>) -> String {
    fn word(reply: &impl Debug) -> String {
        let words = format!("{reply:?}");
        let end = words.find(|letter: char| !letter.is_alphanumeric());
        words[..end.unwrap_or(words.len())].to_owned()
    }

    match reply {
        Ok(Reply::Acquired(Some(_)) | Reply::Held(Some(_))) => {
            format!("{} fenced", word(reply.as_ref().unwrap()))
        }
        Ok(reply) => word(reply),
        Err(Denial::Unguarded {
            has_record: true, ..
        }) => "Unguarded, with a record".into(),
        Err(denial) => word(denial),
    }
}
