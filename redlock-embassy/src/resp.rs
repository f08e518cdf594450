//! The part of the Redis protocol that a lock needs, without waiting and without an allocator. Every length is bounded.

use core::fmt;

use heapless::Vec;
use redlock_core::FENCE_KEY_PREFIX;
use redlock_core::text;
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
    let mut line = Line::new();
    let mut number = Line::new();
    put(line.write(b'*', arguments.len() as u64));
    for argument in arguments {
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
            line.write(b'$', len as u64),
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
    // `inline(never)`: many callers, one copy in flash.
    #[inline(never)]
    fn write(&mut self, letter: u8, mut number: u64) -> &[u8] {
        let [digits @ .., _, _] = &mut self.0;
        let mut start = digits.len();
        let mut is_written = false;
        for slot in digits.iter_mut().rev() {
            start -= 1;
            if is_written {
                *slot = letter;
                break;
            }
            *slot = decimal_digit(number);
            number /= 10;
            is_written = number == 0;
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
        match str::from_utf8(self.as_bytes()) {
            Ok("") => defmt::write!(f, "an error without a message"),
            // No control character reaches the terminal of a reader.
            Ok(text) if text.bytes().all(|byte| matches!(byte, b' '..=b'~')) => {
                defmt::write!(f, "{=str}", text);
            }
            _ => defmt::write!(f, "{=[u8]:a}", self.as_bytes()),
        }
        if self.is_cut {
            defmt::write!(f, "..");
        }
    }
}

/// The node sent something that is not a valid reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Malformed;

text! {
    impl [] for Malformed [] {
        _ => "not a valid Redis reply";
    }
}

impl core::error::Error for Malformed {}

/// A decoder of replies, for input that is cut anywhere.
///
/// It decodes RESP2, and the null and the pushes of RESP3. It skips pushes. After an error, the decoder is no longer usable,
/// because the start of the next reply is unknown.
// Flat: an enum with a number in it would be copied with each byte, which takes flash.
#[derive(Debug)]
pub struct Decoder {
    stage: Stage,
    /// The first byte of the current line, or [`STRING_END`]. For a null in any of its forms, `_`.
    kind: u8,
    /// The number in the current line. Until the line ends, it is the absolute value as a negative number: `i64::MIN` has no
    /// positive counterpart.
    number: i64,
    is_negative: bool,
    digits: Digits,
    /// The length in the current line, of a string or of an array. Then the number of missing bytes of the string.
    missing: u16,
    /// The number of missing elements of the current array, nested arrays included.
    elements: u16,
    /// Whether the current array is a push, not a reply.
    is_push: bool,
    /// The number of bytes since the last reply.
    taken: u16,
    kept: Kept,
}

#[derive(Debug, Clone, Copy)]
enum Stage {
    /// Before the first byte of a line.
    Start,
    /// In a line.
    Line,
    /// In a string, or after it.
    String,
    /// After the carriage return of a line or of a string.
    LineEnd,
}

/// What the current line has of a number.
#[derive(Debug, Clone, Copy)]
enum Digits {
    /// Nothing: a sign may follow.
    Nothing,
    OnlySign,
    Some,
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

/// The kind of the line end after a string. No line begins with this byte.
const STRING_END: u8 = b'\r';

impl Decoder {
    /// A decoder for a new connection.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            stage: Stage::Start,
            kind: STRING_END,
            number: 0,
            is_negative: false,
            digits: Digits::Nothing,
            missing: 0,
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
            self.stage = match (self.stage, *byte) {
                (Stage::Start, kind) => self.begin(kind)?,
                (Stage::Line, b'\r') => self.end_number()?,
                (Stage::Line, byte) => self.continue_line(byte)?,
                (Stage::String, byte) => self.continue_string(byte)?,
                (Stage::LineEnd, b'\n') => {
                    if let Some(value) = self.end_line() {
                        self.taken = 0;
                        return Ok(Some(value));
                    }
                    continue;
                }
                (Stage::LineEnd, _) => return Err(Malformed),
            };
        }
        Ok(None)
    }

    fn begin(&mut self, kind: u8) -> Result<Stage, Malformed> {
        match kind {
            b'+' | b'-' | b':' | b'$' | b'*' | b'_' => {}
            // Pushes occur between replies, never in one.
            b'>' if self.elements == 0 => {}
            _ => return Err(Malformed),
        }
        // The numbers of an array are dropped if it has any other element.
        if self.elements == 0 || kind != b':' {
            self.kept = Kept::NOTHING;
        }
        self.kind = kind;
        self.number = 0;
        self.is_negative = false;
        self.digits = Digits::Nothing;
        Ok(Stage::Line)
    }

    fn continue_line(&mut self, byte: u8) -> Result<Stage, Malformed> {
        match (self.kind, byte) {
            (b'+' | b'-', b'\n') | (b'_', _) => return Err(Malformed),
            (b'+' | b'-', _) => {
                if let Kept::Text(text) = &mut self.kept {
                    text.push(byte);
                }
            }
            (_, b'0'..=b'9') => {
                let number = self.number.checked_mul(10);
                let number = number.and_then(|it| it.checked_sub(i64::from(byte - b'0')));
                self.number = number.ok_or(Malformed)?;
                self.digits = Digits::Some;
            }
            (_, b'+' | b'-') if matches!(self.digits, Digits::Nothing) => {
                self.is_negative = byte == b'-';
                self.digits = Digits::OnlySign;
            }
            _ => return Err(Malformed),
        }
        Ok(Stage::Line)
    }

    /// Handles the end of a line. If the line is a number or a length, checks it.
    fn end_number(&mut self) -> Result<Stage, Malformed> {
        if matches!(self.kind, b'+' | b'-' | b'_') {
            return Ok(Stage::LineEnd);
        }
        if !matches!(self.digits, Digits::Some) {
            return Err(Malformed);
        }
        if !self.is_negative {
            self.number = self.number.checked_neg().ok_or(Malformed)?;
        }
        if self.kind != b':' {
            match u16::try_from(self.number) {
                Ok(length @ ..=REPLY_MAX) => self.missing = length,
                // The length of a null.
                _ if self.number == -1 && self.kind != b'>' => self.kind = b'_',
                _ => return Err(Malformed),
            }
        }
        Ok(Stage::LineEnd)
    }

    const fn continue_string(&mut self, byte: u8) -> Result<Stage, Malformed> {
        match self.missing.checked_sub(1) {
            Some(missing) => {
                self.missing = missing;
                Ok(Stage::String)
            }
            None if byte == b'\r' => {
                self.kind = STRING_END;
                Ok(Stage::LineEnd)
            }
            None => Err(Malformed),
        }
    }

    /// Handles the end of a line or of a string. Returns the value if the reply ends too.
    fn end_line(&mut self) -> Option<Value> {
        self.stage = Stage::Start;
        let is_nested = self.elements > 0;
        let mut in_array = is_nested;
        match (self.kind, &mut self.kept) {
            (b'$', _) => {
                self.stage = Stage::String;
                return None;
            }
            (b'*' | b'>', _) => {
                if !is_nested {
                    self.is_push = self.kind == b'>';
                    if self.missing == 4 && !self.is_push {
                        self.kept = Kept::Numbers(Vec::new());
                    }
                }
                // The array counts as one more element: it is subtracted below. A nested array was already counted by the
                // array around it, so `max` adds one only to an outer array.
                self.elements = self.elements.max(1).saturating_add(self.missing);
                in_array = true;
            }
            (b':', Kept::Numbers(numbers)) => {
                // An array of four numbers has four elements, so there is room.
                let _full = numbers.push(self.number);
            }
            _ => {}
        }
        self.elements = self.elements.saturating_sub(1);
        if self.elements > 0 || in_array && core::mem::take(&mut self.is_push) {
            return None;
        }
        Some(match (&self.kept, self.kind) {
            (Kept::Numbers(numbers), _) => match **numbers {
                [a, b, c, d] => Value::Integers([a, b, c, d]),
                _ => Value::Other,
            },
            _ if in_array => Value::Other,
            (Kept::Text(text), b'+') if text.as_bytes() == b"OK" => Value::Ok,
            (Kept::Text(text), b'-') => Value::Error(*text),
            (_, b':') => Value::Integer(self.number),
            (_, b'_') => Value::Nil,
            _ => Value::Other,
        })
    }
}

impl Default for Decoder {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests;
