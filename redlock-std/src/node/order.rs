//! A command in the queue of a node.

use std::fmt;
use std::sync::{Arc, PoisonError};

use redlock_core::transport::{Command, OwnedCommand, ScriptCall};

use super::request;
use crate::sync::Mutex;

/// A command that owns its key, and the bytes by which it is sent. A clone is cheap.
#[derive(Clone)]
pub(crate) struct Order(Arc<Parts>);

struct Parts {
    command: OwnedCommand<Arc<[u8]>>,
    /// The command with the hash of its script. Empty if its key is long: there may be a million orders, and they contain the key
    /// up to three times.
    bytes: Vec<u8>,
}

/// The longest key of an order that is written once.
const LONG_KEY: usize = 128;

impl Order {
    fn new(command: OwnedCommand<Arc<[u8]>>) -> Self {
        /// Enough for a key of usual length, so that the bytes take one allocation.
        const BYTES: usize = 256;

        let mut bytes = Vec::new();
        if command.command().key.len() <= LONG_KEY {
            bytes.reserve(BYTES);
            request::write(command.command().arguments(ScriptCall::Hash), &mut bytes);
        }
        Self(Arc::new(Parts { command, bytes }))
    }

    pub(crate) fn command(&self) -> Command<'_> {
        self.0.command.command()
    }

    /// Appends the bytes of the command.
    pub(crate) fn append_to(&self, call: ScriptCall, bytes: &mut Vec<u8>) {
        match call {
            ScriptCall::Hash if !self.0.bytes.is_empty() => bytes.extend_from_slice(&self.0.bytes),
            call => request::write(self.command().arguments(call), bytes),
        }
    }
}

impl From<&Command<'_>> for Order {
    fn from(command: &Command<'_>) -> Self {
        Self::new(command.into())
    }
}

/// Without the bytes: the token is among them.
impl fmt::Debug for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.command().fmt(f)
    }
}

/// The lock that an operation wants. The handles of all its nodes share it: what a round sends to them is nearly always the same, so
/// it is written once.
#[derive(Debug)]
pub(crate) struct Wanted {
    key: Arc<[u8]>,
    last: Mutex<Option<Order>>,
}

impl Wanted {
    pub(crate) fn new(key: Arc<[u8]>) -> Arc<Self> {
        Arc::new(Self {
            key,
            last: Mutex::new(None),
        })
    }

    pub(crate) const fn key(&self) -> &Arc<[u8]> {
        &self.key
    }

    /// Returns `command`, a command for this lock, as it is queued.
    pub(super) fn order(&self, command: &Command<'_>) -> Order {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        match &*last {
            Some(order) if order.command() == *command => order.clone(),
            _ => {
                let owned = OwnedCommand::with_key(command, Arc::clone(&self.key));
                last.insert(Order::new(owned)).clone()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use redlock_core::Token;
    use redlock_core::transport::VoteConditions;

    use super::*;

    const TOKEN: &Token = &Token::from_bytes([0x5e; Token::LEN]);

    fn sent(order: &Order, call: ScriptCall) -> Vec<u8> {
        let mut bytes = Vec::new();
        order.append_to(call, &mut bytes);
        bytes
    }

    #[test]
    fn the_nodes_of_a_round_share_what_is_the_same_for_them_and_nothing_else() {
        let key: Arc<[u8]> = b"dock-7"[..].into();
        let other = Token::from_bytes([0x5f; Token::LEN]);
        let wanted = Wanted::new(Arc::clone(&key));
        let commands = [
            Command::acquire(&key, TOKEN, 10_000, VoteConditions::NONE),
            Command::acquire(&key, TOKEN, 10_001, VoteConditions::NONE),
            Command::acquire(&key, &other, 10_001, VoteConditions::NONE),
            Command::extend(&key, TOKEN, 10_000),
            Command::release(&key, TOKEN),
        ];
        for command in commands.iter().chain(&commands) {
            let [one, two] = [wanted.order(command), wanted.order(command)];
            assert!(Arc::ptr_eq(&one.0, &two.0));
            for call in [ScriptCall::Hash, ScriptCall::Text] {
                assert_eq!(sent(&one, call), sent(&Order::from(command), call));
            }
        }
    }

    #[test]
    fn a_long_key_is_kept_once() {
        for (length, is_kept) in [(LONG_KEY, true), (LONG_KEY + 1, false)] {
            let key = vec![b'k'; length];
            let command = Command::release(&key, TOKEN);
            let order = Order::from(&command);
            assert_eq!(!order.0.bytes.is_empty(), is_kept);
            let mut expected = Vec::new();
            request::write(command.arguments(ScriptCall::Hash), &mut expected);
            assert_eq!(sent(&order, ScriptCall::Hash), expected);
        }
    }

    #[test]
    fn debug_shows_no_token() {
        let order = Order::from(&Command::release(b"dock-7", TOKEN));
        let shown = format!("{order:?}");
        assert!(!shown.contains("94, 94, 94"), "{shown}");
        assert!(!shown.contains("5e5e5e5e5e5e5e5e5e"), "{shown}");
    }
}
