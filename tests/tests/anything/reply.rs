//! Answers of every kind.

use std::iter::repeat_with;

use fastrand::Rng;

/// What is sent for one command: mostly something that is RESP, sometimes what was asked for.
pub(crate) fn random(random: &mut Rng, command: &str) -> Vec<u8> {
    match random.u8(0..20) {
        0..7 => right(command).to_vec(),
        7..11 => value(random, 0),
        11..14 => numbers(random),
        14 => truncated(random),
        15 => twisted(random),
        16 => oversized(random),
        17 => deep(random),
        18 => repeat_with(|| value(random, 0)).take(3).flatten().collect(),
        _ => Vec::new(),
    }
}

/// What an honest node would answer that grants everything.
pub(crate) fn right(command: &str) -> &'static [u8] {
    match command {
        "SCRIPT" => b"$40\r\n0123456789abcdef0123456789abcdef01234567\r\n",
        "EVAL" => b"*4\r\n:4711\r\n:4712\r\n:4000003\r\n:60000\r\n",
        "EVALSHA" => b":1\r\n",
        _ => b"+OK\r\n",
    }
}

/// What a node says of itself, and answers to a fenced acquire: four numbers, here any.
fn numbers(random: &mut Rng) -> Vec<u8> {
    let mut bytes = b"*4\r\n".to_vec();
    for _ in 0..4 {
        let number = match random.u8(0..6) {
            0 => i64::MAX,
            1 => i64::MIN,
            2 => random.i64(..),
            // A time in microseconds, of this century.
            3 => random.i64(1_000_000_000_000_000..4_000_000_000_000_000),
            _ => random.i64(-1..10),
        };
        bytes.extend(format!(":{number}\r\n").bytes());
    }
    bytes
}

/// A value of any type of RESP2 and RESP3, with a length that is right.
fn value(random: &mut Rng, depth: u32) -> Vec<u8> {
    const SIMPLE: [&str; 20] = [
        "+OK\r\n",
        "+\r\n",
        "+QUEUED\r\n",
        "-ERR no\r\n",
        "-\r\n",
        "-NOSCRIPT No matching script\r\n",
        "-READONLY You can't write against a read only replica.\r\n",
        "-LOADING Redis is loading the dataset in memory\r\n",
        "-BUSY\r\n",
        "-NOPERM\r\n",
        ":0\r\n",
        ":1\r\n",
        ":-1\r\n",
        ":9223372036854775807\r\n",
        "$-1\r\n",
        "*-1\r\n",
        "_\r\n",
        "#t\r\n",
        ",1.5e300\r\n",
        "(3492890328409238509324850943850943825024385\r\n",
    ];
    const AGGREGATES: [char; 5] = ['*', '*', '%', '~', '>'];

    match random.u8(0..10) {
        0..5 => SIMPLE[random.usize(..SIMPLE.len())].into(),
        5 => format!(":{}\r\n", random.i64(..)).into(),
        6 => bulk(random, '$'),
        7 => {
            let kind = ['!', '=', '$'][random.usize(..3)];
            bulk(random, kind)
        }
        _ if depth < 4 => {
            let kind = AGGREGATES[random.usize(..AGGREGATES.len())];
            let count = random.usize(..6);
            let values = if kind == '%' { count * 2 } else { count };
            let mut bytes = format!("{kind}{count}\r\n").into_bytes();
            (0..values).for_each(|_| bytes.extend(value(random, depth + 1)));
            bytes
        }
        _ => b"*0\r\n".to_vec(),
    }
}

fn bulk(random: &mut Rng, kind: char) -> Vec<u8> {
    let length = random.usize(..300);
    let mut bytes = format!("{kind}{length}\r\n").into_bytes();
    bytes.extend(repeat_with(|| random.u8(..)).take(length));
    bytes.extend(b"\r\n");
    bytes
}

fn truncated(random: &mut Rng) -> Vec<u8> {
    let mut bytes = value(random, 0);
    bytes.truncate(random.usize(..=bytes.len()));
    bytes
}

/// With some bytes that are others.
fn twisted(random: &mut Rng) -> Vec<u8> {
    let mut bytes = value(random, 0);
    for _ in 0..random.usize(1..5) {
        let index = random.usize(..bytes.len());
        bytes[index] = random.u8(..);
    }
    bytes
}

/// More than there is, or than there should be.
fn oversized(random: &mut Rng) -> Vec<u8> {
    const LENGTHS: [&str; 8] = [
        "9223372036854775807",
        "9223372036854775808",
        "-9223372036854775808",
        "4294967296",
        "2147483647",
        "536870912",
        "1000000",
        "-2",
    ];
    let kind = ['$', '*', '%', '~', '>', '!', '=', '|'][random.usize(..8)];
    let mut bytes = format!("{kind}{}\r\n", LENGTHS[random.usize(..8)]).into_bytes();
    let count = random.usize(..20_000);
    bytes.extend(b":1\r\n".repeat(count));
    bytes
}

/// Arrays in arrays.
fn deep(random: &mut Rng) -> Vec<u8> {
    let mut bytes = b"*1\r\n".repeat(random.usize(1..20_000));
    bytes.extend(b":1\r\n");
    bytes
}
