//! The part of the Redis protocol that a lock needs, without waiting and without an allocator. Every length is bounded.

use core::fmt;

use heapless::Vec;
use redlock_core::FENCE_KEY_PREFIX;
use redlock_core::transport::Argument;

/// The largest size of one reply in bytes, together with the pushes before it. A larger reply is an error.
pub const REPLY_MAX: u16 = 1024;

/// Returns how many bytes `arguments` take on the wire.
#[must_use]
pub fn encoded_len<'a>(arguments: impl ExactSizeIterator<Item = Argument<'a>>) -> usize {
    let mut len = 0_usize;
    encode(arguments, |bytes| len = len.saturating_add(bytes.len()));
    len
}

/// Writes `arguments` in pieces as one command, an array of bulk strings.
pub fn encode<'a>(
    arguments: impl ExactSizeIterator<Item = Argument<'a>>,
    mut put: impl FnMut(&[u8]),
) {
    put(Line::new().write(b'*', arguments.len() as u64));
    for argument in arguments {
        let mut number = Line::new();
        let (prefix, bytes) = match &argument {
            Argument::Bytes(bytes) => ("", *bytes),
            Argument::Integer(value) => match number.write(b':', *value) {
                [_, digits @ .., b'\r', b'\n'] => ("", digits),
                line => ("", line),
            },
            Argument::FenceKey(key) => (FENCE_KEY_PREFIX, *key),
            Argument::Line(word) => word.pieces(),
        };
        let len = prefix.len().saturating_add(bytes.len());
        for piece in [
            Line::new().write(b'$', len as u64),
            prefix.as_bytes(),
            bytes,
            Line::END,
        ] {
            put(piece);
        }
    }
}

/// A buffer for a line with the longest number: a letter, 20 digits, and the line end.
struct Line([u8; 23]);

impl Line {
    const END: &[u8] = b"\r\n";

    const fn new() -> Self {
        let mut line = [0; 23];
        line[21] = b'\r';
        line[22] = b'\n';
        Self(line)
    }

    /// Writes `letter` and `number` in decimal, from the end to the front.
    fn write(&mut self, letter: u8, mut number: u64) -> &[u8] {
        let mut start = self.0.len() - Self::END.len();
        let mut slots = self.0.iter_mut().rev().skip(Self::END.len());
        for slot in slots.by_ref() {
            *slot = decimal_digit(number);
            number /= 10;
            start -= 1;
            if number == 0 {
                break;
            }
        }
        if let Some(slot) = slots.next() {
            *slot = letter;
            start -= 1;
        }
        self.0.get(start..).unwrap_or_default()
    }
}

const fn decimal_digit(number: u64) -> u8 {
    b'0' + (number % 10) as u8
}

/// The answer of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum Value {
    /// The status `OK`.
    Ok,
    /// A null, in any of its forms.
    Nil,
    /// A number.
    Integer(i64),
    /// An array of four numbers and nothing else.
    Integers([i64; 4]),
    /// An error.
    Error(Rejection),
    /// Any other reply: a string, another array, another status. A lock needs none of its content.
    Other,
}

/// The first bytes of an error reply. The error code comes first.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Rejection {
    bytes: [u8; Self::LEN],
    len: u8,
    is_cut: bool,
}

impl Rejection {
    /// How many bytes of the error are kept.
    pub const LEN: usize = 32;

    pub(crate) const EMPTY: Self = Self {
        bytes: [0; Self::LEN],
        len: 0,
        is_cut: false,
    };

    /// The first bytes of the error, as the node sent them.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.len.into()).unwrap_or(&self.bytes)
    }

    /// The first word, which is the error code: `LOADING`, `NOAUTH`, `WRONGTYPE`.
    #[must_use]
    pub fn code(&self) -> &[u8] {
        let bytes = self.as_bytes();
        bytes.split(|byte| *byte == b' ').next().unwrap_or(bytes)
    }

    /// Whether the error is temporary, so that a later retry of the same command may succeed: the node cannot execute any
    /// such command at the moment, or does not accept this client at the moment.
    ///
    /// These are `LOADING`, `MASTERDOWN`, `CLUSTERDOWN`, `BUSY`, `READONLY`, `MISCONF`, `NOREPLICAS`, `NOAUTH`, `DENIED`, and
    /// `ERR max number of clients reached`.
    #[must_use]
    pub fn is_temporary(&self) -> bool {
        const PREFIXES: [[u8; 5]; 10] = [
            *b"LOADI", *b"MASTE", *b"CLUST", *b"BUSY ", *b"READO", *b"MISCO", *b"NOREP", *b"NOAUT",
            *b"DENIE", *b"ERR m",
        ];
        let prefix = self.as_bytes().first_chunk();
        prefix.is_some_and(|prefix| PREFIXES.contains(prefix))
    }

    /// Whether the user lacks the permission for the command.
    #[cfg(feature = "scripts")]
    pub(crate) fn is_about_permissions(&self) -> bool {
        self.code() == b"NOPERM"
    }

    pub(crate) fn push(&mut self, byte: u8) {
        if let Some(slot) = self.bytes.get_mut(usize::from(self.len)) {
            *slot = byte;
            self.len += 1;
        } else {
            self.is_cut = true;
        }
    }
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use fmt::Write;
        for byte in self.as_bytes() {
            f.write_char(match byte {
                b' '..=b'~' => char::from(*byte),
                _ => '?',
            })?;
        }
        f.write_str(match self.len {
            0 => "an error without a message",
            _ if self.is_cut => "..",
            _ => "",
        })
    }
}

impl fmt::Debug for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Rejection({self})")
    }
}

#[cfg(feature = "defmt")]
impl defmt::Format for Rejection {
    fn format(&self, f: defmt::Formatter<'_>) {
        defmt::write!(f, "{=[u8]:a}", self.as_bytes());
    }
}

/// The node sent something that is not a valid reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Malformed;

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not a valid Redis reply")
    }
}

impl core::error::Error for Malformed {}

/// A decoder of replies, for input that is cut anywhere.
///
/// It decodes RESP2, and the null and the pushes of RESP3. It skips pushes. After an error, the decoder is no longer usable,
/// because the start of the next reply is unknown.
#[derive(Debug)]
pub struct Decoder {
    state: State,
    /// The number of missing elements of the current array, nested arrays included.
    elements: u16,
    /// Whether the current array is a push, not a reply.
    is_push: bool,
    /// The number of bytes since the last reply.
    taken: u16,
    kept: Kept,
}

/// The kept part of an incomplete reply. An enum saves memory in each node.
#[derive(Debug)]
enum Kept {
    /// The start of a line of text. Empty if nothing is kept.
    Text(Rejection),
    /// The elements of an array of four, as long as all of them are numbers.
    Numbers(Vec<i64, 4>),
}

impl Kept {
    const NOTHING: Self = Self::Text(Rejection::EMPTY);
}

#[derive(Debug, Clone, Copy)]
enum State {
    /// Before the first byte.
    Start,
    /// In a line of text.
    Text(Text),
    /// In a line that is a number.
    Number { of: Number, value: Decimal },
    /// After the underscore of a null.
    Null,
    /// In a string; this many bytes are missing.
    Bulk(u16),
    /// After a string.
    BulkEnd,
    /// After the carriage return at the end of this element.
    LineEnd(Element),
}

#[derive(Debug, Clone, Copy)]
enum Text {
    Status,
    Error,
}

#[derive(Debug, Clone, Copy)]
enum Number {
    Integer,
    BulkLength,
    ArrayLength,
    PushLength,
}

/// The meaning of a line.
#[derive(Debug, Clone, Copy)]
enum Element {
    Whole(Simple),
    Bulk(u16),
    Array { elements: u16, is_push: bool },
}

/// A simple value. The text of an error is in [`Kept`].
#[derive(Debug, Clone, Copy)]
enum Simple {
    Ok,
    Nil,
    Integer(i64),
    Error,
    Other,
}

impl Decoder {
    /// A decoder for a new connection.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            state: State::Start,
            elements: 0,
            is_push: false,
            taken: 0,
            kept: Kept::NOTHING,
        }
    }

    /// Whether the next byte is the first one of a reply.
    #[cfg(feature = "queue")]
    pub(crate) const fn is_between_replies(&self) -> bool {
        self.taken == 0
    }

    /// Removes the bytes of one reply from the front of `input`, and returns the reply. If the reply is not complete,
    /// removes all bytes and returns `None`.
    ///
    /// # Errors
    ///
    /// Fails if the bytes are not a valid reply, or a reply is longer than [`REPLY_MAX`].
    pub fn decode(&mut self, input: &mut &[u8]) -> Result<Option<Value>, Malformed> {
        while let Some((byte, rest)) = input.split_first() {
            *input = rest;
            self.taken = self.taken.saturating_add(1);
            if self.taken > REPLY_MAX {
                return Err(Malformed);
            }
            if let Some(value) = self.take(*byte)? {
                self.taken = 0;
                return Ok(Some(value));
            }
        }
        Ok(None)
    }

    fn take(&mut self, byte: u8) -> Result<Option<Value>, Malformed> {
        self.state = match (self.state, byte) {
            (State::Start, byte) => self.begin(byte)?,

            (State::Text(Text::Status), b'\r') => {
                State::LineEnd(Element::Whole(match &self.kept {
                    Kept::Text(text) if text.as_bytes() == b"OK" => Simple::Ok,
                    _ => Simple::Other,
                }))
            }
            (State::Text(Text::Error), b'\r') => State::LineEnd(Element::Whole(Simple::Error)),
            (State::Text(_), b'\n') => return Err(Malformed),
            (State::Text(kind), byte) => {
                if let Kept::Text(text) = &mut self.kept {
                    text.push(byte);
                }
                State::Text(kind)
            }

            (State::Number { of, value }, b'\r') => State::LineEnd(of.element(value)?),
            (State::Number { of, value }, byte) => State::Number {
                of,
                value: value.and(byte)?,
            },

            (State::Null, b'\r') => State::LineEnd(Element::Whole(Simple::Nil)),

            (State::Bulk(left), _) => Self::bulk(left.saturating_sub(1)),
            (State::BulkEnd, b'\r') => State::LineEnd(Element::Whole(Simple::Other)),

            (State::LineEnd(element), b'\n') => return Ok(self.end(element)),
            (State::Null | State::BulkEnd | State::LineEnd(_), _) => return Err(Malformed),
        };
        Ok(None)
    }

    fn begin(&mut self, kind: u8) -> Result<State, Malformed> {
        // The numbers of an array are dropped if it has any other element.
        if self.elements == 0 || kind != b':' {
            self.kept = Kept::NOTHING;
        }
        let number = |of| State::Number {
            of,
            value: Decimal::Empty,
        };
        Ok(match kind {
            b'+' => State::Text(Text::Status),
            b'-' => State::Text(Text::Error),
            b':' => number(Number::Integer),
            b'$' => number(Number::BulkLength),
            b'*' => number(Number::ArrayLength),
            // Pushes occur between replies, never in one.
            b'>' if self.elements == 0 => number(Number::PushLength),
            b'_' => State::Null,
            _ => return Err(Malformed),
        })
    }

    const fn bulk(left: u16) -> State {
        if left == 0 {
            State::BulkEnd
        } else {
            State::Bulk(left)
        }
    }

    /// Handles the end of a line. Returns the value if the reply ends too.
    fn end(&mut self, element: Element) -> Option<Value> {
        self.state = State::Start;
        let is_nested = self.elements > 0;
        let simple = match element {
            Element::Bulk(len) => {
                self.state = Self::bulk(len);
                return None;
            }
            Element::Array { elements, is_push } => {
                if !is_nested {
                    self.is_push = is_push;
                    if elements == 4 && !is_push {
                        self.kept = Kept::Numbers(Vec::new());
                    }
                }
                // The array counts as one more element: it is subtracted below. A nested array was already counted by the
                // array around it, so `max` adds one only to an outer array.
                self.elements = self.elements.max(1).saturating_add(elements);
                Simple::Other
            }
            Element::Whole(simple) => simple,
        };
        if let (Simple::Integer(number), Kept::Numbers(numbers)) = (simple, &mut self.kept) {
            // An array of four numbers has four elements, so there is room.
            let _full = numbers.push(number);
        }
        self.elements = self.elements.saturating_sub(1);
        if self.elements > 0 {
            return None;
        }
        let in_array = is_nested || matches!(element, Element::Array { .. });
        if in_array && core::mem::take(&mut self.is_push) {
            return None;
        }
        Some(match (&self.kept, simple) {
            (Kept::Numbers(numbers), _) => match **numbers {
                [a, b, c, d] => Value::Integers([a, b, c, d]),
                _ => Value::Other,
            },
            _ if in_array => Value::Other,
            (_, Simple::Ok) => Value::Ok,
            (_, Simple::Nil) => Value::Nil,
            (_, Simple::Integer(number)) => Value::Integer(number),
            (Kept::Text(text), Simple::Error) => Value::Error(*text),
            (_, Simple::Other) => Value::Other,
        })
    }
}

impl Default for Decoder {
    fn default() -> Self {
        Self::new()
    }
}

impl Number {
    fn element(self, value: Decimal) -> Result<Element, Malformed> {
        let number = value.number()?;
        let length = || {
            u16::try_from(number)
                .ok()
                .filter(|length| *length <= REPLY_MAX)
                .ok_or(Malformed)
        };
        Ok(match self {
            Self::Integer => Element::Whole(Simple::Integer(number)),
            Self::BulkLength | Self::ArrayLength if number == -1 => Element::Whole(Simple::Nil),
            Self::BulkLength => Element::Bulk(length()?),
            Self::ArrayLength => Element::Array {
                elements: length()?,
                is_push: false,
            },
            Self::PushLength => Element::Array {
                elements: length()?,
                is_push: true,
            },
        })
    }
}

/// The digits of a number that have arrived.
#[derive(Debug, Clone, Copy)]
enum Decimal {
    Empty,
    Sign {
        is_negative: bool,
    },
    /// The absolute value as a negative number: `i64::MIN` has no positive counterpart.
    Negated {
        is_negative: bool,
        value: i64,
    },
}

impl Decimal {
    fn and(self, byte: u8) -> Result<Self, Malformed> {
        let (is_negative, value) = match (self, byte) {
            (Self::Empty, b'-') => return Ok(Self::Sign { is_negative: true }),
            (Self::Empty, b'+') => return Ok(Self::Sign { is_negative: false }),
            (Self::Empty, _) => (false, 0),
            (Self::Sign { is_negative }, _) => (is_negative, 0),
            (Self::Negated { is_negative, value }, _) => (is_negative, value),
        };
        if !byte.is_ascii_digit() {
            return Err(Malformed);
        }
        let value = value
            .checked_mul(10)
            .and_then(|value| value.checked_sub(i64::from(byte - b'0')))
            .ok_or(Malformed)?;
        Ok(Self::Negated { is_negative, value })
    }

    fn number(self) -> Result<i64, Malformed> {
        match self {
            Self::Negated {
                is_negative: true,
                value,
            } => Ok(value),
            Self::Negated {
                is_negative: false,
                value,
            } => value.checked_neg().ok_or(Malformed),
            Self::Empty | Self::Sign { .. } => Err(Malformed),
        }
    }
}

#[cfg(test)]
mod tests;
