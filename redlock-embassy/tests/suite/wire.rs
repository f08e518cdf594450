//! A small Redis server, and the stream to it.

use core::cell::{RefCell, RefMut};
use core::future::poll_fn;
use core::task::Poll;
use core::time::Duration;
use std::collections::{HashMap, VecDeque};

use embassy_futures::yield_now;
use embedded_io_async::{ErrorKind, ErrorType, Read, Write};
#[cfg(feature = "queue")]
use redlock_core::transport::Place;
use redlock_core::transport::{Argument, Command, NodeInfo, ScriptCall};
use redlock_core::{Clock, Instant, Token};
use redlock_embassy::{Connect, NodeName};

use crate::scripts::{Change, Scripts};
use crate::world::{A, KEY, Node, World, extend, release};

/// A node in memory that speaks the protocol, with every fault of the network and the node.
pub(crate) struct Server<'w> {
    pub(crate) world: &'w World,
    state: RefCell<State>,
}

struct State {
    entry: Entry,
    /// How many bytes a read or a write moves, and whether each must be polled twice.
    chunk: usize,
    stutters: bool,
    /// Written bytes stay where they are until they are flushed.
    needs_flush: bool,
    /// No flush ends.
    flushes_hang: bool,
    /// Instead of carrying it out, each release is answered with this error.
    #[cfg(feature = "queue")]
    refuses_releases: Option<&'static str>,
    /// Nothing is read: writes find room for so many bytes.
    is_hung: bool,
    room: usize,
    /// How long a connection takes to end.
    close_time: Duration,
    password: Option<(&'static str, &'static str)>,
    /// What it answers when it is asked for its identity.
    node_info: Vec<u8>,
    scripts: Scripts,
    /// Instead of the answers to the next commands, which are not carried out.
    scripted: VecDeque<Vec<u8>>,
    /// What every client finds to read, without end.
    flood: Option<Vec<u8>>,
    /// Instead of an answer to this command, the connection ends.
    closes_on: Option<&'static str>,
    attempts: Vec<Instant>,
    /// How often a stream was told that the login is accepted.
    logins: usize,
    connections: Vec<Connection>,
    heard: Vec<(usize, String)>,
    answers: HashMap<String, Vec<u8>>,
    keys: HashMap<(u16, Vec<u8>), (Vec<u8>, Instant)>,
}

/// What happens to a client that connects.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Entry {
    After(Duration),
    Refused(ErrorKind),
    /// Neither.
    Nothing,
}

impl Entry {
    pub(crate) const OPEN: Self = Self::After(Duration::ZERO);
    pub(crate) const REFUSED: Self = Self::Refused(ErrorKind::ConnectionRefused);
}

#[derive(Default)]
struct Connection {
    /// Written and not flushed.
    buffered: Vec<u8>,
    /// Sent and not read by the node.
    inbox: Vec<u8>,
    outbox: VecDeque<u8>,
    has_ended: bool,
    /// The client has ended it.
    is_closed: bool,
    is_in: bool,
    database: u16,
    /// Whether the next read, write or flush may do something.
    turns: [bool; 3],
}

impl<'w> Server<'w> {
    /// A node that accepts every client at once and moves any number of bytes.
    pub(crate) fn new(world: &'w World) -> Self {
        Self {
            world,
            state: RefCell::new(State {
                entry: Entry::OPEN,
                chunk: usize::MAX,
                stutters: false,
                needs_flush: true,
                flushes_hang: false,
                #[cfg(feature = "queue")]
                refuses_releases: None,
                is_hung: false,
                room: usize::MAX,
                close_time: Duration::ZERO,
                password: None,
                node_info: Who::default().answer(),
                scripts: Scripts::default(),
                scripted: VecDeque::new(),
                flood: None,
                closes_on: None,
                attempts: Vec::new(),
                logins: 0,
                connections: Vec::new(),
                heard: Vec::new(),
                answers: HashMap::new(),
                keys: HashMap::new(),
            }),
        }
    }

    /// A client of it.
    pub(crate) fn node(&'w self) -> Node<'w> {
        Node::new(self.wire(), &self.world.clock)
    }

    /// A client that is connected to it.
    pub(crate) fn connected(&'w self) -> Node<'w> {
        let mut node = self.node();
        self.world.run(node.connect()).unwrap();
        node
    }

    pub(crate) fn wire(&'w self) -> Wire<'w> {
        Wire {
            server: self,
            connection: None,
            attempted_at: None,
            has_waited: false,
            closing_since: None,
        }
    }

    /// Moves at most `chunk` bytes at a time, and nothing at every other time, beginning with the next.
    pub(crate) fn stutter(&self, chunk: usize) {
        let mut state = self.state();
        state.chunk = chunk;
        state.stutters = true;
        let connections = state.connections.iter_mut();
        connections.for_each(|connection| connection.turns = Default::default());
    }

    /// Moves at most `chunk` bytes at a time.
    pub(crate) fn move_by(&self, chunk: usize) {
        self.state().chunk = chunk;
    }

    /// Bytes leave without being flushed.
    pub(crate) fn send_at_once(&self) {
        self.state().needs_flush = false;
    }

    /// Bytes leave without being flushed, and no flush ends.
    pub(crate) fn flush_without_end(&self) {
        self.send_at_once();
        self.state().flushes_hang = true;
    }

    /// From now on, answers each release with `error`.
    #[cfg(feature = "queue")]
    pub(crate) fn refuse_releases(&self, error: &'static str) {
        self.state().refuses_releases = Some(error);
    }

    /// How often a stream was told that the login is accepted.
    pub(crate) fn logins(&self) -> usize {
        self.state().logins
    }

    pub(crate) fn enter(&self, entry: Entry) {
        self.state().entry = entry;
    }

    /// Stops reading; the network takes what it has room for.
    pub(crate) fn hang(&self, room: usize) {
        let mut state = self.state();
        state.is_hung = true;
        state.room = room;
    }

    /// Executes the commands that have arrived.
    pub(crate) fn resume(&self) {
        let mut state = self.state();
        state.is_hung = false;
        state.room = usize::MAX;
        for number in 0..state.connections.len() {
            state.work(number, self.world.clock.now());
        }
    }

    pub(crate) fn take_time_to_close(&self, time: Duration) {
        self.state().close_time = time;
    }

    pub(crate) fn require(&self, user: &'static str, password: &'static str) {
        self.state().password = Some((user, password));
    }

    /// From now on, is this process to every client that connects.
    pub(crate) fn introduce(&self, who: Who) {
        self.introduce_with(who.answer());
    }

    /// Another server was the master for a while, and did not have the keys of this one.
    pub(crate) fn fail_back(&self, who: Who) {
        self.introduce(who);
        self.state().keys.clear();
    }

    /// Answers with `bytes` when it is asked for its identity.
    pub(crate) fn introduce_with(&self, bytes: impl AsRef<[u8]>) {
        self.state().node_info = bytes.as_ref().to_vec();
    }

    /// What it knows of fenced locks.
    #[cfg(any(feature = "fence", feature = "queue"))]
    pub(crate) fn scripts(&self) -> RefMut<'_, Scripts> {
        RefMut::map(self.state(), |state| &mut state.scripts)
    }

    /// Answers the next command with `bytes`, and does not carry it out.
    pub(crate) fn answer_with(&self, bytes: impl AsRef<[u8]>) {
        self.state().scripted.push_back(bytes.as_ref().to_vec());
    }

    /// Sends `bytes` without a request.
    pub(crate) fn say(&self, bytes: impl AsRef<[u8]>) {
        let mut state = self.state();
        let connection = state.connections.last_mut().unwrap();
        connection.outbox.extend(bytes.as_ref());
    }

    /// From now on, sends `bytes` again and again, and behind them what else it sends.
    #[cfg(feature = "queue")]
    pub(crate) fn flood(&self, bytes: impl AsRef<[u8]>) {
        self.state().flood = Some(bytes.as_ref().to_vec());
    }

    /// Ends every connection after the bytes that were sent on it.
    pub(crate) fn cut(&self) {
        for connection in &mut self.state().connections {
            connection.has_ended = true;
        }
    }

    /// When clients tried to connect, in milliseconds.
    pub(crate) fn attempts(&self) -> Vec<u64> {
        let state = self.state();
        let millis = |at: &Instant| at.as_micros() / 1_000;
        state.attempts.iter().map(millis).collect()
    }

    /// How many connections there were.
    pub(crate) fn connections(&self) -> usize {
        self.state().connections.len()
    }

    /// How many of them were not ended by the client.
    pub(crate) fn clients(&self) -> usize {
        let state = self.state();
        let is_open = |connection: &&Connection| !connection.is_closed;
        state.connections.iter().filter(is_open).count()
    }

    /// The commands that it has read, in their order: `SET a`, `EXTEND a`, `RELEASE a`, `AUTH user word`.
    /// A key or token of equal letters shows one of them. What every connection begins with is left out.
    pub(crate) fn heard(&self) -> Vec<String> {
        let mut heard = self.heard_all();
        heard.retain(|name| !is_preface(name));
        heard
    }

    /// All that it has read: also `NODE_INFO`, and `LOAD 0` and on, with which connections begin.
    pub(crate) fn heard_all(&self) -> Vec<String> {
        let state = self.state();
        state.heard.iter().map(|(_, name)| name.clone()).collect()
    }

    /// Those of them that came over one connection.
    pub(crate) fn heard_on(&self, connection: usize) -> Vec<String> {
        let state = self.state();
        let heard = state.heard.iter();
        let heard = heard.filter(|(on, name)| *on == connection && !is_preface(name));
        heard.map(|(_, name)| name.clone()).collect()
    }

    /// What it answered to that command the last time.
    pub(crate) fn answer_to(&self, command: &str) -> Option<Vec<u8>> {
        self.state().answers.get(command).cloned()
    }

    /// The token in `key`.
    pub(crate) fn token(&self, key: &[u8]) -> Option<Vec<u8>> {
        let now = self.world.clock.now();
        let key = (0, key.to_vec());
        self.state().find(&key, now).cloned()
    }

    /// When `key` ends.
    #[cfg(feature = "min-hold")]
    pub(crate) fn end_of(&self, key: &[u8]) -> Option<Instant> {
        let state = self.state();
        state.keys.get(&(0, key.to_vec())).map(|(_, until)| *until)
    }

    /// Accepts a client that comes over another stream than a [`Wire`]. Returns the number of its connection.
    #[cfg(any(feature = "embassy-net", feature = "embassy-net-ip"))]
    pub(crate) fn accept(&self) -> usize {
        let mut state = self.state();
        state.connections.push(Connection::default());
        state.connections.len() - 1
    }

    /// Reads `bytes` from this connection.
    #[cfg(any(feature = "embassy-net", feature = "embassy-net-ip"))]
    pub(crate) fn read(&self, number: usize, bytes: &[u8]) {
        let mut state = self.state();
        state.connections[number].inbox.extend(bytes);
        state.work(number, self.world.clock.now());
    }

    /// Takes the answers that are to be sent on this connection.
    #[cfg(any(feature = "embassy-net", feature = "embassy-net-ip"))]
    pub(crate) fn take_answers(&self, number: usize) -> Vec<u8> {
        self.state().connections[number].outbox.drain(..).collect()
    }

    /// Records that the client has ended this connection.
    #[cfg(any(feature = "embassy-net", feature = "embassy-net-ip"))]
    pub(crate) fn end(&self, number: usize) {
        self.state().connections[number].is_closed = true;
    }

    /// Whether the server has ended this connection.
    #[cfg(any(feature = "embassy-net", feature = "embassy-net-ip"))]
    pub(crate) fn has_ended(&self, number: usize) -> bool {
        self.state().connections[number].has_ended
    }

    /// From now on, this command ends the connection, as at a proxy that does not know it.
    #[cfg(feature = "queue")]
    pub(crate) fn close_on(&self, command: &'static str) {
        self.state().closes_on = Some(command);
    }

    fn state(&self) -> RefMut<'_, State> {
        self.state.borrow_mut()
    }
}

impl State {
    /// Carries out the whole commands that stand in the inbox of a connection.
    fn work(&mut self, number: usize, now: Instant) {
        while !self.is_hung
            && let Some(connection) = self.connections.get_mut(number)
            && !connection.has_ended
            && let Some(words) = take_command(&mut connection.inbox)
        {
            let name = name(&words);
            if self
                .closes_on
                .is_some_and(|command| words[0] == command.as_bytes())
            {
                self.connections[number].has_ended = true;
                self.heard.push((number, name));
                return;
            }
            #[cfg(feature = "queue")]
            let refusal = self.refuses_releases.filter(|_| {
                ["LEAVE", "RELEASE"]
                    .iter()
                    .any(|verb| name.starts_with(verb))
            });
            #[cfg(not(feature = "queue"))]
            let refusal: Option<&str> = None;
            let answer = match self.scripted.front() {
                _ if refusal.is_some() => refusal.unwrap_or_default().into(),
                Some(_) if !is_preface(&name) => self.scripted.pop_front().unwrap_or_default(),
                _ => self.answer(number, &words, now),
            };
            self.connections[number].outbox.extend(&answer);
            self.answers.insert(name.clone(), answer);
            self.heard.push((number, name));
        }
    }

    fn answer(&mut self, number: usize, words: &[Vec<u8>], now: Instant) -> Vec<u8> {
        let connection = &mut self.connections[number];
        let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
        let number_of = |word: &[u8]| str::from_utf8(word).unwrap().parse::<u64>().unwrap();
        match (words.as_slice(), self.password) {
            ([b"AUTH", login @ ..], Some((user, password))) => {
                let (given_user, given_password) = match login {
                    [password] => (b"default".as_slice(), *password),
                    [user, password] => (*user, *password),
                    _ => panic!("AUTH with {} words", login.len()),
                };
                connection.is_in =
                    given_user == user.as_bytes() && given_password == password.as_bytes();
                return if connection.is_in {
                    b"+OK\r\n".to_vec()
                } else {
                    b"-WRONGPASS invalid username-password pair or user is disabled.\r\n".to_vec()
                };
            }
            (_, Some(_)) if !connection.is_in => {
                return b"-NOAUTH Authentication required.\r\n".to_vec();
            }
            _ => {}
        }
        let database = connection.database;
        match words.as_slice() {
            [b"SELECT", number] => match u16::try_from(number_of(number)).unwrap() {
                number @ 0..16 => {
                    connection.database = number;
                    b"+OK\r\n".to_vec()
                }
                _ => b"-ERR DB index is out of range\r\n".to_vec(),
            },
            [b"CLIENT", b"SETNAME", _] => b"+OK\r\n".to_vec(),
            [b"HELLO", b"3"] => {
                b"%2\r\n$6\r\nserver\r\n$5\r\nredis\r\n$7\r\nmodules\r\n*0\r\n".to_vec()
            }
            [b"SUBSCRIBE", channel] => {
                let name = channel.escape_ascii();
                format!(">3\r\n$9\r\nsubscribe\r\n$29\r\n{name}\r\n:1\r\n").into_bytes()
            }
            [b"PUBLISH", _, b""] => [&message(b"")[..], b":1\r\n"].concat(),
            [b"SET", key, token, b"NX", b"PX", ttl] => {
                let key = (database, key.to_vec());
                if self.find(&key, now).is_some() {
                    return b"$-1\r\n".to_vec();
                }
                let until = now.saturating_add(Duration::from_millis(number_of(ttl)));
                self.keys.insert(key, (token.to_vec(), until));
                b"+OK\r\n".to_vec()
            }
            [b"EVAL", script, b"1", b"redlock:guard"] if is_question(script) => {
                self.node_info.clone()
            }
            [b"SCRIPT", b"LOAD", text] => self.scripts.load(text),
            [b"EVALSHA", script, _, key, arguments @ ..] => {
                let holder = (database, key.to_vec());
                let now_key = self.find(&holder, now).cloned();
                let (answer, change) = self.scripts.call(script, now_key, arguments, now);
                match change {
                    Change::Nothing => {}
                    Change::Set(token, ttl_ms) => {
                        let until = now.saturating_add(Duration::from_millis(ttl_ms));
                        self.keys.insert(holder, (token, until));
                    }
                    Change::Delete => drop(self.keys.remove(&holder)),
                }
                answer
            }
            [b"EVAL", script, b"1", key, token, ttl @ ..] => {
                let key = (database, key.to_vec());
                let kept = [token, Token::KEPT.as_bytes()].concat();
                let holder = self.find(&key, now);
                let is_kept_again = is_script(script, KEEP) && holder == Some(&kept);
                if holder.map(Vec::as_slice) != Some(*token) && !is_kept_again {
                    return b":0\r\n".to_vec();
                }
                match ttl {
                    [] if is_script(script, &release(A)) => drop(self.keys.remove(&key)),
                    [ttl] if is_script(script, &extend(A)) => {
                        let until = now.saturating_add(Duration::from_millis(number_of(ttl)));
                        self.keys.insert(key, (token.to_vec(), until));
                    }
                    [rest] if is_script(script, KEEP) => {
                        let until = now.saturating_add(Duration::from_millis(number_of(rest)));
                        self.keys.insert(key, (kept, until));
                    }
                    _ => panic!("an unknown script"),
                }
                b":1\r\n".to_vec()
            }
            [b"EVAL", script, b"2", key, _, token, _] if is_release_from_outside(script) => {
                let key = (database, key.to_vec());
                if self.find(&key, now).map(Vec::as_slice) != Some(*token) {
                    return b":0\r\n".to_vec();
                }
                drop(self.keys.remove(&key));
                b":1\r\n".to_vec()
            }
            _ => panic!(
                "what command is {}?",
                name(&words.iter().map(|word| word.to_vec()).collect::<Vec<_>>())
            ),
        }
    }

    fn find(&self, key: &(u16, Vec<u8>), now: Instant) -> Option<&Vec<u8>> {
        let (token, until) = self.keys.get(key)?;
        (now < *until).then_some(token)
    }
}

/// The identity that a node reports.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Who {
    pub(crate) run_id: u64,
    pub(crate) replication_id: u64,
    pub(crate) uptime_s: u64,
    pub(crate) is_master: bool,
    pub(crate) may_evict: bool,
    pub(crate) vouched_ms: i64,
}

impl Default for Who {
    fn default() -> Self {
        Self::MASTER
    }
}

impl Who {
    /// It has been running for eleven days.
    pub(crate) const MASTER: Self = Self {
        run_id: 1,
        replication_id: 7,
        uptime_s: 1_000_000,
        is_master: true,
        may_evict: false,
        vouched_ms: 0,
    };

    fn answer(self) -> Vec<u8> {
        let traits = 4 * self.uptime_s + 2 * u64::from(self.is_master) + u64::from(!self.may_evict);
        let Self {
            run_id,
            replication_id,
            vouched_ms,
            ..
        } = self;
        format!("*4\r\n:{run_id}\r\n:{replication_id}\r\n:{traits}\r\n:{vouched_ms}\r\n")
            .into_bytes()
    }
}

/// What a client gets that has subscribed, for this payload.
pub(crate) fn message(payload: &[u8]) -> Vec<u8> {
    let head = format!(">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n${}\r\n", payload.len());
    [head.as_bytes(), payload, b"\r\n"].concat()
}

fn is_question(script: &[u8]) -> bool {
    NodeInfo::question().nth(1) == Some(Argument::Bytes(script))
}

/// Whether connections begin with it, whatever comes then.
fn is_preface(name: &str) -> bool {
    name == "NODE_INFO" || name.starts_with("LOAD ")
}

/// Without the feature `min-hold`, its script is that of an extension.
const KEEP: &Command<'_> = &Command::keep(KEY, A, 1);

fn is_script(script: &[u8], command: &Command<'_>) -> bool {
    command.arguments(ScriptCall::Text).nth(1) == Some(Argument::Bytes(script))
}

#[cfg(feature = "queue")]
fn is_release_from_outside(script: &[u8]) -> bool {
    let command = release(A).with_place(Some(Place::outside(225)));
    command.arguments(ScriptCall::ShortText).nth(1) == Some(Argument::Bytes(script))
}

#[cfg(not(feature = "queue"))]
const fn is_release_from_outside(_script: &[u8]) -> bool {
    false
}

/// Takes one command from the front, if it is there to its end.
fn take_command(inbox: &mut Vec<u8>) -> Option<Vec<Vec<u8>>> {
    let mut rest = inbox.as_slice();
    let count = take_header(&mut rest, b'*')?;
    let mut words = Vec::new();
    for _ in 0..count {
        let len = take_header(&mut rest, b'$')?;
        let word = rest.get(..len)?;
        let end = rest.get(len..len + 2)?;
        assert_eq!(end, b"\r\n", "a word ends where it says");
        words.push(word);
        rest = &rest[len + 2..];
    }
    let words = words.into_iter().map(<[u8]>::to_vec).collect();
    *inbox = rest.to_vec();
    Some(words)
}

fn take_header(rest: &mut &[u8], kind: u8) -> Option<usize> {
    let first = rest.first()?;
    assert_eq!(*first, kind, "{} is no command", rest.escape_ascii());
    let end = rest.iter().position(|byte| *byte == b'\r')?;
    let digits = str::from_utf8(&rest[1..end]).unwrap();
    let number = digits.parse().unwrap();
    let rest_of_it = rest.get(end + 2..)?;
    assert_eq!(rest[end + 1], b'\n');
    *rest = rest_of_it;
    Some(number)
}

fn name(words: &[Vec<u8>]) -> String {
    let short = |word: &Vec<u8>| match word.as_slice() {
        [first, rest @ ..] if rest.len() > 4 && rest.iter().all(|byte| byte == first) => {
            char::from(*first).to_string()
        }
        word => word.escape_ascii().to_string(),
    };
    let verb = match words.get(1) {
        Some(script) if is_question(script) => return "NODE_INFO".to_owned(),
        Some(load) if load == b"LOAD" => return format!("LOAD {}", Scripts::number_of(&words[2])),
        Some(sha1) if words[0] == b"EVALSHA" => return Scripts::name(sha1, &words[3..]),
        Some(script) if is_script(script, &extend(A)) => "EXTEND".to_owned(),
        Some(script) if is_script(script, &release(A)) => "RELEASE".to_owned(),
        Some(script) if is_script(script, KEEP) => "KEEP".to_owned(),
        Some(script) if is_release_from_outside(script) => {
            return format!("GO {}", short(&words[5]));
        }
        _ => short(&words[0]),
    };
    let key = |at: usize| match short(&words[at]) {
        key if key == "dock-7" => String::new(),
        key => format!("{key} "),
    };
    match verb.as_str() {
        "SET" => format!("SET {}{}", key(1), short(&words[2])),
        "EXTEND" | "RELEASE" | "KEEP" => format!("{verb} {}{}", key(3), short(&words[4])),
        _ => words.iter().map(short).collect::<Vec<_>>().join(" "),
    }
}

/// A stream to a [`Server`].
pub(crate) struct Wire<'w> {
    server: &'w Server<'w>,
    connection: Option<usize>,
    attempted_at: Option<Instant>,
    has_waited: bool,
    closing_since: Option<Instant>,
}

/// Which way bytes go, for taking turns.
#[derive(Clone, Copy)]
enum Way {
    Read,
    Write,
    Flush,
}

impl Wire<'_> {
    /// Lets `go` do its part on an open connection; `None` of it is a wait.
    async fn go<R>(
        &self,
        way: Way,
        is_due: impl Fn(&State, &Connection) -> bool,
        go: impl Fn(&mut State, usize) -> R,
    ) -> R {
        poll_fn(|_cx| {
            let mut state = self.server.state();
            let number = self.connection.unwrap();
            if !is_due(&state, &state.connections[number]) {
                return Poll::Pending;
            }
            self.server.world.stir();
            let stutters = state.stutters;
            let turn = &mut state.connections[number].turns[way as usize];
            *turn = !*turn;
            if stutters && *turn {
                return Poll::Pending;
            }
            Poll::Ready(go(&mut state, number))
        })
        .await
    }
}

impl Connect for Wire<'_> {
    fn name(&self) -> NodeName {
        "wire".into()
    }

    async fn connect(&mut self) -> Result<(), ErrorKind> {
        let world = self.server.world;
        if let Some(number) = self.connection.take() {
            self.server.state().connections[number].is_closed = true;
        }
        self.closing_since = None;
        let attempted_at = *self.attempted_at.get_or_insert_with(|| {
            let now = world.clock.now();
            self.server.state().attempts.push(now);
            now
        });
        if self.server.state().stutters && !self.has_waited {
            self.has_waited = true;
            world.stir();
            yield_now().await;
        }
        let entry = self.server.state().entry;
        let connected = match entry {
            Entry::After(delay) => {
                let until = attempted_at.saturating_add(delay);
                world.clock.sleep_until(until).await;
                let mut state = self.server.state();
                self.connection = Some(state.connections.len());
                state.connections.push(Connection::default());
                Ok(())
            }
            Entry::Refused(kind) => Err(kind),
            Entry::Nothing => core::future::pending().await,
        };
        self.attempted_at = None;
        self.has_waited = false;
        connected
    }

    fn logged_in(&mut self) {
        self.server.state().logins += 1;
    }

    async fn close(&mut self) {
        let world = self.server.world;
        self.attempted_at = None;
        self.has_waited = false;
        let Some(number) = self.connection else {
            return;
        };
        self.server.state().connections[number].is_closed = true;
        let since = *self.closing_since.get_or_insert_with(|| world.clock.now());
        let until = since.saturating_add(self.server.state().close_time);
        world.clock.sleep_until(until).await;
        self.connection = None;
        self.closing_since = None;
    }
}

impl ErrorType for Wire<'_> {
    type Error = ErrorKind;
}

impl Read for Wire<'_> {
    async fn read(&mut self, buffer: &mut [u8]) -> Result<usize, ErrorKind> {
        if self.connection.is_none() {
            return Ok(0);
        }
        let len = buffer.len();
        let clock = &self.server.world.clock;
        let read = self.go(
            Way::Read,
            |state, connection| {
                !connection.outbox.is_empty() || connection.has_ended || state.flood.is_some()
            },
            |state, number| {
                let connection = &mut state.connections[number];
                if let Some(flood) = &state.flood {
                    // Reading takes time, and no other time passes while there is something to read.
                    clock.advance(Duration::from_micros(10));
                    connection.outbox.extend(flood);
                }
                let count = len.min(state.chunk).min(connection.outbox.len());
                connection.outbox.drain(..count).collect::<Vec<_>>()
            },
        );
        let bytes = read.await;
        buffer[..bytes.len()].copy_from_slice(&bytes);
        Ok(bytes.len())
    }
}

impl Write for Wire<'_> {
    async fn write(&mut self, bytes: &[u8]) -> Result<usize, ErrorKind> {
        let now = self.server.world.clock.now();
        if self.connection.is_none() {
            return Err(ErrorKind::NotConnected);
        }
        self.go(
            Way::Write,
            |state, connection| state.room > 0 || connection.has_ended,
            |state, number| {
                let needs_flush = state.needs_flush;
                let count = bytes.len().min(state.chunk).min(state.room);
                let connection = &mut state.connections[number];
                if connection.has_ended {
                    return Err(ErrorKind::ConnectionReset);
                }
                connection.buffered.extend_from_slice(&bytes[..count]);
                if state.room < usize::MAX {
                    state.room -= count;
                }
                if !needs_flush {
                    let leaving = core::mem::take(&mut connection.buffered);
                    connection.inbox.extend(leaving);
                    state.work(number, now);
                }
                Ok(count)
            },
        )
        .await
    }

    async fn flush(&mut self) -> Result<(), ErrorKind> {
        let now = self.server.world.clock.now();
        if self.connection.is_none() {
            return Err(ErrorKind::NotConnected);
        }
        self.go(
            Way::Flush,
            |state, _| !state.flushes_hang,
            |state, number| {
                let connection = &mut state.connections[number];
                let leaving = core::mem::take(&mut connection.buffered);
                connection.inbox.extend(leaving);
                state.work(number, now);
                Ok(())
            },
        )
        .await
    }
}

impl core::fmt::Debug for Wire<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Wire")
            .field("connection", &self.connection)
            .finish_non_exhaustive()
    }
}
