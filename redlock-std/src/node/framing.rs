//! Where the values of RESP begin and end, before the parser sees them.

use std::slice;

/// Follows the values on a stream of RESP2 or RESP3, and refuses what the reply parser must not get.
///
/// The parser of the `redis` crate has no limits, recurses into nested values, and does not tell where an incomplete value ends. So it
/// gets whole replies only. This finds their ends, and refuses a reply that is nested too deep, or that the parser could read in
/// another way. It refuses push messages, for which no connection asks. The state has a fixed size.
#[derive(Debug, Default)]
pub(crate) struct Framing {
    /// The number of values that are left in each open aggregate, the innermost first. 0 if there is none.
    open: [u64; MAX_DEPTH],
    part: Part,
}

/// The answer to HELLO is the deepest one: a map of modules, each with its arguments.
const MAX_DEPTH: usize = 4;

/// What comes next.
#[derive(Debug, Default, Clone, Copy)]
enum Part {
    /// The first byte of a value.
    #[default]
    Type,
    /// The rest of a line, up to its CR.
    Line,
    /// The rest of a line with a length, up to its CR.
    Length(Length),
    /// The LF of a line.
    LineFeed(Content),
    /// So many bytes, and a CR.
    Bytes(u64),
}

/// A length of which some digits were read.
#[derive(Debug, Clone, Copy)]
struct Length {
    of: u8,
    is_negative: bool,
    /// `None` before the first digit.
    number: Option<u64>,
}

/// What follows the first line of a value.
#[derive(Debug, Clone, Copy)]
enum Content {
    Nothing,
    Bytes(u64),
    Values(u64),
}

/// What is refused, in words that follow "the node sent".
pub(crate) type Refused = &'static str;

pub(crate) const NOT_RESP: Refused = "what is not RESP";

impl Framing {
    /// Reads the next bytes of the stream. Returns the number of values that begin in them.
    ///
    /// # Errors
    ///
    /// If there is something in them that must not reach the parser. The stream cannot be read any further.
    pub(crate) fn read(&mut self, mut bytes: &[u8]) -> Result<usize, Refused> {
        let mut begun = 0;
        let mut part = self.part;
        while let [first, rest @ ..] = bytes {
            part = match part {
                Part::Type => {
                    begun += 1;
                    bytes = rest;
                    self.begin(*first)?
                }
                Part::Line => {
                    let Some(end) = bytes.iter().position(|byte| *byte == b'\r') else {
                        break;
                    };
                    let rest = bytes.get(end + 1..).unwrap_or_default();
                    // Nearly always. This saves a turn of the loop for each short reply.
                    if let [b'\n', rest @ ..] = rest {
                        bytes = rest;
                        self.end_value();
                        Part::Type
                    } else {
                        bytes = rest;
                        Part::LineFeed(Content::Nothing)
                    }
                }
                Part::Length(mut length) => {
                    bytes = rest;
                    if *first == b'\r' {
                        Part::LineFeed(length.content()?)
                    } else {
                        length.add(*first)?;
                        Part::Length(length)
                    }
                }
                Part::LineFeed(_) if *first != b'\n' => return Err(NOT_RESP),
                Part::LineFeed(content) => {
                    bytes = rest;
                    match content {
                        Content::Bytes(count) => Part::Bytes(count),
                        Content::Values(count) if count > 0 => {
                            self.open(count);
                            Part::Type
                        }
                        Content::Nothing | Content::Values(_) => {
                            self.end_value();
                            Part::Type
                        }
                    }
                }
                Part::Bytes(0) if *first != b'\r' => return Err(NOT_RESP),
                Part::Bytes(0) => {
                    bytes = rest;
                    Part::LineFeed(Content::Nothing)
                }
                Part::Bytes(left) => {
                    let skipped =
                        usize::try_from(left).map_or(bytes.len(), |left| left.min(bytes.len()));
                    bytes = bytes.get(skipped..).unwrap_or_default();
                    Part::Bytes(left - skipped as u64)
                }
            };
        }
        self.part = part;
        Ok(begun)
    }

    /// Replaces what is not ASCII in the lines of this reply. The parser takes no line that is not UTF-8, and Redis quotes arguments,
    /// such as tokens, in the error about a command that it does not know.
    pub(crate) fn make_ascii(reply: &mut [u8]) {
        if reply.is_ascii() {
            return;
        }
        let mut framing = Self::default();
        for byte in reply {
            if !byte.is_ascii() && matches!(framing.part, Part::Line) {
                *byte = b'?';
            }
            if framing.read(slice::from_ref(byte)).is_err() {
                return;
            }
        }
    }

    /// Whether everything that was read belongs to replies that have ended.
    pub(crate) const fn is_between_replies(&self) -> bool {
        matches!(self.part, Part::Type) && self.is_at_top()
    }

    const fn is_at_top(&self) -> bool {
        let [innermost, ..] = self.open;
        innermost == 0
    }

    const fn begin(&self, byte: u8) -> Result<Part, Refused> {
        let [.., outermost] = self.open;
        match byte {
            b'+' | b'-' | b':' | b'_' | b',' | b'#' | b'(' => Ok(Part::Line),
            b'*' | b'~' | b'%' if outermost > 0 => Err("values that are nested too deep"),
            b'*' | b'~' | b'%' | b'$' | b'!' | b'=' => Ok(Part::Length(Length::new(byte))),
            b'>' => Err("a push message, which only a subscription brings"),
            b'|' => Err("attributes"),
            _ => Err(NOT_RESP),
        }
    }

    const fn open(&mut self, count: u64) {
        // `begin` has looked whether there is room.
        let [a, b, c, _none] = self.open;
        self.open = [count, a, b, c];
    }

    /// Ends a value, and with it each aggregate of which it is the last one.
    const fn end_value(&mut self) {
        loop {
            let [left, a, b, c] = self.open;
            match left {
                0 => return,
                1 => self.open = [a, b, c, 0],
                _ => {
                    self.open = [left - 1, a, b, c];
                    return;
                }
            }
        }
    }
}

impl Length {
    const fn new(of: u8) -> Self {
        Self {
            of,
            is_negative: false,
            number: None,
        }
    }

    fn add(&mut self, byte: u8) -> Result<(), Refused> {
        match byte {
            b'-' if self.number.is_none() && !self.is_negative => self.is_negative = true,
            b'0'..=b'9' => {
                let number = self.number.unwrap_or(0).checked_mul(10);
                let number = number.and_then(|number| number.checked_add(u64::from(byte - b'0')));
                self.number = Some(number.ok_or(NOT_RESP)?);
            }
            _ => return Err(NOT_RESP),
        }
        Ok(())
    }

    fn content(self) -> Result<Content, Refused> {
        let number = self.number.ok_or(NOT_RESP)?;
        match self.of {
            // The null of RESP2.
            b'$' | b'*' if self.is_negative && number == 1 => Ok(Content::Nothing),
            _ if self.is_negative => Err(NOT_RESP),
            b'$' | b'!' | b'=' => Ok(Content::Bytes(number)),
            b'%' => number.checked_mul(2).map(Content::Values).ok_or(NOT_RESP),
            _ => Ok(Content::Values(number)),
        }
    }
}

#[cfg(test)]
mod tests {
    use fastrand::Rng;
    use redis::{ErrorKind, Parser, Value, parse_redis_value};

    use super::*;

    /// What a stream came to.
    #[derive(Debug, PartialEq)]
    struct Outcome {
        begun: usize,
        /// Where values at top level end.
        ends: Vec<usize>,
        refused: Option<Refused>,
    }

    /// Reads in pieces. The ends are those at which a piece ends.
    fn read_pieces<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> Outcome {
        let mut framing = Framing::default();
        let (mut begun, mut position, mut ends) = (0, 0, Vec::new());
        for piece in pieces {
            match framing.read(piece) {
                Ok(more) => begun += more,
                Err(refused) => {
                    return Outcome {
                        begun,
                        ends,
                        refused: Some(refused),
                    };
                }
            }
            position += piece.len();
            if framing.is_between_replies() {
                ends.push(position);
            }
        }
        Outcome {
            begun,
            ends,
            refused: None,
        }
    }

    fn read(bytes: &[u8]) -> Result<usize, Refused> {
        Framing::default().read(bytes)
    }

    const ACCEPTED: [(&[u8], usize); 20] = [
        (b"+OK\r\n", 1),
        (b"+\r\n", 1),
        (b"-ERR two words\nand more\r\n", 1),
        (b":-9223372036854775808\r\n", 1),
        (b"$-1\r\n", 1),
        (b"$0\r\n\r\n", 1),
        (b"$11\r\n+a\r\n>1\r\n\r\n\n\r\n", 1),
        (b"*-1\r\n", 1),
        (b"*0\r\n", 1),
        (b"*4\r\n:1\r\n:2\r\n:3\r\n:4\r\n", 5),
        (b"*2\r\n*2\r\n:1\r\n*0\r\n$1\r\nx\r\n", 5),
        (b"%1\r\n+a\r\n%0\r\n", 3),
        (b"~2\r\n#t\r\n,1.5\r\n", 3),
        (b"_\r\n", 1),
        (b"(3492890328409238509324850943850943825024385\r\n", 1),
        (b"!9\r\nERR wrong\r\n", 1),
        (b"=5\r\ntxt:a\r\n", 1),
        (b"*1\r\n*1\r\n*1\r\n*1\r\n:1\r\n", 5),
        (b"*1\r\n*1\r\n*1\r\n*2\r\n:1\r\n:1\r\n", 6),
        // HELLO 3 with modules.
        (
            b"%2\r\n$6\r\nserver\r\n$5\r\nredis\r\n$7\r\nmodules\r\n*2\r\n%2\r\n+name\r\n+a\r\n+args\r\n*2\r\n+x\r\n+y\r\n\
              %1\r\n+ver\r\n:1\r\n",
            15,
        ),
    ];

    #[test]
    fn what_is_not_ascii_is_replaced_in_lines_and_nowhere_else() {
        for (reply, expected) in [
            (&b"-ERR '\xff\xfe\x01'\r\n"[..], &b"-ERR '??\x01'\r\n"[..]),
            (b"$3\r\n\xff\r\n\r\n", b"$3\r\n\xff\r\n\r\n"),
            (
                b"*3\r\n-\x80\r\n$1\r\n\x80\r\n+\xc3\xa9\r\n",
                b"*3\r\n-?\r\n$1\r\n\x80\r\n+??\r\n",
            ),
        ] {
            let mut bytes = reply.to_vec();
            Framing::make_ascii(&mut bytes);
            assert_eq!(bytes, expected);
        }
    }

    #[test]
    fn the_values_of_both_protocols_are_counted_wherever_the_stream_is_cut() {
        for (bytes, values) in ACCEPTED {
            let text = String::from_utf8_lossy(bytes);
            assert!(parse_redis_value(bytes).is_ok(), "{text:?}");
            for count in 1..=3 {
                let bytes = bytes.repeat(count);
                assert_eq!(read(&bytes), Ok(values * count), "{text:?}");
                for cut in 0..=bytes.len() {
                    let (head, tail) = bytes.split_at(cut);
                    let outcome = read_pieces([head, tail].into_iter());
                    assert_eq!(outcome.begun, values * count, "{text:?} at {cut}");
                    assert_eq!(outcome.ends.last(), Some(&bytes.len()), "{text:?} at {cut}");
                }
            }
            let outcome = read_pieces(bytes.chunks(1));
            let whole = (outcome.begun, outcome.ends, outcome.refused);
            assert_eq!(whole, (values, vec![bytes.len()], None), "{text:?}");
        }
    }

    #[test]
    fn a_client_without_subscriptions_gets_no_push_message_and_no_attributes() {
        for before in [
            "",
            "+OK\r\n",
            "*2\r\n:1\r\n",
            "*1\r\n%1\r\n+a\r\n",
            "$1\r\n>\r\n",
        ] {
            for refused in [
                ">3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1\r\n",
                ">0\r\n",
                "|0\r\n:1\r\n",
            ] {
                let bytes = [before, refused].concat();
                assert!(read(bytes.as_bytes()).is_err(), "{bytes:?}");
            }
        }
    }

    #[test]
    fn values_are_nested_no_deeper_than_four_aggregates() {
        for open in ["*1\r\n", "~1\r\n", "%1\r\n:1\r\n"] {
            assert!(read((open.repeat(4) + ":1\r\n").as_bytes()).is_ok());
            assert!(read(open.repeat(5).as_bytes()).is_err());
            let deep = open.repeat(99);
            let outcome = read_pieces(deep.as_bytes().chunks(1));
            assert!(outcome.refused.is_some(), "{open:?}");
        }
    }

    #[test]
    fn what_the_parser_may_read_in_another_way_is_refused() {
        for bytes in [
            "$ 1\r\na\r\n",
            "$+1\r\na\r\n",
            "$1 \r\na\r\n",
            "$\r\n",
            "$-\r\n",
            "$-2\r\n",
            "$--1\r\n",
            "$1-\r\n",
            "$1\n\r\n",
            "$1\r\nab\r\n",
            "$1\r\na\n\n",
            "$1\r\na\rb",
            "+a\rb\r\n",
            "+a\r\r\n",
            "!-1\r\n",
            "=-1\r\n",
            "%-1\r\n",
            "~-1\r\n",
            "*99999999999999999999\r\n",
            "%9223372036854775808\r\n",
            "HTTP/1.1 400 Bad Request\r\n",
            "\r\n",
            "\0",
        ] {
            assert_eq!(read(bytes.as_bytes()), Err(NOT_RESP), "{bytes:?}");
        }
    }

    #[test]
    fn no_length_makes_the_state_grow_or_overflow() {
        for bytes in [
            format!("${}\r\n", u64::MAX),
            format!("*{}\r\n", u64::MAX),
            format!("%{}\r\n", u64::MAX / 2),
        ] {
            let mut framing = Framing::default();
            framing.read(bytes.as_bytes()).unwrap();
            for _ in 0..1_000 {
                framing.read(b":1\r\n").unwrap();
            }
            assert!(!framing.is_between_replies());
        }
    }

    #[test]
    fn values_end_where_the_parser_ends_them_whatever_the_bytes_are() {
        let mut random = Rng::with_seed(4711);
        for _ in 0..20_000 {
            let mut bytes = Vec::new();
            for _ in 0..random.usize(1..4) {
                write_value(&mut random, &mut bytes, 1);
            }
            // Most are as a server writes them; the others almost.
            for _ in 0..random.usize(0..12).saturating_sub(7) {
                twist(&mut random, &mut bytes);
            }
            let outcome = read_pieces(bytes.chunks(1));
            same_in_larger_pieces(&mut random, &bytes, &outcome);
            same_as_parser(&mut random, &bytes, &outcome);
        }
    }

    fn same_in_larger_pieces(random: &mut Rng, bytes: &[u8], outcome: &Outcome) {
        let mut pieces = Vec::new();
        let mut rest = bytes;
        while !rest.is_empty() {
            let (piece, after) = rest.split_at(random.usize(1..=rest.len()));
            pieces.push(piece);
            rest = after;
        }
        let other = read_pieces(pieces.into_iter());
        assert_eq!(other.refused, outcome.refused, "{:?}", Text(bytes));
        assert!(other.ends.iter().all(|end| outcome.ends.contains(end)));
        if outcome.refused.is_none() {
            assert_eq!(other.begun, outcome.begun, "{:?}", Text(bytes));
        }
    }

    fn same_as_parser(random: &mut Rng, bytes: &[u8], outcome: &Outcome) {
        let text = Text(bytes);
        let mut start = 0;
        for end in &outcome.ends {
            for cut in start..*end {
                let parsed = parse_redis_value(&bytes[start..cut]);
                assert!(parsed.is_err(), "{text:?} {start}..{cut}: {parsed:?}");
            }
            let pieces = Pieces {
                bytes: &bytes[start..*end],
                random,
            };
            match Parser::new().parse_value(pieces) {
                Ok(value) => assert!(is_harmless(&value, 0), "{text:?}: {value:?}"),
                Err(error) => {
                    // The parser is stricter. It has ended the connection.
                    assert_eq!(error.kind(), ErrorKind::Parse, "{text:?} {start}..{end}");
                    return;
                }
            }
            start = *end;
        }
        if outcome.refused.is_none() {
            let rest = parse_redis_value(&bytes[start..]);
            assert!(rest.is_err(), "{text:?} {start}..: {rest:?}");
        }
    }

    fn is_harmless(value: &Value, depth: usize) -> bool {
        let values: Vec<_> = match value {
            Value::Array(values) | Value::Set(values) => values.iter().collect(),
            Value::Map(pairs) => pairs.iter().flat_map(|(a, b)| [a, b]).collect(),
            Value::Push { .. } | Value::Attribute { .. } => return false,
            _ => return true,
        };
        depth < MAX_DEPTH && values.iter().all(|value| is_harmless(value, depth + 1))
    }

    /// A value at this depth, mostly of those that are accepted.
    fn write_value(random: &mut Rng, bytes: &mut Vec<u8>, depth: usize) {
        const SCALARS: [&str; 16] = [
            "+OK",
            "+",
            "-ERR no",
            ":0",
            ":-17",
            "$-1",
            "*-1",
            "*0",
            "%0",
            "~0",
            "_",
            "#t",
            ",1.5",
            "(12",
            "$0\r\n",
            "=7\r\ntxt:a\r\n",
        ];
        match random.u8(0..20) {
            0..10 => bytes.extend(SCALARS[random.usize(..SCALARS.len())].bytes()),
            10..14 => {
                let length = random.usize(..6);
                bytes.extend(format!("{}{length}\r\n", ['$', '!'][random.usize(..2)]).bytes());
                bytes
                    .extend(std::iter::repeat_with(|| ODD[random.usize(..ODD.len())]).take(length));
            }
            kind if depth <= MAX_DEPTH + 1 => {
                let count = random.usize(1..4);
                let (kind, values) = match kind {
                    14 => ('%', count * 2),
                    15 => ('~', count),
                    16 if random.u8(..4) == 0 => ('>', count),
                    17 if random.u8(..4) == 0 => ('|', count * 2 + 1),
                    _ => ('*', count),
                };
                bytes.extend(format!("{kind}{count}\r\n").bytes());
                for _ in 0..values {
                    write_value(random, bytes, depth + 1);
                }
                return;
            }
            _ => bytes.extend(b":1"),
        }
        bytes.extend(b"\r\n");
    }

    /// Bytes that mean something somewhere.
    const ODD: &[u8] = b"\r\n\r\n\r\n$*%~>|+-:_,#!=(0123 tfx\xff";

    fn twist(random: &mut Rng, bytes: &mut Vec<u8>) {
        let odd = ODD[random.usize(..ODD.len())];
        let index = random.usize(..bytes.len());
        match random.u8(..3) {
            0 => bytes[index] = odd,
            1 => bytes.insert(index, odd),
            _ if bytes.len() > 1 => drop(bytes.remove(index)),
            _ => {}
        }
    }

    /// A reader that gives a few bytes at a time.
    struct Pieces<'a> {
        bytes: &'a [u8],
        random: &'a mut Rng,
    }

    impl std::io::Read for Pieces<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            let most = self.bytes.len().min(buffer.len()).min(4);
            let count = if most == 0 {
                0
            } else {
                self.random.usize(1..=most)
            };
            std::io::Read::read(&mut self.bytes, &mut buffer[..count])
        }
    }

    struct Text<'a>(&'a [u8]);

    impl std::fmt::Debug for Text<'_> {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            write!(f, "{:?}", String::from_utf8_lossy(self.0))
        }
    }
}
