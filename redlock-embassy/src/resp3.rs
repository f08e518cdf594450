//! The part of RESP3 that a connection needs on which a node calls its client: messages between the replies.

use crate::mail::Message;
use crate::resp::{self, Malformed, REPLY_MAX, Rejection, Value};

/// A decoder of replies and messages, for input that is cut anywhere.
///
/// A message that no lock needs is skipped, however long it is: any client of the node can send one, which must not end the
/// connection. A client that waits for a reply behind it loses patience. Before the subscription, only [`REPLY_MAX`] bytes may
/// come without a reply.
#[derive(Debug)]
pub struct Decoder {
    replies: resp::Decoder,
    /// The value that `replies` cannot decode, and that has begun.
    other: Option<Other>,
    message: Message,
    /// The number of bytes since the last reply that belong to none. Not counted behind a subscription.
    skipped: u16,
    is_subscribed: bool,
}

/// What the decoder has found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// A reply.
    Reply(Value),
    /// The node has subscribed this connection to a channel.
    Subscribed,
    /// A message to a channel. [`Decoder::message`] returns it.
    Message,
}

impl Decoder {
    /// A decoder for a new connection.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            replies: resp::Decoder::new(),
            other: None,
            message: Message::new(),
            skipped: 0,
            is_subscribed: false,
        }
    }

    /// The last message, until the next one begins.
    #[must_use]
    pub const fn message(&self) -> &Message {
        &self.message
    }

    /// Removes the bytes of one event from the front of `input`, and returns the event. If it is not complete, removes all
    /// bytes and returns `None`.
    ///
    /// # Errors
    ///
    /// Fails if the bytes are not valid. The decoder is then no longer usable.
    pub fn decode(&mut self, input: &mut &[u8]) -> Result<Option<Event>, Malformed> {
        while let Some((byte, rest)) = input.split_first() {
            if self.other.is_none() && self.replies.is_between_replies() {
                self.other = Other::begin(*byte);
            }
            let Some(other) = &mut self.other else {
                let reply = self.replies.decode(input)?.map(Event::Reply);
                if reply.is_some() {
                    self.skipped = 0;
                }
                return Ok(reply);
            };
            *input = rest;
            if !self.is_subscribed && matches!(other.kind, Kind::Push | Kind::Attribute) {
                self.skipped = self.skipped.saturating_add(1);
                if self.skipped > REPLY_MAX {
                    return Err(Malformed);
                }
            }
            let is_whole = other.take(*byte, &mut self.message)?;
            if is_whole && let Some(event) = self.other.take().and_then(|other| other.event()) {
                self.is_subscribed |= event == Event::Subscribed;
                return Ok(Some(event));
            }
        }
        Ok(None)
    }
}

impl Default for Decoder {
    fn default() -> Self {
        Self::new()
    }
}

/// A value of RESP3 that has begun, with its elements.
#[derive(Debug)]
struct Other {
    kind: Kind,
    state: State,
    /// The number of missing values: this one or its elements, nested ones included.
    missing: u32,
    /// If this is a push: the element that is next.
    field: Field,
    /// The first bytes of the name of a push, or of an error.
    text: Rejection,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// What a node sends between replies.
    Push,
    /// What a node says about the reply that follows.
    Attribute,
    /// A reply.
    Reply,
    /// A reply that is an error.
    Error,
}

/// The elements of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Field {
    /// Before the first element.
    Head,
    Name,
    Channel,
    Payload,
    /// There is no other element.
    End,
    /// The push is no message, because it has other elements.
    Unknown,
}

#[derive(Debug, Clone, Copy)]
enum State {
    /// Before the first byte of the outermost value.
    Start,
    /// Before the first byte of an element.
    Element,
    /// In a line without a meaning.
    Line,
    /// In a length. `None` before its first digit.
    Length { of: Length, value: Option<u32> },
    /// After the minus of a length: the value is a null.
    Null,
    /// After the carriage return behind a length.
    LengthEnd { of: Length, value: u32 },
    /// In a string; this number of bytes is missing.
    String(u32),
    /// After a string.
    StringEnd,
    /// After the carriage return at the end of a value.
    LineEnd,
}

/// What a length is the length of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Length {
    String,
    /// Each element counts once.
    List,
    /// Each element is a pair.
    Map,
}

impl Other {
    /// The value that begins with `byte`. `None` if RESP2 has it too.
    const fn begin(byte: u8) -> Option<Self> {
        let kind = match byte {
            b'>' => Kind::Push,
            b'|' => Kind::Attribute,
            b'!' => Kind::Error,
            b'%' | b'~' | b'#' | b',' | b'(' | b'=' => Kind::Reply,
            _ => return None,
        };
        Some(Self {
            kind,
            state: State::Start,
            missing: 1,
            field: Field::Head,
            text: Rejection::EMPTY,
        })
    }

    /// Takes the next byte. Returns whether the value is complete.
    fn take(&mut self, byte: u8, message: &mut Message) -> Result<bool, Malformed> {
        self.state = match (self.state, byte) {
            (State::Start | State::Element, byte) => self.start(byte, message)?,

            (State::Line | State::StringEnd, b'\r') => State::LineEnd,
            (State::Line, b'\n') => return Err(Malformed),
            (State::Line, _) => State::Line,

            (State::Length { value: None, .. }, b'-') => State::Null,
            (State::Null, b'1') => State::StringEnd,
            (State::Length { of, value }, b'0'..=b'9') => {
                let value = value.unwrap_or(0).checked_mul(10);
                let value = value.and_then(|value| value.checked_add((byte - b'0').into()));
                let value = Some(value.ok_or(Malformed)?);
                State::Length { of, value }
            }
            (
                State::Length {
                    of,
                    value: Some(value),
                },
                b'\r',
            ) => State::LengthEnd { of, value },
            (
                State::LengthEnd {
                    of: Length::String,
                    value,
                },
                b'\n',
            ) => string(value),
            (State::LengthEnd { of, value }, b'\n') => return self.enter(of, value),

            (State::String(missing), byte) => {
                self.keep(byte, message);
                string(missing.saturating_sub(1))
            }
            (State::LineEnd, b'\n') => {
                self.field = self.field.next();
                return Ok(self.end());
            }
            _ => return Err(Malformed),
        };
        Ok(false)
    }

    fn start(&mut self, byte: u8, message: &mut Message) -> Result<State, Malformed> {
        let is_outermost = matches!(self.state, State::Start);
        if byte != b'$' && !is_outermost {
            self.field = Field::Unknown;
        } else if self.field == Field::Payload {
            message.clear();
        }
        let length = |of| State::Length { of, value: None };
        Ok(match byte {
            b'+' | b'-' | b':' | b'_' | b'#' | b',' | b'(' => State::Line,
            b'$' | b'=' | b'!' => length(Length::String),
            b'*' | b'~' => length(Length::List),
            b'%' => length(Length::Map),
            b'>' if is_outermost => length(Length::List),
            b'|' => {
                // It is no element: the element follows.
                let own = u32::from(!is_outermost);
                self.missing = self.missing.checked_add(own).ok_or(Malformed)?;
                length(Length::Map)
            }
            _ => return Err(Malformed),
        })
    }

    /// Handles the beginning of a value with `count` elements. Returns whether the outermost value is complete.
    fn enter(&mut self, of: Length, count: u32) -> Result<bool, Malformed> {
        if self.field == Field::Head {
            self.field = match self.kind {
                Kind::Push if count == 3 => Field::Name,
                _ => Field::Unknown,
            };
        }
        let each = if of == Length::Map { 2 } else { 1 };
        let elements = count.checked_mul(each).ok_or(Malformed)?;
        self.missing = self.missing.checked_add(elements).ok_or(Malformed)?;
        Ok(self.end())
    }

    fn keep(&mut self, byte: u8, message: &mut Message) {
        match (self.kind, self.field) {
            (Kind::Error, _) | (_, Field::Name) => self.text.push(byte),
            (_, Field::Payload) => message.push(byte),
            _ => {}
        }
    }

    /// Handles the end of a value without elements, or of the length of another one. Returns whether the outermost value is
    /// complete.
    const fn end(&mut self) -> bool {
        self.state = State::Element;
        self.missing = self.missing.saturating_sub(1);
        self.missing == 0
    }

    fn event(&self) -> Option<Event> {
        match (self.kind, self.text.as_bytes(), self.field) {
            (Kind::Reply, ..) => Some(Event::Reply(Value::Other)),
            (Kind::Error, ..) => Some(Event::Reply(Value::Error(self.text))),
            (Kind::Push, b"subscribe", _) => Some(Event::Subscribed),
            (Kind::Push, b"message", Field::End) => Some(Event::Message),
            (Kind::Push | Kind::Attribute, ..) => None,
        }
    }
}

impl Field {
    const fn next(self) -> Self {
        match self {
            Self::Name => Self::Channel,
            Self::Channel => Self::Payload,
            Self::Payload => Self::End,
            Self::Head | Self::End | Self::Unknown => Self::Unknown,
        }
    }
}

const fn string(missing: u32) -> State {
    if missing == 0 {
        State::StringEnd
    } else {
        State::String(missing)
    }
}

#[cfg(test)]
mod tests;
