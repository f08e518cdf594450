//! Commands of the core as they are written.

use itoa::Buffer;
use redlock_core::FENCE_KEY_PREFIX;
use redlock_core::transport::{Argument, Arguments};

/// Appends a command of these words to `bytes`: an array of bulk strings.
pub(crate) fn write(mut arguments: Arguments<'_>, bytes: &mut Vec<u8>) {
    write_head(b'*', arguments.len(), bytes);
    // By reference: a copy of all words shows in benchmarks.
    for argument in arguments.by_ref() {
        let mut digits = Buffer::new();
        let (prefix, rest) = match &argument {
            Argument::Bytes(word) => ("", *word),
            Argument::Integer(number) => ("", digits.format(*number).as_bytes()),
            Argument::FenceKey(key) => (FENCE_KEY_PREFIX, *key),
            Argument::Line(word) => word.pieces(),
        };
        write_head(b'$', prefix.len() + rest.len(), bytes);
        bytes.extend_from_slice(prefix.as_bytes());
        bytes.extend_from_slice(rest);
        bytes.extend_from_slice(b"\r\n");
    }
}

fn write_head(kind: u8, count: usize, bytes: &mut Vec<u8>) {
    // Nearly all of them, at a fraction of the time.
    match u8::try_from(count) {
        Ok(count @ 0..10) => bytes.extend_from_slice(&[kind, b'0' + count, b'\r', b'\n']),
        Ok(count @ 10..100) => {
            let [tens, ones] = [count / 10, count % 10];
            bytes.extend_from_slice(&[kind, b'0' + tens, b'0' + ones, b'\r', b'\n']);
        }
        _ => {
            bytes.push(kind);
            bytes.extend_from_slice(Buffer::new().format(count).as_bytes());
            bytes.extend_from_slice(b"\r\n");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_written_as_the_redis_crate_writes_its_words() {
        for length in [0, 1, 9, 10, 99, 100, 999, 70_000] {
            let long = vec![b'x'; length];
            let mut bytes = b"before".to_vec();
            let arguments = Arguments::of(&[
                Argument::Bytes(b"SET"),
                Argument::Bytes(b"a\r\nkey"),
                Argument::Bytes(&[0xff; 20]),
                Argument::Bytes(&long),
                Argument::Integer(0),
                Argument::Integer(u64::MAX),
                Argument::FenceKey(b"dock-7"),
            ]);
            write(arguments, &mut bytes);
            let mut expected = redis::cmd("SET");
            expected.arg(b"a\r\nkey").arg(&[0xff_u8; 20][..]).arg(&long);
            expected.arg(0).arg(u64::MAX).arg("redlock:fence:dock-7");
            assert_eq!(
                bytes.strip_prefix(b"before"),
                Some(&*expected.get_packed_command())
            );
        }
    }

    #[test]
    fn the_number_of_words_is_written_in_decimal() {
        for count in 0..=Arguments::MAX {
            let mut bytes = Vec::new();
            write(
                Arguments::of(&vec![Argument::Integer(1); count]),
                &mut bytes,
            );
            let expected = format!("*{count}\r\n{}", "$1\r\n1\r\n".repeat(count));
            assert_eq!(String::from_utf8_lossy(&bytes), expected);
        }
    }
}
