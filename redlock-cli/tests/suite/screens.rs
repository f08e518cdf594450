//! What stands on a terminal, as `docs/terminal.md` shows it.

use std::fmt::Write;
use std::fs;

use redlock_tests::Servers;

use crate::owner::expect_owner;
use crate::process::{Process, eventually, run};
use crate::terminal::Terminal;
use crate::waiters::{subscribe, wait};

/// Set to draw the page anew.
const DRAW: &str = "REDLOCK_DRAW";

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/terminal.md");

const CLEAR: &str = "\x1b[H\x1b[2J";

#[test]
fn a_state_that_begins_the_rest_of_a_line_is_painted() {
    let servers = Servers::start(3);
    let key = "k".repeat(58);
    let line = format!("stty cols 60; exec $REDLOCK inspect {key}");
    let terminal = Terminal::start_shell(&servers, &line);
    terminal.expect(&format!("{key}:\r\n    \x1b[32mfree\x1b[0m"));
    terminal.end();
}

#[test]
fn the_lines_of_break_fit_the_terminal() {
    let servers = Servers::start(3);
    let script = "echo ready; exec sleep 60";
    let holder = Process::ready(run(&servers, &["--ttl=60s"], "dock-7", script));
    // The answer of this node is a long line too.
    servers[2].pause();
    for (options, answer, end) in [
        ("--token-prefix=00000000", "", "names"),
        ("", "n\n", "not broken"),
    ] {
        let line = format!(
            "stty cols 40; $REDLOCK break --node-timeout=2s {options} dock-7; echo code $?"
        );
        let mut terminal = Terminal::start_shell(&servers, &line);
        if !answer.is_empty() {
            terminal.expect("[y/N]");
            terminal.type_in(answer);
        }
        terminal.expect("code 1");
        let text = terminal.text();
        assert!(text.contains(end), "{text}");
        let longest = text
            .lines()
            .map(|line| line.trim_end().chars().count())
            .max();
        assert!(longest.unwrap() <= 40, "{text}");
        terminal.end();
    }
    servers[2].resume();
    drop(holder);
}

#[test]
fn the_docs_show_what_stands_on_a_terminal() {
    let servers = Servers::start(3);
    let options = ["--ttl=60s", "--owner=web-1:4711"];
    let holder = Process::ready(run(
        &servers,
        &options,
        "dock-7",
        "echo ready; exec sleep 90",
    ));
    let mut connections = Vec::new();
    for server in &servers[..2] {
        wait(server, "00000000000000f1", 12_000);
        wait(server, "00000000000000f2", 10_000);
        connections.push(subscribe(server, "00000000000000f1"));
    }
    // The record is on both.
    expect_owner(&servers[..2], Some("web-1:4711"));
    servers[2].pause();
    let mut page = INTRODUCTION.to_owned();
    for columns in [60, 120] {
        let watch = |environment: &str| {
            let line =
                format!("stty cols {columns}; {environment} exec $REDLOCK inspect --watch dock-7");
            let mut terminal = Terminal::start_shell(&servers, &line);
            let mut frame = None;
            eventually("a frame", || {
                frame = last_frame(&terminal.text());
                frame.is_some()
            });
            terminal.type_in("\x03");
            terminal.end();
            plain(&frame.unwrap(), &servers)
        };
        let (coloured, colourless) = (watch("NO_COLOR="), watch("NO_COLOR=1"));
        let without = |text: &str| {
            let parts = text.split("\x1b[");
            let parts = parts.enumerate().map(|(number, part)| match number {
                0 => part,
                _ => part.split_once('m').unwrap().1,
            });
            parts.collect::<String>()
        };
        // The colours are all that differs.
        assert_ne!(coloured, colourless);
        assert_eq!(without(&coloured), colourless);
        let line = format!("stty cols {columns}; exec $REDLOCK run dock-7 -- true");
        let mut terminal = Terminal::start_shell(&servers, &line);
        eventually("the holder", || {
            plain(&terminal.text(), &servers).ends_with("59.0 s\n")
        });
        let waiting = plain(&terminal.text(), &servers);
        terminal.type_in("\x03");
        terminal.end();
        for (what, text) in [
            ("redlock inspect --watch dock-7", &coloured),
            ("NO_COLOR=1 redlock inspect --watch dock-7", &colourless),
            ("redlock run dock-7 -- ./unload", &waiting),
        ] {
            // A line that is broken by the terminal is hard to read.
            let longest = without(text).lines().map(|line| line.chars().count()).max();
            assert!(longest.unwrap() <= columns, "{text}");
            let text = text.replace('\x1b', "ESC");
            writeln!(
                page,
                "\n## {columns} columns: `{what}`\n\n```text\n{text}```"
            )
            .unwrap();
        }
    }
    drop(holder);
    if std::env::var_os(DRAW).is_some() {
        fs::write(PAGE, &page).unwrap();
    }
    let drawn = fs::read_to_string(PAGE).unwrap_or_default();
    assert_eq!(page, drawn, "{DRAW}=1 draws it anew");
}

const INTRODUCTION: &str = "# What stands on a terminal

Drawn by a test (`redlock-cli/tests/suite/screens.rs`), which fails if the command prints something else. `ESC` begins a colour.
Ports, tokens and times are replaced. In a pipe or a file, lines are not broken and have no colours. Neither are lines broken on a
terminal of less than 40 columns, nor those of `demo`, nor what is wrong with the arguments; a word that is longer than a line stays whole.
";

/// What stands between the last two clearings of the screen.
fn last_frame(text: &str) -> Option<String> {
    let (before, _) = text.rsplit_once(CLEAR)?;
    let (_, frame) = before.rsplit_once(CLEAR)?;
    Some(frame.to_owned())
}

/// The text with what differs from run to run replaced by something of the same width.
fn plain(text: &str, servers: &Servers) -> String {
    let mut text = text.replace('\r', "");
    for (number, server) in servers.iter().enumerate() {
        text = text.replace(
            &format!(":{}", server.port()),
            &format!(":6379{}", number + 1),
        );
    }
    let words = text.split_inclusive([' ', '\n', '(']);
    words.map(replaced).collect()
}

fn replaced(word: &str) -> String {
    let shape: String = word
        .trim_end()
        .chars()
        .map(|letter| match letter {
            '0'..='9' => '0',
            'a'..='f' => 'f',
            other => other,
        })
        .collect();
    let is_token = |text: &str| {
        let digits = text.trim_end_matches([',', '.']);
        digits.len() == 8
            && text.contains("..")
            && digits.bytes().all(|digit| matches!(digit, b'0' | b'f'))
    };
    let end = word.get(word.trim_end().len()..).unwrap_or_default();
    if is_token(&shape) {
        let rest = word.get(8..).unwrap_or_default();
        return format!("eb58e2e2{rest}");
    }
    match &shape[..] {
        "00.0" => format!("59.0{end}"),
        "0000-00-00T00:00:00.000Z" | "0000-00-00T00:00:00.000Z," => {
            format!(
                "2026-01-31T03:00:00.000Z{}{end}",
                if shape.ends_with(',') { "," } else { "" }
            )
        }
        _ => word.to_owned(),
    }
}
