use std::format;
use std::string::{String, ToString};
use std::vec;
use std::vec::Vec;

use super::*;

/// The values of an `input` that arrives whole, and whether all bytes up to there were replies.
///
/// Written from the specification of the protocol and not from the decoder: it sees the whole input and
/// calls itself for arrays.
mod model {
    use super::*;

    pub(super) fn decode(mut input: &[u8]) -> (Vec<Value>, Result<(), Malformed>) {
        let mut values = Vec::new();
        loop {
            match item(input, true) {
                Ok((value, rest)) => {
                    values.extend(value);
                    input = rest;
                }
                Err(End::Half) => return (values, Ok(())),
                Err(End::Bad) => return (values, Err(Malformed)),
            }
        }
    }

    enum End {
        /// More would have to come.
        Half,
        Bad,
    }

    /// One reply, or one push and then no value.
    fn item(input: &[u8], is_outermost: bool) -> Result<(Option<Value>, &[u8]), End> {
        let (kind, rest) = input.split_first().ok_or(End::Half)?;
        match kind {
            b'+' => text(rest).map(|(text, rest)| match text {
                b"OK" => (Some(Value::Ok), rest),
                _ => (Some(Value::Other), rest),
            }),
            b'-' => text(rest).map(|(text, rest)| (Some(Value::Error(rejection(text))), rest)),
            b':' => number(rest).map(|(number, rest)| (Some(Value::Integer(number)), rest)),
            b'_' => match rest {
                [] | [b'\r'] => Err(End::Half),
                [b'\r', b'\n', rest @ ..] => Ok((Some(Value::Nil), rest)),
                _ => Err(End::Bad),
            },
            b'$' => match length(rest, true)? {
                (None, rest) => Ok((Some(Value::Nil), rest)),
                (Some(length), rest) => bulk(length, rest).map(|rest| (Some(Value::Other), rest)),
            },
            b'*' => match length(rest, true)? {
                (None, rest) => Ok((Some(Value::Nil), rest)),
                (Some(count), rest) => {
                    let (values, rest) = items(count, rest)?;
                    Ok((Some(array(&values, is_outermost)), rest))
                }
            },
            b'>' if is_outermost => {
                let (count, rest) = length(rest, false)?;
                let (_passed_over, rest) = items(count.ok_or(End::Bad)?, rest)?;
                Ok((None, rest))
            }
            _ => Err(End::Bad),
        }
    }

    fn items(count: usize, mut input: &[u8]) -> Result<(Vec<Value>, &[u8]), End> {
        let mut values = Vec::new();
        for _ in 0..count {
            let (value, rest) = item(input, false)?;
            values.extend(value);
            input = rest;
        }
        Ok((values, input))
    }

    fn array(values: &[Value], is_outermost: bool) -> Value {
        match values {
            [
                Value::Integer(a),
                Value::Integer(b),
                Value::Integer(c),
                Value::Integer(d),
            ] if is_outermost => Value::Integers([*a, *b, *c, *d]),
            _ => Value::Other,
        }
    }

    fn bulk(length: usize, input: &[u8]) -> Result<&[u8], End> {
        match input.get(length..).ok_or(End::Half)? {
            [] | [b'\r'] => Err(End::Half),
            [b'\r', b'\n', rest @ ..] => Ok(rest),
            _ => Err(End::Bad),
        }
    }

    fn text(input: &[u8]) -> Result<(&[u8], &[u8]), End> {
        let end = input.iter().position(|byte| b"\r\n".contains(byte));
        let (text, rest) = input.split_at(end.ok_or(End::Half)?);
        match rest {
            [b'\r'] => Err(End::Half),
            [b'\r', b'\n', rest @ ..] => Ok((text, rest)),
            _ => Err(End::Bad),
        }
    }

    fn number(input: &[u8]) -> Result<(i64, &[u8]), End> {
        let is_digit = |byte: &u8| byte.is_ascii_digit();
        let (sign, digits) = match input {
            [sign @ (b'+' | b'-'), digits @ ..] => (*sign, digits),
            digits => (b'+', digits),
        };
        let count = digits.iter().take_while(|byte| is_digit(byte)).count();
        let (digits, rest) = digits.split_at(count);
        let magnitude = digits
            .iter()
            .fold(0_i128, |sum, digit| sum * 10 + i128::from(digit - b'0'));
        let number = i64::try_from(if sign == b'-' { -magnitude } else { magnitude });
        match (digits, rest) {
            (_, []) => Err(End::Half),
            ([_, ..], [b'\r', rest @ ..]) => {
                let number = number.map_err(|_| End::Bad)?;
                match rest {
                    [] => Err(End::Half),
                    [b'\n', rest @ ..] => Ok((number, rest)),
                    _ => Err(End::Bad),
                }
            }
            _ => Err(End::Bad),
        }
    }

    /// A length that is refused is refused at the carriage return.
    fn length(input: &[u8], may_be_null: bool) -> Result<(Option<usize>, &[u8]), End> {
        let allowed = |number: i64| match number {
            -1 if may_be_null => Ok(None),
            0..=1024 => Ok(Some(usize::try_from(number).unwrap())),
            _ => Err(End::Bad),
        };
        match number(input) {
            Ok((number, rest)) => Ok((allowed(number)?, rest)),
            Err(End::Half) if input.ends_with(b"\r") => {
                let whole = [input, b"\n"].concat();
                let (number, _) = number(&whole)?;
                allowed(number).and(Err(End::Half))
            }
            Err(end) => Err(end),
        }
    }
}

fn rejection(text: &[u8]) -> Rejection {
    let kept = text.len().min(32);
    let mut bytes = [0; 32];
    bytes[..kept].copy_from_slice(&text[..kept]);
    Rejection {
        bytes,
        len: u8::try_from(kept).unwrap(),
        is_cut: text.len() > kept,
    }
}

/// What the decoder returns for `pieces` that arrive one after the other.
fn decode<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> (Vec<Value>, Result<(), Malformed>) {
    let mut decoder = Decoder::new();
    let mut values = Vec::new();
    for mut piece in pieces {
        loop {
            match decoder.decode(&mut piece) {
                Ok(Some(value)) => values.push(value),
                Ok(None) => break,
                Err(malformed) => return (values, Err(malformed)),
            }
        }
        assert!(piece.is_empty(), "everything is taken");
    }
    (values, Ok(()))
}

fn decode_whole(input: &[u8]) -> (Vec<Value>, Result<(), Malformed>) {
    decode([input])
}

/// The one value that `input` is, to the byte.
fn value(input: impl AsRef<[u8]>) -> Value {
    let input = input.as_ref();
    let shown = input.escape_ascii();
    let mut decoder = Decoder::new();
    let (last, front) = input.split_last().unwrap();
    let before = decoder.decode(&mut &*front);
    assert_eq!(before, Ok(None), "{shown} is a value before its end");
    let value = decoder.decode(&mut [*last].as_slice());
    value
        .unwrap()
        .unwrap_or_else(|| panic!("{shown} is no value"))
}

/// That `input` is refused, and at its last byte.
fn assert_refused(input: impl AsRef<[u8]>) {
    let input = input.as_ref();
    let shown = input.escape_ascii();
    let (_, front) = input.split_last().unwrap();
    assert_eq!(decode_whole(front).1, Ok(()), "{shown} is refused early");
    assert_eq!(decode_whole(input).1, Err(Malformed), "{shown}");
}

fn encoded(words: &[Argument<'_>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode(words.iter().copied(), |piece| {
        bytes.extend_from_slice(piece);
    });
    assert_eq!(encoded_len(words.iter().copied()), bytes.len());
    bytes
}

#[test]
fn a_command_is_an_array_of_bulk_strings() {
    let words = [
        Argument::Bytes(b"SET"),
        Argument::Bytes(b"dock-7"),
        Argument::Bytes(b"\r\n\0\xff"),
        Argument::Bytes(b""),
        Argument::Integer(10_000),
    ];
    assert_eq!(
        encoded(&words).escape_ascii().to_string(),
        b"*5\r\n$3\r\nSET\r\n$6\r\ndock-7\r\n$4\r\n\r\n\0\xff\r\n$0\r\n\r\n$5\r\n10000\r\n"
            .escape_ascii()
            .to_string(),
    );
    assert_eq!(encoded(&[]), b"*0\r\n");
}

#[test]
fn the_key_of_a_fence_is_one_word() {
    for len in [0, 6, 85, 86, 1_000] {
        let key = vec![b'k'; len];
        let word = [FENCE_KEY_PREFIX.as_bytes(), &key].concat();
        assert_eq!(
            encoded(&[Argument::FenceKey(&key), Argument::Integer(7)]),
            encoded(&[Argument::Bytes(&word), Argument::Integer(7)]),
        );
    }
}

#[test]
fn every_number_of_a_command_is_written_in_decimal() {
    let powers = (0..20).map(|power| 10_u64.pow(power));
    let numbers = powers.flat_map(|power| [power - 1, power, power + 1]);
    for number in numbers.chain([u64::MAX - 1, u64::MAX]) {
        let digits = number.to_string();
        assert_eq!(
            encoded(&[Argument::Integer(number)]),
            format!("*1\r\n${}\r\n{digits}\r\n", digits.len()).as_bytes(),
        );
    }
}

#[test]
fn the_length_of_a_word_and_the_number_of_words_have_as_many_digits_as_they_need() {
    for len in [0, 1, 9, 10, 11, 99, 100, 101, 999, 1_000, 65_536] {
        let word = vec![b'x'; len];
        let expected = [format!("*1\r\n${len}\r\n").as_bytes(), &word, b"\r\n"].concat();
        assert_eq!(encoded(&[Argument::Bytes(&word)]), expected);
        let words = vec![Argument::Bytes(b""); len];
        let expected = format!("*{len}\r\n{}", "$0\r\n\r\n".repeat(len));
        assert_eq!(encoded(&words), expected.as_bytes());
    }
}

#[test]
fn every_form_is_read() {
    assert_eq!(value("+OK\r\n"), Value::Ok);
    for other in ["+\r\n", "+O\r\n", "+OKAY\r\n", "+ok\r\n", "+QUEUED\r\n"] {
        assert_eq!(value(other), Value::Other);
    }
    for null in ["$-1\r\n", "*-1\r\n", "_\r\n"] {
        assert_eq!(value(null), Value::Nil);
    }
    for other in [
        "$0\r\n\r\n",
        "$2\r\nOK\r\n",
        "$4\r\n\r\n\r\n\r\n",
        "$+1\r\n-\r\n",
        "$0001\r\n:\r\n",
        "*0\r\n",
        "*1\r\n+OK\r\n",
        "*2\r\n$-1\r\n:7\r\n",
    ] {
        assert_eq!(value(other), Value::Other, "{other}");
    }
    let numbers = "*4\r\n:1\r\n:-9223372036854775808\r\n:0\r\n:1783000000000000\r\n";
    assert_eq!(
        value(numbers),
        Value::Integers([1, i64::MIN, 0, 1_783_000_000_000_000])
    );
    let Value::Error(error) = value("-WRONGTYPE Operation\r\n") else {
        panic!("an error");
    };
    assert_eq!(error.as_bytes(), b"WRONGTYPE Operation");
    assert_eq!(error.code(), b"WRONGTYPE");
    assert_eq!(error.to_string(), "WRONGTYPE Operation");
}

#[test]
fn a_number_is_any_that_has_64_bits_and_no_other() {
    for number in [
        0,
        1,
        -1,
        7,
        10,
        -10,
        65_536,
        i64::MAX,
        i64::MIN + 1,
        i64::MIN,
    ] {
        assert_eq!(value(format!(":{number}\r\n")), Value::Integer(number));
    }
    for (text, number) in [
        ("+0", 0),
        ("-0", 0),
        ("+7", 7),
        ("007", 7),
        ("-007", -7),
        ("00000000000000000000000000000000000000001", 1),
        ("+9223372036854775807", i64::MAX),
        ("-0009223372036854775808", i64::MIN),
    ] {
        assert_eq!(value(format!(":{text}\r\n")), Value::Integer(number));
    }
    // One too many is seen with the sign, which counts at the end; ten times as many at the digit.
    assert_refused(":9223372036854775808\r");
    assert_refused(":+9223372036854775808\r");
    assert_refused(":-9223372036854775809");
    assert_refused(":9223372036854775809");
    assert_refused(":92233720368547758070");
    for text in [
        "\r", "+\r", "-\r", "+-", "--", "++", "1-", "1+", " ", "1 ", "0x", "1.", "a",
    ] {
        assert_refused(format!(":{text}"));
    }
    for byte in 0..=u8::MAX {
        if !b"+-\r0123456789".contains(&byte) {
            assert_refused([b':', byte]);
            assert_refused([b':', b'1', byte]);
            assert_refused([b':', b'-', byte]);
        }
    }
}

#[test]
fn a_length_is_checked_at_the_end_of_its_line() {
    for kind in ["$", "*", ">"] {
        for length in [
            "-2",
            "1025",
            "65535",
            "65536",
            "65537",
            "4294967296",
            "9223372036854775807",
        ] {
            assert_refused(format!("{kind}{length}\r"));
        }
        for length in ["0", "1", "1023", "1024"] {
            let line = format!("{kind}{length}\r");
            assert_eq!(decode_whole(line.as_bytes()), (vec![], Ok(())));
        }
        assert_refused(format!("{kind}\r"));
        assert_refused(format!("{kind}+\r"));
    }
    assert_refused(">-1\r");
    assert_eq!(value("$-01\r\n"), Value::Nil);
}

#[test]
fn a_reply_may_be_as_long_as_the_bound_and_no_longer() {
    let max = usize::from(REPLY_MAX);
    let line = |kind: &str, len: usize| format!("{kind}{}\r\n", "x".repeat(len - 3));
    assert_eq!(value(line("+", max)), Value::Other);
    assert!(matches!(value(line("-", max)), Value::Error(_)));
    let zeros = |len: usize| format!(":{}\r\n", "0".repeat(len - 3));
    assert_eq!(value(zeros(max)), Value::Integer(0));
    // "$1016\r\n", then "\r\n".
    let bulk = |len: usize| format!("${}\r\n{}\r\n", len - 9, "x".repeat(len - 9));
    assert_eq!(value(bulk(max)), Value::Other);
    // "*339\r\n", then 3 bytes for each null.
    let array = |len: usize| {
        let nulls = (len - 6) / 3;
        format!("*{nulls}\r\n{}", "_\r\n".repeat(nulls))
    };
    assert_eq!(array(max - 1).len(), max - 1);
    assert_eq!(value(array(max - 1)), Value::Other);
    let longer_by_one = array(max - 1).replacen("_\r\n", ":1\r\n", 1);
    assert_eq!(value(longer_by_one), Value::Other);

    for text in [
        line("+", max + 1),
        line("-", max + 1),
        zeros(max + 1),
        bulk(max + 1),
    ] {
        assert_refused(text);
    }
    let longer_by_two = array(max - 1).replacen("_\r\n", ":11\r\n", 1);
    assert_refused(longer_by_two);
    // And each of them one byte shorter, so that the bound is the bound.
    for text in [
        line("+", max - 1),
        line("-", max - 1),
        zeros(max - 1),
        bulk(max - 1),
    ] {
        value(text);
    }
}

#[test]
fn a_line_without_end_is_refused_at_the_bound() {
    for beginning in [
        "+",
        "-",
        ":",
        "$",
        "*",
        ">",
        "*1\r\n+",
        ">1\r\n-",
        "$1024\r\n",
    ] {
        let mut decoder = Decoder::new();
        let mut taken = 0;
        let endless = beginning.bytes().chain(core::iter::repeat(b'0'));
        for byte in endless {
            taken += 1;
            match decoder.decode(&mut [byte].as_slice()) {
                Ok(None) => assert!(taken <= 1024),
                end => {
                    assert_eq!(end, Err(Malformed));
                    break;
                }
            }
        }
        assert_eq!(taken, 1025, "{beginning}");
    }
}

#[test]
fn the_bound_is_for_each_reply_and_not_for_the_connection() {
    let reply = format!("${}\r\n{}\r\n", 1015, "x".repeat(1015));
    assert_eq!(reply.len(), 1024);
    let (values, end) = decode_whole(reply.repeat(100).as_bytes());
    assert_eq!((values.len(), end), (100, Ok(())));
}

#[test]
fn pushes_count_with_the_reply_that_they_precede() {
    let push = ">1\r\n_\r\n";
    let pushes = push.repeat(145);
    assert_eq!(pushes.len(), 1015);
    assert_eq!(
        value(format!("{pushes}:123456\r\n")),
        Value::Integer(123_456)
    );
    assert_refused(format!("{pushes}:1234567\r\n"));
    // Without a reply there is an end to them too.
    let (values, end) = decode_whole(push.repeat(147).as_bytes());
    assert_eq!((values, end), (vec![], Err(Malformed)));
}

#[test]
fn pushes_are_passed_over_before_between_and_after_replies() {
    for push in [
        ">0\r\n",
        ">1\r\n+OK\r\n",
        ">1\r\n-ERR in a push\r\n",
        ">2\r\n$10\r\ninvalidate\r\n*1\r\n$3\r\nkey\r\n",
        ">2\r\n$10\r\ninvalidate\r\n_\r\n",
        ">3\r\n*0\r\n*-1\r\n*2\r\n*1\r\n:1\r\n*0\r\n",
    ] {
        for count in 0..3 {
            let pushes = push.repeat(count);
            let input = format!("{pushes}+OK\r\n{pushes}:7\r\n{pushes}-ERR x\r\n{pushes}");
            let expected = vec![
                Value::Ok,
                Value::Integer(7),
                Value::Error(rejection(b"ERR x")),
            ];
            assert_eq!(
                decode_whole(input.as_bytes()),
                (expected, Ok(())),
                "{input}"
            );
        }
    }
}

#[test]
fn a_push_inside_anything_is_refused() {
    for input in [
        "*1\r\n>",
        "*2\r\n+OK\r\n>",
        ">1\r\n>",
        "*1\r\n*1\r\n>",
        ">2\r\n*0\r\n>",
    ] {
        assert_refused(input);
    }
}

#[test]
fn an_array_ends_with_its_last_element_however_deep_they_are() {
    for depth in 1..=200 {
        let nested = format!("{}_\r\n", "*1\r\n".repeat(depth));
        assert_eq!(value(&nested), Value::Other);
        let next = format!("{nested}:7\r\n");
        let expected = vec![Value::Other, Value::Integer(7)];
        assert_eq!(decode_whole(next.as_bytes()), (expected, Ok(())));
    }
    // Every tree of arrays of up to two elements, three deep, and of nulls.
    let mut trees = vec![String::from("_\r\n"), String::from("*0\r\n")];
    for _ in 0..2 {
        let elements = trees.clone();
        for first in &elements {
            trees.push(format!("*1\r\n{first}"));
            for second in &elements {
                trees.push(format!("*2\r\n{first}{second}"));
            }
        }
    }
    assert_eq!(trees.len(), 80);
    for tree in trees.iter().skip(1) {
        assert_eq!(
            value(tree),
            if tree == "_\r\n" {
                Value::Nil
            } else {
                Value::Other
            }
        );
        let push = tree.replacen('*', ">", 1);
        if push != *tree {
            let (values, end) = decode_whole(format!("{push}:7\r\n").as_bytes());
            assert_eq!((values, end), (vec![Value::Integer(7)], Ok(())), "{push}");
        }
    }
}

#[test]
fn only_four_numbers_side_by_side_are_an_array_of_numbers() {
    const ELEMENTS: [&str; 7] = [
        ":7\r\n",
        "_\r\n",
        "+OK\r\n",
        "-E\r\n",
        "$0\r\n\r\n",
        "*1\r\n",
        "*4\r\n",
    ];
    let mut inputs = vec![String::from("*4\r\n")];
    let mut found = 0;
    for _ in 0..5 {
        inputs = inputs
            .iter()
            .flat_map(|input| ELEMENTS.map(|element| format!("{input}{element}")))
            .collect();
        for input in &inputs {
            let expected = model::decode(input.as_bytes());
            assert_eq!(decode_whole(input.as_bytes()), expected, "{input}");
            let bytes = input.as_bytes().chunks(1);
            assert_eq!(decode(bytes), expected, "{input}, byte by byte");
            found += usize::from(expected.0.contains(&Value::Integers([7; 4])));
        }
    }
    // By itself, and with each of the elements behind it.
    assert_eq!(found, 1 + ELEMENTS.len());
    for count in (0..=9).filter(|count| *count != 4) {
        let array = format!("*{count}\r\n{}", ":7\r\n".repeat(count));
        assert_eq!(value(&array), Value::Other);
    }
}

#[test]
fn numbers_of_one_array_do_not_get_into_the_next() {
    let four = "*4\r\n:1\r\n:2\r\n:3\r\n:4\r\n";
    let mixed = "*4\r\n:1\r\n:2\r\n_\r\n:4\r\n";
    let push = ">4\r\n:1\r\n:2\r\n:3\r\n:4\r\n";
    let input = format!("{four}{mixed}{four}:5\r\n{push}{four}-E\r\n{push}+OK\r\n");
    let numbers = Value::Integers([1, 2, 3, 4]);
    let expected = vec![
        numbers,
        Value::Other,
        numbers,
        Value::Integer(5),
        numbers,
        Value::Error(rejection(b"E")),
        Value::Ok,
    ];
    assert_eq!(decode_whole(input.as_bytes()), (expected, Ok(())));
}

#[test]
fn more_elements_than_can_be_counted_are_refused_and_do_not_wrap() {
    // 64 arrays of 1024 elements, each in the one before, and another of 64: 65,537 to come, less one.
    let nested = format!("{}*64\r\n", "*1024\r\n".repeat(64));
    for more in [0, 1, 64] {
        let input = format!("{nested}{}", "_\r\n".repeat(more));
        assert_eq!(decode_whole(input.as_bytes()), (vec![], Ok(())));
    }
    let deepest = "*1024\r\n".repeat(146);
    assert_eq!(decode_whole(deepest.as_bytes()), (vec![], Ok(())));
    let longer = format!("{deepest}_\r\n");
    assert_eq!(decode_whole(longer.as_bytes()), (vec![], Err(Malformed)));
}

#[test]
fn a_bare_line_feed_and_a_bare_carriage_return_are_refused() {
    for input in [
        "\n",
        "\r",
        "+\n",
        "+OK\n",
        "-ERR\n",
        "-ERR x\n",
        ":1\n",
        "$1\n",
        "*1\n",
        ">1\n",
        "_\n",
        "+OK\rx",
        "+OK\r\r",
        "-ERR\r\r",
        "-ERR\r-",
        ":1\r\r",
        ":1\r1",
        "$0\r0",
        "$0\r\n\n",
        "$1\r\nx\n",
        "$1\r\nxx",
        "$1\r\nx\r\r",
        "$0\r\nx",
        "*0\r*",
        ">0\r>",
        "_\r_",
        "_x",
    ] {
        assert_refused(input);
    }
}

#[test]
fn no_reply_begins_with_another_byte() {
    for byte in 0..=u8::MAX {
        if !b"+-:$*>_".contains(&byte) {
            assert_refused([byte]);
            assert_refused([b"+OK\r\n".as_slice(), &[byte]].concat());
            assert_refused([b"*2\r\n_\r\n".as_slice(), &[byte]].concat());
        }
    }
}

#[test]
fn every_short_input_is_read_as_the_protocol_says() {
    fn check(alphabet: &[u8], len: usize) -> usize {
        let mut input = Vec::new();
        let mut count = 0;
        let number_max = alphabet.len().pow(u32::try_from(len).unwrap());
        for number in 0..number_max {
            input.clear();
            let mut rest = number;
            for _ in 0..len {
                input.push(alphabet[rest % alphabet.len()]);
                rest /= alphabet.len();
            }
            let expected = model::decode(&input);
            let shown = input.escape_ascii();
            assert_eq!(decode_whole(&input), expected, "{shown}");
            assert_eq!(decode(input.chunks(1)), expected, "{shown}, byte by byte");
            count += usize::from(!expected.0.is_empty());
        }
        count
    }
    let every_byte: Vec<u8> = (0..=u8::MAX).collect();
    check(&every_byte, 1);
    check(&every_byte, 2);
    for len in 1..=4 {
        check(b"+-:$*>_\r\n0129OKx \0\xff", len);
    }
    // Short words, so that whole replies are among them, arrays and pushes too.
    assert!(check(b"*>_1\r\n", 6) > 10);
    assert!(check(b"_\r\n", 9) > 30);
}

#[test]
fn every_sequence_of_tokens_is_read_as_the_protocol_says() {
    const TOKENS: [&str; 15] = [
        "+OK\r\n", "+x\r\n", "-E\r\n", ":1\r\n", "_\r\n", "$-1\r\n", "$0\r\n", "$1\r\n", "\r\n",
        "x\r\n", "*-1\r\n", "*0\r\n", "*1\r\n", "*2\r\n", ">1\r\n",
    ];
    let mut inputs = vec![String::new()];
    for _ in 0..4 {
        inputs = inputs
            .iter()
            .flat_map(|input| TOKENS.map(|token| format!("{input}{token}")))
            .collect();
        for input in &inputs {
            assert_eq!(
                decode_whole(input.as_bytes()),
                model::decode(input.as_bytes()),
                "{input}"
            );
        }
        // A prefix that is refused stays refused: that part of the tree need not grow.
        inputs.retain(|input| model::decode(input.as_bytes()).1.is_ok());
    }
}

/// Every form, and between them what is passed over.
const MIXTURE: &[u8] =
    b"+OK\r\n-ERR no\r\n:-12\r\n$-1\r\n>2\r\n$1\r\nx\r\n_\r\n$3\r\n\r\n$\r\n*-1\r\n\
      *4\r\n:1\r\n:-2\r\n:33\r\n:4\r\n\
      *2\r\n*1\r\n+OK\r\n:1\r\n_\r\n+PONG\r\n>0\r\n*0\r\n$0\r\n\r\n:9\r\n";

#[test]
fn wherever_the_network_cuts_the_values_are_the_same() {
    let expected = model::decode(MIXTURE);
    assert_eq!((expected.0.len(), expected.1), (13, Ok(())));
    for first in 0..=MIXTURE.len() {
        for second in first..=MIXTURE.len() {
            let pieces = [
                &MIXTURE[..first],
                &MIXTURE[first..second],
                &MIXTURE[second..],
            ];
            assert_eq!(decode(pieces), expected, "cut at {first} and {second}");
        }
    }
    for size in 1..=MIXTURE.len() {
        assert_eq!(
            decode(MIXTURE.chunks(size)),
            expected,
            "in pieces of {size}"
        );
    }
}

#[test]
fn a_reply_that_is_cut_off_is_no_value_and_no_error() {
    for end in 0..=MIXTURE.len() {
        let (values, result) = decode_whole(&MIXTURE[..end]);
        assert_eq!(result, Ok(()));
        let expected = model::decode(&MIXTURE[..end]).0;
        assert_eq!(values, expected);
    }
}

#[test]
fn decoding_stops_behind_each_reply() {
    let mut input: &[u8] = b":1\r\n+OK\r\n$-";
    let mut decoder = Decoder::default();
    assert_eq!(decoder.decode(&mut input), Ok(Some(Value::Integer(1))));
    assert_eq!(input, b"+OK\r\n$-");
    assert_eq!(decoder.decode(&mut input), Ok(Some(Value::Ok)));
    assert_eq!(input, b"$-");
    assert_eq!(decoder.decode(&mut input), Ok(None));
    assert_eq!(input, b"");
    assert_eq!(decoder.decode(&mut input), Ok(None));
    input = b"1\r\n";
    assert_eq!(decoder.decode(&mut input), Ok(Some(Value::Nil)));
}

#[test]
fn of_an_error_the_beginning_is_kept() {
    for len in 1..=70 {
        let text: String = ('a'..='z').cycle().take(len).collect();
        let Value::Error(error) = value(format!("-{text}\r\n")) else {
            panic!("an error");
        };
        let kept = &text[..len.min(Rejection::LEN)];
        assert_eq!(error.as_bytes(), kept.as_bytes());
        let dots = if len > Rejection::LEN { ".." } else { "" };
        assert_eq!(error.to_string(), format!("{kept}{dots}"));
    }
    let Value::Error(error) = value("-\r\n") else {
        panic!("an error");
    };
    assert_eq!(error.to_string(), "an error without a message");
}

#[test]
fn the_code_of_an_error_is_its_first_word() {
    for (text, code) in [
        ("NOAUTH Authentication required.", "NOAUTH"),
        ("LOADING", "LOADING"),
        ("ERR  two spaces", "ERR"),
        ("", ""),
        (" x", ""),
        (
            "ALONGCODEWITHOUTASPACEINTHEFIRST32BYTES of it",
            "ALONGCODEWITHOUTASPACEINTHEFIRST",
        ),
    ] {
        let Value::Error(error) = value(format!("-{text}\r\n")) else {
            panic!("an error");
        };
        assert_eq!(error.code(), code.as_bytes());
    }
}

#[test]
fn errors_one_after_the_other_do_not_mix() {
    let (values, end) = decode_whole(b"-A LONG ONE\r\n+A STATUS\r\n-B\r\n*1\r\n-IN IT\r\n-C\r\n");
    assert_eq!(end, Ok(()));
    let expected = [
        Value::Error(rejection(b"A LONG ONE")),
        Value::Other,
        Value::Error(rejection(b"B")),
        Value::Other,
        Value::Error(rejection(b"C")),
    ];
    assert_eq!(values, expected);
}

#[test]
fn an_error_is_shown_in_one_printable_line_whatever_the_node_sent() {
    for byte in (0..=u8::MAX).filter(|byte| !b"\r\n".contains(byte)) {
        let input = [b"-E".as_slice(), &[byte; 40], b"\r\n"].concat();
        let Value::Error(error) = value(input) else {
            panic!("an error");
        };
        assert_eq!(error.as_bytes()[1..], [byte; 31]);
        for shown in [error.to_string(), format!("{error:?}")] {
            assert!(
                shown.bytes().all(|byte| (b' '..=b'~').contains(&byte)),
                "{shown}"
            );
        }
        let is_printable = (b' '..=b'~').contains(&byte);
        let shown_as = if is_printable { char::from(byte) } else { '?' };
        assert!(error.to_string().contains(shown_as));
    }
    assert_eq!(Malformed.to_string(), "not a valid Redis reply");
}
