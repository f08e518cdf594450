//! A real server and one in memory, to which the same is done.

use std::fmt::Debug;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use redis::{Cmd, Connection, ConnectionLike, Pipeline, PushInfo, PushKind, Value};
use redlock_core::mock::{self, MockFailure};
use redlock_core::transport::{
    Answer, Argument, Arguments, Call, Command, Mailbox, NodeInfo, ReplicationId, Reply, RunId,
    ScriptCall,
};
use redlock_core::{
    Denial, FENCE_KEY_PREFIX, Failure, Fence, Fencing, GUARD_KEY, Instant, MAILBOX_PREFIX,
    QUEUE_KEY_PREFIX, Token,
};
use redlock_tests::Server;

use crate::step::Step;

pub(crate) struct Twins<'a> {
    server: &'a Server,
    connection: Connection,
    memory: mock::Server<{ KEYS.len() }>,
    /// The run ID and the replication ID of the server.
    identity: [String; 2],
    /// How many of them the other has had.
    lives: u64,
    /// What both wall clocks show, in microseconds.
    wall: u64,
    /// When the quarantine is over, as far as a client was told.
    pub(crate) quarantined_until: u64,
    pub(crate) may_fail_back: bool,
    pub(crate) has_lines: bool,
    pub(crate) has_fences: bool,
    /// The clients that can be called, and what they are told.
    mail: Connection,
    messages: Receiver<PushInfo>,
    /// A connection that has subscribed to all channels: it makes no client look alive.
    _eavesdropper: Connection,
}

/// The members of a line with their scores, and for how many milliseconds it lives.
type Line = (Vec<(String, i64)>, i64);

/// How many clients there are.
pub(crate) const MAILBOXES: usize = 5;

pub(crate) fn mailbox(number: usize) -> Mailbox {
    Mailbox::new([u8::try_from(number).unwrap() * 0x31; 8])
}

/// What is there of a key: a token or a fence, and for how many milliseconds.
type Entry<T> = Option<(T, i64)>;

/// The rules of the guard record, and the end of the quarantine if it is of this process with this data.
type Guard = Option<(String, Option<u64>)>;

pub(crate) const KEYS: [&str; 2] = ["a", "b"];

/// Some date.
const START: u64 = 1_700_000_000_000_000;

const INIT: &str = include_str!("../../../redlock-std/src/init/init.lua");

impl<'a> Twins<'a> {
    /// Both empty, of the [fleet] and vouched for.
    pub(crate) fn begin(server: &'a Server, may_fail_back: bool) -> Self {
        let client = redis::Client::open(server.url()).unwrap();
        let mut connection = client.get_connection().unwrap();
        server.stop_clock(START.cast_signed());
        redis::cmd("FLUSHALL").exec(&mut connection).unwrap();
        server.vouch(&rules(fencing()));
        let client = redis::Client::open(format!("{}?protocol=resp3", server.url())).unwrap();
        let mut mail = client.get_connection().unwrap();
        let mut eavesdropper = client.get_connection().unwrap();
        let all = redis::cmd("PSUBSCRIBE").arg("*").get_packed_command();
        eavesdropper.send_packed_command(&all).unwrap();
        let (sender, messages) = channel();
        mail.set_push_sender(sender);
        let mut twins = Self {
            server,
            mail,
            messages,
            _eavesdropper: eavesdropper,
            has_lines: false,
            has_fences: true,
            connection,
            memory: mock::Server::new(RunId::new(0)).set_up_for(Some(fencing())),
            identity: server.identity().unwrap(),
            lives: 0,
            wall: START,
            quarantined_until: 0,
            may_fail_back,
        };
        twins.set_may_evict(false);
        twins
    }

    pub(crate) fn begin_lines(&mut self) {
        self.has_lines = true;
        (0..MAILBOXES).for_each(|number| self.set_subscribed(number, true));
    }

    /// The token in `key`.
    pub(crate) fn holder(&self, key: &str) -> Option<Token> {
        let entry = self.memory.entry(key.as_bytes(), self.now());
        entry.map(|entry| entry.token)
    }

    pub(crate) const fn wall(&self) -> u64 {
        self.wall
    }

    pub(crate) fn fence(&self, key: &str) -> Fence {
        let fence = self.memory.fence(key.as_bytes(), self.now());
        fence.map_or(Fence::ZERO, |(fence, _)| fence)
    }

    pub(crate) fn has_record(&self) -> bool {
        self.memory.rules().is_some()
    }

    /// When the last whole millisecond of `key` or of its fence begins.
    pub(crate) fn deadlines(&self, key: &str) -> impl Iterator<Item = u64> {
        let key = key.as_bytes();
        let fence = self.memory.fence(key, self.now());
        let lives = [
            self.memory.ttl(key, self.now()),
            fence.map(|(_, left)| left),
        ];
        let millis = self.wall / 1_000;
        let micros =
            move |left: Duration| (millis + u64::try_from(left.as_millis()).unwrap()) * 1_000;
        lives.into_iter().flatten().map(micros)
    }

    /// When the turn for `key` is over.
    pub(crate) fn turn_end(&self, key: &str) -> Option<u64> {
        let (_, ends_ms) = self.memory.turn(key.as_bytes(), self.now())?;
        Some(ends_ms * 1_000)
    }

    /// Does `step` to both and compares what they say and what they remember. The names of what happened.
    pub(crate) fn take(&mut self, step: &Step, context: impl Fn() -> String) -> Vec<String> {
        let mut names = Vec::new();
        match step {
            Step::Ask(asked) => {
                let command = asked.command();
                let had_key = self.memory.ttl(command.key, self.now()).is_some();
                let turn = self.memory.turn(command.key, self.now());
                let theirs = self.ask_server(&command);
                let ours = denial(self.memory.execute(&command, self.now()));
                assert_eq!(theirs, ours, "redis and memory, {}", context());
                let calls = self.calls_of_server(asked.key);
                let own: Vec<_> = self.memory.take_calls().collect();
                assert_eq!(calls, own, "calls of redis and memory, {}", context());
                let turn_now = self.memory.turn(command.key, self.now());
                names.extend(match calls.len() {
                    0 => None,
                    1 => Some("Called".to_owned()),
                    _ => Some("Called, with a deputy".to_owned()),
                });
                if turn.is_some_and(|(_, ends_ms)| turn_now != turn && ends_ms < self.wall / 1_000)
                {
                    names.push("Turn passed".into());
                }
                if let Err(Denial::Quarantined { left_ms, .. }) = ours {
                    self.quarantined_until = self.wall + u64::from(left_ms) * 1_000;
                }
                let is_made_again = matches!(ours, Ok(Reply::Extended(_))) && !had_key;
                names.push(if is_made_again {
                    "Extended, key made again".into()
                } else {
                    reply_name(&ours)
                });
            }
            Step::Pass(micros) => self.set_wall(self.wall + micros),
            Step::SetClock(micros) => self.set_wall(self.wall.saturating_add_signed(*micros)),
            Step::Delete(key) => {
                self.send(&["DEL", key]);
                self.memory.remove(key.as_bytes());
            }
            Step::Evict(key) => {
                self.send(&["DEL", key, &format!("{FENCE_KEY_PREFIX}{key}")]);
                self.memory.evict(key.as_bytes());
            }
            Step::Flush => {
                self.send(&["FLUSHALL"]);
                self.memory.clear();
            }
            Step::Policy(may_evict) => self.set_may_evict(*may_evict),
            Step::Connect => names.push(self.connect(&context)),
            Step::Init => {
                // It has been flushed, but no key is missed.
                self.send(&["CONFIG", "RESETSTAT"]);
                let is_new = self.memory.init(fencing(), self.now(), false);
                let outcome = self.run_init("start", Duration::ZERO);
                assert_eq!(outcome == "written", is_new, "{outcome}, {}", context());
                names.push(if is_new { "Initialized" } else { "Refused" }.into());
            }
            Step::Repair => {
                let before = self.guard_of_memory();
                let recorded = self.memory.rules();
                self.memory.repair(fencing(), self.now());
                // It leaves a record alone that is right.
                let is_right = recorded == Some(fencing())
                    && before.is_some_and(|(_, quarantined_until)| quarantined_until.is_some());
                if !is_right {
                    let rules = recorded.into_iter().chain([fencing()]);
                    let longest = rules.map(|rules| rules.quarantine()).max().unwrap();
                    let outcome = self.run_init("repair", longest);
                    names.extend((outcome == "written").then(|| "Repaired".into()));
                }
            }
            Step::FailBack => {
                // Nothing listens there: what changes is the history.
                self.send(&["REPLICAOF", "127.0.0.1", "1"]);
                self.memory.set_master(false);
                self.connect(&context);
                self.send(&["REPLICAOF", "NO", "ONE"]);
                self.identity = self.server.identity().unwrap();
                self.memory.set_master(true);
                self.begin_history();
            }
            Step::AgeGuard => {
                let colons = |record: &[u8]| record.iter().filter(|byte| **byte == b':').count();
                let record = self.get(GUARD_KEY.as_bytes());
                if let Some(record) = record.filter(|record| colons(record) == 5) {
                    let end = record.iter().rposition(|byte| *byte == b':').unwrap();
                    self.set(GUARD_KEY.as_bytes(), &record[..end]);
                    self.begin_history();
                }
            }
            Step::AgeFence(key) => {
                let key = [FENCE_KEY_PREFIX.as_bytes(), key.as_bytes()].concat();
                // The server in memory has no such records: only where nothing is lost by it.
                if let Some(known) = self.get(&key).filter(|known| known.ends_with(b":")) {
                    self.set(&key, &known[..known.len() - 1]);
                }
            }
            Step::Restart => {
                self.disown();
                self.lives += 1;
                // The connections of the server in memory end.
                for number in 0..MAILBOXES {
                    self.set_subscribed(number, false);
                }
                self.memory.restart(RunId::new(self.lives));
            }
            Step::Subscribe(number) => self.set_subscribed(*number, true),
            Step::Unsubscribe(number) => self.set_subscribed(*number, false),
        }
        assert_eq!(
            self.guard_of_server(),
            self.guard_of_memory(),
            "redis and memory, {}",
            context()
        );
        for key in KEYS {
            assert_eq!(
                self.remembered_by_server(key),
                self.remembered_by_memory(key),
                "redis and memory, of {key:?}, {}",
                context()
            );
            assert_eq!(
                self.line_of_server(key),
                self.line_of_memory(key),
                "redis and memory, in the line of {key:?}, {}",
                context()
            );
        }
        names
    }

    fn set_subscribed(&mut self, number: usize, is_on: bool) {
        // The first client cannot be called.
        if number == 0 {
            return;
        }
        let mailbox = mailbox(number);
        let verb = if is_on { "SUBSCRIBE" } else { "UNSUBSCRIBE" };
        let mut cmd = redis::cmd(verb);
        cmd.arg(format!("{MAILBOX_PREFIX}{mailbox}"));
        self.mail
            .send_packed_command(&cmd.get_packed_command())
            .unwrap();
        self.sync_mail();
        if is_on {
            self.memory.subscribe(mailbox);
        } else {
            self.memory.unsubscribe(mailbox);
        }
    }

    /// Reads what has come for the clients.
    fn sync_mail(&mut self) -> Vec<PushInfo> {
        redis::cmd("PING").exec(&mut self.mail).unwrap();
        self.messages.try_iter().collect()
    }

    fn calls_of_server(&mut self, key: &str) -> Vec<(Mailbox, Call)> {
        let messages = self.sync_mail().into_iter();
        messages
            .filter(|message| message.kind == PushKind::Message)
            .map(|message| {
                let [Value::BulkString(channel), Value::BulkString(payload)] = &message.data[..]
                else {
                    panic!("{message:?}");
                };
                let channel = str::from_utf8(channel).unwrap();
                let mut mailboxes = (0..MAILBOXES).map(mailbox);
                let mailbox =
                    mailboxes.find(|mailbox| channel == format!("{MAILBOX_PREFIX}{mailbox}"));
                let (call, of) = Call::read(payload).unwrap();
                assert_eq!(of, key.as_bytes());
                (mailbox.unwrap(), call)
            })
            .collect()
    }

    fn line_of_server(&mut self, key: &str) -> Option<Line> {
        let key = format!("{QUEUE_KEY_PREFIX}{key}");
        let mut pipe = Pipeline::new();
        pipe.cmd("ZRANGE")
            .arg(&key)
            .arg(0)
            .arg(-1)
            .arg("WITHSCORES")
            .cmd("PTTL")
            .arg(&key);
        let (members, ttl): (Vec<(String, i64)>, i64) = pipe.query(&mut self.connection).unwrap();
        Some((members, ttl)).filter(|(members, _)| !members.is_empty())
    }

    fn line_of_memory(&self, key: &str) -> Option<Line> {
        let (key, now) = (key.as_bytes(), self.now());
        let turn = self.memory.turn(key, now);
        let turn = turn.map(|(whose, ends_ms)| (format!("!{whose}"), -ends_ms.cast_signed()));
        let members = self.memory.line(key, now);
        let members = members.map(|(whose, ticket)| (whose.to_string(), ticket.cast_signed()));
        let members = turn.into_iter().chain(members).collect();
        let ttl = self.memory.line_ttl(key, now)?;
        Some((members, i64::try_from(ttl.as_millis()).unwrap()))
    }

    fn ask_server(&mut self, command: &Command<'_>) -> Result<Reply, Denial> {
        let answer = self.answer(command.arguments(ScriptCall::Text));
        command.reply(answer).unwrap()
    }

    /// What both tell a client that connects.
    fn connect(&mut self, context: impl Fn() -> String) -> String {
        let mut theirs = NodeInfo::read(self.answer(NodeInfo::question())).unwrap();
        let ours = self.memory.node_info(theirs.uptime, self.now());
        // Each has its own names.
        theirs.run_id = ours.run_id;
        theirs.replication_id = ours.replication_id;
        assert_eq!(theirs, ours, "redis and memory, {}", context());
        let name = if ours.may_evict {
            "Known, may evict"
        } else {
            "Known"
        };
        name.into()
    }

    fn answer(&mut self, words: Arguments<'_>) -> Answer {
        let mut cmd = Cmd::new();
        for word in words {
            match word {
                Argument::Bytes(bytes) => cmd.arg(bytes),
                Argument::Integer(number) => cmd.arg(number),
                Argument::FenceKey(key) => cmd.arg([FENCE_KEY_PREFIX.as_bytes(), key].concat()),
                Argument::Line(word) => {
                    let (prefix, bytes) = word.pieces();
                    cmd.arg([prefix.as_bytes(), bytes].concat())
                }
            };
        }
        let said = self.connection.req_command(&cmd).unwrap();
        match &said {
            Value::Okay => Answer::Ok,
            Value::Nil => Answer::Nil,
            Value::Int(number) => Answer::Integer(*number),
            Value::Array(_) => Answer::Integers(redis::from_redis_value(said).unwrap()),
            other => panic!("{cmd:?}: {other:?}"),
        }
    }

    fn send(&mut self, words: &[&str]) {
        let mut cmd = Cmd::new();
        cmd.arg(words).exec(&mut self.connection).unwrap();
    }

    /// The outcome of what `redlock init` runs on a node, in this mode.
    fn run_init(&mut self, mode: &str, quarantine: Duration) -> String {
        let [run_id, replid] = self.identity.clone();
        let there = self.get(GUARD_KEY.as_bytes());
        let kind = if there.is_some() { "string" } else { "none" };
        let eval = &mut redis::cmd("EVAL");
        let eval = eval.arg(INIT).arg(1).arg(GUARD_KEY).arg(mode);
        let eval = eval.arg(run_id).arg(replid).arg(kind);
        let quarantine_ms = u64::try_from(quarantine.as_millis()).unwrap();
        let eval = eval.arg(there.unwrap_or_default()).arg(quarantine_ms);
        let eval = eval.arg(rules(fencing()));
        let (outcome, ..): (String, String, Vec<u8>, u64) =
            eval.query(&mut self.connection).unwrap();
        outcome
    }

    fn set_may_evict(&mut self, may_evict: bool) {
        let policy = if may_evict {
            "allkeys-lru"
        } else {
            "noeviction"
        };
        self.send(&["CONFIG", "SET", "maxmemory-policy", policy]);
        self.memory.set_may_evict(may_evict);
    }

    fn set_wall(&mut self, wall: u64) {
        self.wall = wall;
        self.server.stop_clock(wall.cast_signed());
        self.memory.expire(self.now());
    }

    const fn now(&self) -> Instant {
        Instant::from_micros(self.wall)
    }

    /// In memory, the same data in another history.
    fn begin_history(&mut self) {
        self.lives += 1;
        self.memory.begin_history(ReplicationId::new(self.lives));
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
        let (key, now) = (key.as_bytes(), self.now());
        let entry = self.memory.entry(key, now);
        let token = entry.map(|entry| {
            let kept = if entry.is_kept { Token::KEPT } else { "" };
            [entry.token.as_bytes(), kept.as_bytes()].concat()
        });
        let fence = self.memory.fence(key, now);
        (
            token.zip(self.memory.ttl(key, now).map(millis)),
            fence.map(|(fence, left)| (fence.as_u64(), millis(left))),
        )
    }

    fn guard_of_server(&mut self) -> Guard {
        let record = String::from_utf8(self.get(GUARD_KEY.as_bytes())?).unwrap();
        let fields: Vec<_> = record.split(':').collect();
        let [run_id, replid] = &self.identity;
        let is_mine = fields[0] == run_id && fields.get(5) == Some(&&**replid);
        let until = is_mine.then(|| fields[1].parse().unwrap());
        Some((fields[2..5].join(":"), until))
    }

    fn guard_of_memory(&self) -> Guard {
        let rules = rules(self.memory.rules()?);
        let until = self.memory.quarantined_until();
        Some((rules, until.map(|until| until.as_micros().div_ceil(1_000))))
    }
}

/// As in the guard record.
fn rules(fencing: Fencing) -> String {
    let rules = [fencing.max_ttl(), fencing.window(), fencing.step_back()];
    rules.map(|rule| rule.as_millis().to_string()).join(":")
}

/// Whose leases are short, so that quarantines and fences end within a few steps.
pub(crate) fn fencing() -> Fencing {
    const MS: Duration = Duration::from_millis(1);

    let fencing = Fencing::new(20 * MS).unwrap();
    let fencing = fencing.with_max_ttl(300 * MS).unwrap();
    fencing.with_step_back(100 * MS).unwrap()
}

/// One with other rules.
pub(crate) fn other_fencing() -> Fencing {
    Fencing::new(fencing().window()).unwrap()
}

fn denial(result: Result<Reply, MockFailure>) -> Result<Reply, Denial> {
    result.map_err(|failure| match failure {
        Failure::Denied(denial) => denial,
        other => panic!("{other:?}"),
    })
}

fn reply_name(reply: &Result<Reply, Denial>) -> String {
    fn word(reply: &impl Debug) -> String {
        let words = format!("{reply:?}");
        let end = words.find(|letter: char| !letter.is_alphanumeric());
        words[..end.unwrap_or(words.len())].to_owned()
    }

    match reply {
        Ok(Reply::Waiting(position, reading)) => {
            let fenced = if reading.is_some() { ", fenced" } else { "" };
            format!("Waiting, {:?}{fenced}", position.refusal)
        }
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
