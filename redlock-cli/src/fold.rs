//! Lines that fit a terminal. Elsewhere, for example in a log or a pipe, each line stays whole.

#[cfg(unix)]
use std::os::fd::AsFd;

use unicode_width::UnicodeWidthStr;

/// The number of columns of the terminal behind this stream. `None` if it is no terminal, or does not tell.
#[cfg(unix)]
pub(crate) fn columns(stream: impl AsFd) -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(stream).ok()?;
    // A narrower one would break words.
    (size.ws_col >= 40).then_some(size.ws_col.into())
}

#[cfg(not(unix))]
pub(crate) fn columns<T>(_stream: T) -> Option<usize> {
    None
}

/// Breaks lines at blanks, and indents what follows by four more than the line. A word that is longer than a line stays whole.
pub(crate) fn fold(text: &str, columns: Option<usize>) -> String {
    let Some(columns) = columns else {
        return text.to_owned();
    };
    let mut folded = String::new();
    for line in text.split_inclusive('\n') {
        let (line, end) = match line.strip_suffix('\n') {
            Some(line) => (line, "\n"),
            None => (line, ""),
        };
        let indent = 4 + line.len() - line.trim_start_matches(' ').len();
        // Blanks that align columns stay as they are where the line is not broken.
        let (mut width, mut is_begun) = (0, false);
        for word in line.split_inclusive(' ') {
            let visible = word.trim_end_matches(' ').width();
            if is_begun && visible > 0 && width + visible > columns {
                folded.truncate(folded.trim_end_matches(' ').len());
                folded.push('\n');
                folded.extend(std::iter::repeat_n(' ', indent));
                width = indent;
            }
            folded.push_str(word);
            width += word.width();
            is_begun |= visible > 0;
        }
        folded.push_str(end);
    }
    folded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_broken_at_blanks_and_what_follows_is_indented() {
        let text = "a:1  held     eb58e2e2.., 9.4 s left\nline: empty\n";
        assert_eq!(fold(text, None), text);
        assert_eq!(fold(text, Some(36)), text);
        assert_eq!(
            fold(text, Some(35)),
            "a:1  held     eb58e2e2.., 9.4 s\n    left\nline: empty\n"
        );
        assert_eq!(fold("  a b c d", Some(7)), "  a b c\n      d");
        assert_eq!(
            fold("an extraordinary word", Some(8)),
            "an\n    extraordinary\n    word"
        );
        assert_eq!(fold("", Some(8)), "");
    }

    #[test]
    fn a_letter_that_takes_two_columns_counts_as_two() {
        assert_eq!(fold("倉庫 の", Some(7)), "倉庫 の");
        assert_eq!(fold("倉庫 の", Some(6)), "倉庫\n    の");
    }
}
