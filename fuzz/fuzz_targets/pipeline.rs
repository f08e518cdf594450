//! The pipeline, given operations in any order, beside a model that knows what should be: which bytes are
//! still to be sent, how many replies are owed, and whose the reply is that is given.

#![no_main]

use std::collections::VecDeque;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use redlock_core::transport::Argument;
use redlock_embassy::mail::Mail;
use redlock_embassy::pipeline::{Pipeline, Refused};
use redlock_embassy::resp::{Malformed, Value};
use redlock_embassy::resp3::{Decoder, Event};

const TX: usize = 64;
const RX: usize = 16;

#[derive(Debug, Arbitrary)]
enum Operation {
    Push {
        word: u8,
        number: u64,
    },
    /// A command of any length, of which so many pieces are sent one by one.
    Feed {
        word: u8,
        number: u64,
    },
    Sent {
        count: u8,
    },
    /// The reply to the command that has waited for the longest, or a piece of it. Messages may come before it.
    Reply {
        piece: u8,
    },
    /// Whatever the node may send, messages among it.
    Received {
        bytes: Vec<u8>,
    },
    TakeReply,
}

fuzz_target!(|operations: Vec<Operation>| {
    let mut world = World::default();
    for operation in operations {
        world.perform(operation);
    }
});

#[derive(Default)]
struct World {
    pipeline: Pipeline<TX, RX>,
    model: Model,
}

#[derive(Default)]
struct Model {
    unsent: VecDeque<u8>,
    decoder: Decoder,
    /// How many commands were taken, and how many were answered.
    asked: u64,
    answered: u64,
    /// What is on its way of the reply to the one that is next.
    coming: VecDeque<u8>,
    reply: Option<Value>,
    /// Whether the last command was fed.
    is_fed: bool,
}

impl World {
    fn perform(&mut self, operation: Operation) {
        match operation {
            Operation::Push { word, number } => self.push(word, number),
            Operation::Feed { word, number } => self.feed(word, number),
            Operation::Sent { count } => {
                self.pipeline.sent(count.into());
                let unsent = &mut self.model.unsent;
                unsent.drain(..unsent.len().min(count.into()));
            }
            Operation::Reply { piece } => {
                let bytes = self.model.reply_piece(piece.into());
                self.receive(&bytes);
            }
            Operation::Received { bytes } => {
                for piece in bytes.chunks(RX) {
                    if !self.receive(piece) {
                        break;
                    }
                }
            }
            Operation::TakeReply => {
                assert_eq!(self.pipeline.take_reply(), self.model.reply.take());
            }
        }
        assert!(self.pipeline.unsent().iter().eq(&self.model.unsent));
        assert_eq!(u64::from(self.pipeline.outstanding()), self.model.owed());
    }

    fn push(&mut self, word: u8, number: u64) {
        let letters = vec![b'a' + word % 26; usize::from(word % 80)];
        let words = [Argument::Bytes(&letters), Argument::Integer(number)];
        let wire = wire(&letters, number);
        let expected = if wire.len() > TX {
            Err(Refused::TooLong)
        } else if wire.len() + self.model.unsent.len() > TX
            || self.model.owed() == u64::from(Pipeline::<TX, RX>::OUTSTANDING_MAX)
        {
            Err(Refused::Full)
        } else {
            self.model.unsent.extend(wire.bytes());
            self.model.asked += 1;
            self.model.reply = None;
            self.model.is_fed = false;
            Ok(())
        };
        assert_eq!(self.pipeline.push(words.into_iter()), expected);
    }

    fn feed(&mut self, word: u8, number: u64) {
        let letters = vec![b'a' + word % 26; usize::from(word)];
        let words = [Argument::FenceKey(&letters), Argument::Integer(number)];
        let prefixed = [redlock_core::FENCE_KEY_PREFIX.as_bytes(), &letters].concat();
        let wire = wire(&prefixed, number);
        if self.model.owed() == u64::from(Pipeline::<TX, RX>::OUTSTANDING_MAX) {
            assert_eq!(self.pipeline.feed(words.into_iter(), 0), Some(0));
            return;
        }
        // Behind what is waiting already; then everything leaves, so that there is room for the next piece.
        let mut from = 0;
        loop {
            let before = self.pipeline.unsent().len();
            let so_far = self.pipeline.feed(words.into_iter(), from);
            let fed = self.pipeline.unsent()[before..].to_vec();
            assert_eq!(fed, wire.as_bytes()[from..from + fed.len()]);
            from += fed.len();
            assert!(so_far.unwrap_or(wire.len()) == from && from <= wire.len());
            let Some(_) = so_far else {
                self.model.unsent = self.pipeline.unsent().iter().copied().collect();
                break;
            };
            self.pipeline.sent(usize::MAX);
        }
        self.model.asked += 1;
        self.model.reply = None;
        self.model.is_fed = true;
    }

    /// Says whether the connection is still of use; if not, there is a new one.
    fn receive(&mut self, piece: &[u8]) -> bool {
        self.pipeline.room()[..piece.len()].copy_from_slice(piece);
        let received = self.pipeline.received(piece.len(), &mut Mail::new());
        assert_eq!(received, self.model.receive(piece));
        if received.is_err() {
            *self = Self::default();
        }
        received.is_ok()
    }
}

fn wire(letters: &[u8], number: u64) -> String {
    let number = number.to_string();
    format!(
        "*2\r\n${}\r\n{}\r\n${}\r\n{number}\r\n",
        letters.len(),
        letters.escape_ascii(),
        number.len(),
    )
}

const MESSAGE: &[u8] = b">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$5\r\n1dock\r\n";

impl Model {
    fn owed(&self) -> u64 {
        self.asked - self.answered
    }

    /// Up to `len` bytes of what the node says next; nothing when nobody waits for it.
    fn reply_piece(&mut self, len: usize) -> Vec<u8> {
        if self.coming.is_empty() && self.owed() > 0 {
            if self.answered.is_multiple_of(3) {
                self.coming.extend(MESSAGE);
            }
            self.coming
                .extend(format!(":{}\r\n", self.answered).bytes());
        }
        let len = len.min(self.coming.len()).min(RX);
        self.coming.drain(..len).collect()
    }

    fn receive(&mut self, mut piece: &[u8]) -> Result<(), Malformed> {
        while let Some(event) = self.decoder.decode(&mut piece)? {
            // No client has subscribed, so no other event is an answer.
            let Event::Reply(value) = event else {
                continue;
            };
            if self.owed() == 0 {
                return Err(Malformed);
            }
            self.answered += 1;
            // Of commands that were fed, all but the last are answered with OK, or the connection is of no use any more.
            if self.is_fed && self.owed() > 0 && value != Value::Ok {
                self.reply = Some(value);
                break;
            }
            if self.owed() == 0 {
                self.reply = Some(value);
            }
        }
        Ok(())
    }
}
