//! The Lua scripts as they are sent: the commented ones in `redlock-core/src/scripts`, made short. A device keeps them in
//! flash, and they go over the wire.
//!
//! Comments go, and blanks that Lua does not need. The names of reply codes become their numbers, and the names of local
//! variables become single letters. So a script names no variable like a field, and ends no statement in front of a `(`.

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "this is what the command prints"
)]
#![expect(
    clippy::expect_used,
    reason = "a script that cannot be made short has to be written in another way"
)]

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use sha1_smol::Sha1;

const NAMES: [&str; 12] = [
    "acquire_fenced",
    "acquire_fenced_queued",
    "acquire_queued",
    "extend",
    "extend_fenced",
    "keep",
    "node_info",
    "release",
    "release_fenced",
    "release_fenced_queued",
    "release_outside",
    "release_queued",
];

/// Scripts that are made of others: of all their lines, also of those that begin with [`IN_LINE`].
const OF_ALL_LINES: [(&str, &str); 2] = [
    ("acquire_fenced_queued", "acquire_fenced"),
    ("release_fenced_queued", "release_fenced"),
];

/// Such a line is a comment, but for clients that stand in the waiting line.
const IN_LINE: &str = "--+ ";

/// A line with this word is replaced by the file that it names.
const INCLUDE: &str = "include ";

/// What the names of reply codes stand for.
const CODES: &str = "codes.lua";

/// Writes the scripts as they are sent, and their hashes, into `redlock-core/src/scripts/sent`.
#[derive(Debug, clap::Args)]
pub struct Arguments {}

/// Does what the command line says.
#[must_use]
pub fn run(_arguments: &Arguments) -> ExitCode {
    match all().and_then(|scripts| scripts.iter().try_for_each(Sent::write)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cannot write the scripts: {error}");
            ExitCode::FAILURE
        }
    }
}

/// A script as it is sent.
#[derive(Debug)]
pub struct Sent {
    /// Its name, without `.lua`.
    pub name: &'static str,
    /// The Lua.
    pub text: String,
    /// The hash by which a node knows it, in hexadecimal.
    pub sha1: String,
}

/// All scripts, made from the commented ones.
///
/// # Errors
///
/// If they cannot be read.
pub fn all() -> io::Result<Vec<Sent>> {
    let codes = codes(&fs::read_to_string(folder().join(CODES))?);
    NAMES
        .into_iter()
        .map(|name| {
            let source = source(name)?;
            let text = shortened(&source, &codes);
            let sha1 = Sha1::from(&text).digest().to_string();
            Ok(Sent { name, text, sha1 })
        })
        .collect()
}

/// The text and the hash that are sent of the script of this name.
///
/// # Errors
///
/// If they cannot be read.
pub fn sent(name: &str) -> io::Result<(String, String)> {
    let path = folder().join("sent").join(name);
    let text = fs::read_to_string(path.with_extension("lua"))?;
    Ok((text, fs::read_to_string(path.with_extension("sha1"))?))
}

impl Sent {
    fn write(&self) -> io::Result<()> {
        let path = folder().join("sent").join(self.name);
        fs::write(path.with_extension("lua"), &self.text)?;
        fs::write(path.with_extension("sha1"), &self.sha1)?;
        println!("{:>5} bytes  {}", self.text.len(), self.name);
        Ok(())
    }
}

/// The commented Lua of the script of this name.
fn source(name: &str) -> io::Result<String> {
    let read = |name: &str| fs::read_to_string(folder().join(name).with_extension("lua"));
    let whole = OF_ALL_LINES.iter().find(|(of, _)| *of == name);
    let source = match whole {
        Some((_, part)) => read(part)?.replace(IN_LINE, ""),
        None => read(name)?,
    };
    let mut whole = String::new();
    for line in source.lines() {
        match line.trim_start().strip_prefix(INCLUDE) {
            Some(file) => whole += &fs::read_to_string(folder().join(file))?,
            None => whole += line,
        }
        whole.push('\n');
    }
    Ok(whole)
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../redlock-core/src/scripts")
}

/// The reply codes by name: `local NAME = NUMBER`, one a line.
#[must_use]
pub fn codes(source: &str) -> HashMap<String, String> {
    let words: Vec<_> = words(source);
    words
        .chunks_exact(4)
        .map(|line| (line[1].to_owned(), line[3].to_owned()))
        .collect()
}

fn shortened(source: &str, codes: &HashMap<String, String>) -> String {
    let words = words(source);
    let locals = locals(&words);
    let mut short = String::new();
    let mut before = "";
    for word in words {
        let is_field = matches!(before, "." | ":");
        let new = match locals.iter().position(|local| *local == word) {
            Some(number) if !is_field => letter(number),
            _ => codes.get(word).cloned().unwrap_or_else(|| word.to_owned()),
        };
        let ends = |text: &str| text.chars().next_back().is_some_and(is_of_word);
        let begins = |text: &str| text.chars().next().is_some_and(is_of_word);
        // `1..` would be a number.
        if ends(&short) && (begins(&new) || new == "..") {
            short.push(' ');
        }
        short.push_str(&new);
        before = word;
    }
    short
}

/// The names of variables, functions and parameters, in the order in which they are declared.
fn locals<'s>(words: &[&'s str]) -> Vec<&'s str> {
    let mut locals = Vec::new();
    for (at, word) in words.iter().enumerate() {
        let names: &[_] = match *word {
            // Its name, and its parameters in brackets.
            "function" => &words[at + 1..],
            "local" if words[at + 1] != "function" => &words[at + 1..],
            _ => continue,
        };
        let list = names.iter().take_while(|word| !matches!(**word, "=" | ")"));
        for name in list.filter(|word| word.starts_with(is_of_word)) {
            if !locals.contains(name) {
                locals.push(*name);
            }
        }
    }
    locals
}

/// `a` to `z`, `A` to `Z`, then two letters that are no word of Lua.
fn letter(number: usize) -> String {
    let letters: Vec<_> = ('a'..='z').chain('A'..='Z').collect();
    match letters.get(number) {
        Some(letter) => letter.to_string(),
        None => letter(number - letters.len()) + "_",
    }
}

/// The words of a script, without comments.
fn words(source: &str) -> Vec<&str> {
    let mut words = Vec::new();
    let mut rest = source.trim_start();
    while let Some(first) = rest.chars().next() {
        let length = if rest.starts_with("--") {
            rest = rest.split_once('\n').map_or("", |(_, rest)| rest);
            rest = rest.trim_start();
            continue;
        } else if is_of_word(first) {
            rest.find(|letter| !is_of_word(letter))
                .unwrap_or(rest.len())
        } else if first == '\'' {
            // No script has a quote in a string.
            1 + rest[1..].find('\'').expect("a string ends") + 1
        } else if ["==", "~=", "<=", ">=", ".."].contains(&rest.get(..2).unwrap_or_default()) {
            2
        } else {
            1
        };
        let (word, after) = rest.split_at(length);
        words.push(word);
        rest = after.trim_start();
    }
    words
}

fn is_of_word(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || letter == '_'
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lua_does_not_need_goes_and_names_become_short() {
        let codes = codes("-- A comment.\nlocal DONE = 7 -- done\nlocal LEFT = 8\n");
        let source = "-- Why.\nlocal info, now = redis.call('a  -- b'), 1\n\
                      local function info_of(name, code) return name .. 1 .. now:info(code) end\n\
                      return {info_of(info, DONE), now ~= LEFT}";
        assert_eq!(
            shortened(source, &codes),
            "local a,b=redis.call('a  -- b'),1 local function c(d,e)return d ..1 ..b:info(e)end \
             return{c(a,7),b~=8}"
        );
    }
}
