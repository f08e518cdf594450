//! The recipes of README.md, as they stand there.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use redlock_tests::Servers;
use tempfile::tempdir;

use crate::process::{end_of, expect_no_keys, heed_signals};

/// The programs that recipes run. Each appends its name to a file.
const PROGRAMS: [&str; 4] = ["backup.sh", "migrate", "stop-traffic", "start-traffic"];

#[test]
fn each_recipe_does_what_it_says() {
    heed_signals();
    let servers = Servers::start(3);
    let recipes = recipes();
    assert_eq!(recipes.len(), 8, "{recipes:?}");
    for (language, text) in recipes {
        let directory = tempdir().unwrap();
        furnish(directory.path(), &servers);
        let place = directory.path().to_str().unwrap();
        let script = script(&language, &text);
        let run = || {
            let ended = end_of(shell(&script, place));
            assert_eq!(ended.code, Some(0), "{script}: {}", ended.stderr);
        };
        run();
        let is_kept = text.contains("--min-hold");
        if is_kept {
            // Another host.
            run();
        }
        let ran = fs::read_to_string(directory.path().join("ran")).unwrap();
        if is_kept {
            assert_eq!(ran.lines().count(), 1, "{script}: {ran}");
            for server in servers.iter() {
                let kept = ["DEL", "nightly-backup", "redlock:owner:nightly-backup"];
                server.query::<usize>(&kept).unwrap();
            }
        }
        for program in PROGRAMS.iter().filter(|program| text.contains(**program)) {
            assert!(ran.lines().any(|line| line == *program), "{script}: {ran}");
        }
        let left = fs::read_dir(place).unwrap().flatten();
        let mut leases = left.filter(|file| file.file_name().to_string_lossy().ends_with(".lease"));
        assert!(leases.next().is_none(), "{script}");
        expect_no_keys(&servers);
    }
}

#[test]
fn no_recipe_runs_a_program_while_another_client_holds_the_lock() {
    heed_signals();
    let servers = Servers::start(3);
    for server in servers.iter() {
        for key in KEYS {
            let () = server
                .query(&["SET", key, "another", "PX", "600000"])
                .unwrap();
        }
    }
    for (language, text) in recipes() {
        let directory = tempdir().unwrap();
        furnish(directory.path(), &servers);
        let place = directory.path().to_str().unwrap();
        // The recipes wait for minutes, or without a limit.
        let script = script(&language, &text)
            .replace("--wait 10m", "--no-wait")
            .replace("--wait 1m", "--no-wait")
            .replace("--timeout 10m", "--timeout 1ms")
            .replace("redlock lock --ttl", "redlock lock --no-wait --ttl");
        let ended = end_of(shell(&script, place));
        let code = if script.contains("-E 0") { 0 } else { 75 };
        assert_eq!(ended.code, Some(code), "{script}: {}", ended.stderr);
        let ran = fs::read_to_string(directory.path().join("ran"));
        assert!(ran.is_err(), "{script}: {ran:?}");
    }
    for (server, key) in servers
        .iter()
        .flat_map(|server| KEYS.map(|key| (server, key)))
    {
        assert_eq!(server.query::<String>(&["GET", key]).unwrap(), "another");
    }
}

/// The locks of the recipes.
const KEYS: [&str; 3] = ["nightly-backup", "migration", "deploy"];

/// A shell as it runs scripts, without options: a recipe has those that it needs.
fn shell(script: &str, place: &str) -> Command {
    let script = ["/etc/redlock", "/usr/local/bin"]
        .iter()
        .fold(script.to_owned(), |script, path| {
            script.replace(path, place)
        });
    let mut shell = Command::new("sh");
    shell
        .args(["-c", &script])
        .current_dir(place)
        .env(
            "PATH",
            format!("{place}:{}", std::env::var("PATH").unwrap()),
        )
        .env("CREDENTIALS_DIRECTORY", place)
        .env("REDLOCK_NODES_FILE", format!("{place}/nodes"))
        .env_remove("REDLOCK_NODES");
    shell
}

/// The language and the text of each block below "Recipes".
fn recipes() -> Vec<(String, String)> {
    let readme = include_str!("../../README.md");
    let (_, from) = readme.split_once("\n## Recipes\n").unwrap();
    let (section, _) = from.split_once("\n## ").unwrap();
    let parts: Vec<&str> = section.split("```").collect();
    let blocks = parts.iter().skip(1).step_by(2);
    let split = blocks.map(|block| block.split_once('\n').unwrap());
    split
        .map(|(language, text)| (language.to_owned(), text.to_owned()))
        .collect()
}

/// What the program that reads the block runs.
fn script(language: &str, text: &str) -> String {
    match language {
        "sh" => text.to_owned(),
        // Five fields for the time, and the user.
        "cron" => text
            .split_whitespace()
            .skip(6)
            .collect::<Vec<_>>()
            .join(" "),
        "ini" => {
            let mut lines = text.lines();
            let start = lines.find_map(|line| line.strip_prefix("ExecStart="));
            start.unwrap().to_owned()
        }
        "yaml" => {
            let mut lines = text.lines();
            let list = lines.find_map(|line| line.trim().strip_prefix("command: "));
            let words: Vec<String> = serde_json::from_str(list.unwrap()).unwrap();
            words.join(" ")
        }
        other => panic!("a recipe in {other}"),
    }
}

/// Makes the programs and the list of nodes.
fn furnish(directory: &Path, servers: &Servers) {
    symlink(env!("CARGO_BIN_EXE_redlock"), directory.join("redlock")).unwrap();
    fs::write(directory.join("nodes"), servers.urls().join("\n")).unwrap();
    for program in PROGRAMS {
        let path = directory.join(program);
        let ran = directory.join("ran");
        fs::write(
            &path,
            format!("#!/bin/sh\necho {program} >> {}\n", ran.display()),
        )
        .unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }
}
