//! The floor of tokio: bare sockets. For each node, one task writes what all tasks have queued, and one reads.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::mem;
use std::sync::{Arc, Mutex};

use redis::Cmd;
use tokio::net::TcpStream;
use tokio::sync::Notify;

use super::{Node, Votes};

pub(crate) struct Socket(Arc<Connection>);

/// The bytes of a command.
pub(crate) struct Packed(Vec<u8>);

struct Connection {
    stream: TcpStream,
    state: Mutex<State>,
    queued: Notify,
}

#[derive(Default)]
struct State {
    unsent: Vec<u8>,
    unanswered: VecDeque<Arc<Votes>>,
}

impl From<Cmd> for Packed {
    fn from(command: Cmd) -> Self {
        Self(command.get_packed_command())
    }
}

impl Node for Socket {
    const NAME: &'static str = "tokio sockets";
    type Command = Packed;

    async fn connect(url: &str) -> Self {
        let address = url.strip_prefix("redis://").unwrap();
        let stream = TcpStream::connect(address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let connection = Arc::new(Connection {
            stream,
            state: Mutex::default(),
            queued: Notify::new(),
        });
        tokio::spawn(Arc::clone(&connection).write());
        tokio::spawn(Arc::clone(&connection).read());
        Self(connection)
    }

    fn send(&self, command: &Arc<Packed>, votes: &Arc<Votes>) {
        let mut state = self.0.state.lock().unwrap();
        state.unsent.extend_from_slice(&command.0);
        state.unanswered.push_back(Arc::clone(votes));
        drop(state);
        self.0.queued.notify_one();
    }
}

impl Connection {
    async fn write(self: Arc<Self>) {
        let mut bytes = Vec::new();
        loop {
            self.queued.notified().await;
            mem::swap(&mut bytes, &mut self.state.lock().unwrap().unsent);
            let mut unsent = &bytes[..];
            while !unsent.is_empty() {
                match self.stream.try_write(unsent) {
                    Ok(count) => unsent = &unsent[count..],
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {
                        self.stream.writable().await.unwrap();
                    }
                    // The run is over.
                    Err(_) => return,
                }
            }
            bytes.clear();
        }
    }

    /// Each reply is one line: `+OK`, a null or a number.
    async fn read(self: Arc<Self>) {
        let mut bytes = vec![0; 64 * 1024];
        let mut filled = 0;
        let mut answered = Vec::new();
        while self.stream.readable().await.is_ok() {
            match self.stream.try_read(&mut bytes[filled..]) {
                Ok(count) if count > 0 => filled += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
                _ => return,
            }
            let mut begin = 0;
            {
                let mut state = self.state.lock().unwrap();
                while let Some(length) = bytes[begin..filled].iter().position(|byte| *byte == b'\n')
                {
                    let line = &bytes[begin..begin + length];
                    let votes = state.unanswered.pop_front().unwrap();
                    answered.push((votes, matches!(line, b"+OK\r" | b":1\r")));
                    begin += length + 1;
                }
            }
            for (votes, is_yes) in answered.drain(..) {
                votes.count(is_yes);
            }
            bytes.copy_within(begin..filled, 0);
            filled -= begin;
        }
    }
}
