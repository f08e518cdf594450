//! `redlock lock`, `extend`, `unlock` and `run --adopt`: leases in files.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use redlock_tests::{Server, Servers};
use rustix::process::Signal;
use serde_json::Value;
use tempfile::{TempDir, tempdir};

use crate::process::{Ended, Process, end_of, eventually, expect_no_keys, has, redlock, run};

const KEY: &str = "dock-7";

#[test]
fn the_owner_of_a_lease_file_can_read_and_write_it_whatever_the_umask_is() {
    let servers = Servers::start(3);
    for umask in ["0777", "0400", "0"] {
        let (_directory, file) = place();
        let inner = redlock(&["lock", "--ttl=5s", "--lease-file"]);
        let mut command = Command::new("sh");
        command
            .args(["-c", "umask \"$0\"; exec \"$@\"", umask])
            .arg(inner.get_program())
            .args(inner.get_args())
            .arg(&file)
            .arg(KEY)
            .env("REDLOCK_NODES", servers.urls().join(","));
        end_of(command).expect_code(0);
        let mode = fs::metadata(&file).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "umask {umask}");
        with(&servers, "unlock", &file).expect_code(0);
    }
}

#[test]
fn a_lock_lasts_from_one_command_of_a_script_to_another() {
    let servers = Servers::start(3);
    for fenced in [&[][..], &["--fenced"]] {
        let (_directory, file) = place();
        lock(&servers, &file, fenced).expect_code(0);
        let mode = fs::metadata(&file).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let held = end_of(run(&servers, &["--no-wait"], KEY, "echo ran"));
        held.expect_code(75);
        let before = document(&file);
        with(&servers, "extend", &file).expect_code(0);
        let after = document(&file);
        assert!(before["valid_until"].as_str() < after["valid_until"].as_str());
        assert_eq!(before["token"], after["token"]);
        let mut told = redlock(&["extend", "-v", "--lease-file"]);
        told.arg(&file)
            .env("REDLOCK_NODES", servers.urls().join(","));
        end_of(told).expect_stderr("extended, valid for");
        with(&servers, "unlock", &file).expect_code(0);
        assert!(!file.exists());
        expect_no_lock(&servers);
        end_of(run(&servers, fenced, KEY, "exit 3")).expect_code(3);
    }
}

#[test]
fn a_lock_that_fails_is_not_told_of_a_command() {
    let mut servers = Servers::start(3);
    for server in servers.iter_mut() {
        server.kill();
    }
    let (_directory, file) = place();
    let ended = lock(&servers, &file, &["--no-wait"]);
    ended.expect_code(69);
    ended.expect_stderr("check whether these nodes are up");
    ended.expect_not_in_stderr("the command was not run");
}

#[test]
fn a_command_adopts_a_lease_extends_it_and_releases_it_at_its_end() {
    let servers = Servers::start(3);
    for fenced in [&["--ttl=3s"][..], &["--ttl=3s", "--fenced"]] {
        let (_directory, file) = place();
        lock(&servers, &file, fenced).expect_code(0);
        let lease = document(&file);
        let script =
            "echo \"$REDLOCK_KEY $REDLOCK_TOKEN ${REDLOCK_FENCE-null}\"; echo ready; exec sleep 60";
        let holder = Process::start(adopt(&servers, &file, &["--json"], script));
        // For longer than its TTL.
        eventually("extensions", || {
            let events = holder.events();
            let extended = events.iter().filter(|event| event["event"] == "extended");
            extended.count() > 3
        });
        let told = format!(
            "dock-7 {} {}",
            lease["token"].as_str().unwrap(),
            lease["fence"]
        );
        assert_eq!(holder.stdout(), format!("{told}\nready\n"));
        // One lease has one holder.
        let other = end_of(adopt(&servers, &file, &[], "echo ran"));
        other.expect_code(75);
        other.expect_stderr("another process uses it");
        for code in ["0", "76"] {
            let other = end_of(adopt(&servers, &file, &["-E", code], "echo ran"));
            other.expect_code(code.parse().unwrap());
            assert!(file.exists(), "it is not that of a second one");
        }
        with(&servers, "unlock", &file).expect_code(75);
        holder.signal(Signal::TERM);
        holder.end().expect_code(128 + 15);
        assert!(!file.exists());
        expect_no_lock(&servers);
    }
}

#[test]
fn a_lease_that_another_client_has_taken_is_lost_for_each_command() {
    let servers = Servers::start(3);
    for command in ["extend", "unlock", "run"] {
        let (_directory, file) = place();
        lock(&servers, &file, &[]).expect_code(0);
        for server in &servers[..2] {
            let _: () = server.query(&["SET", KEY, "another"]).unwrap();
        }
        let ended = match command {
            "run" => end_of(adopt(&servers, &file, &[], "echo ran")),
            command => with(&servers, command, &file),
        };
        ended.expect_code(76);
        ended.expect_stderr("the lease is lost");
        assert_eq!(ended.stdout, "");
        assert!(!file.exists(), "{command}");
        // What the other has stays.
        for server in &servers[..2] {
            assert_eq!(server.query::<String>(&["GET", KEY]).unwrap(), "another");
        }
        clear(&servers);
    }
}

#[test]
fn a_lease_whose_ttl_is_over_is_lost() {
    let servers = Servers::start(3);
    let (_directory, file) = place();
    lock(&servers, &file, &["--ttl=100ms"]).expect_code(0);
    expect_no_keys(&servers);
    let ended = with(&servers, "unlock", &file);
    ended.expect_code(76);
    ended.expect_stderr("the lease is lost");
    assert!(!file.exists());
}

#[test]
fn a_lease_in_a_file_that_cannot_be_changed_is_extended_and_released_and_the_file_that_is_left_is_told()
 {
    let servers = Servers::start(3);
    let (directory, _) = place();
    let folder = directory.path().join("folder");
    let file = folder.join("lease");
    let allow = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    };
    fs::create_dir(&folder).unwrap();
    let run = |words: &[&str]| {
        let mut command = redlock(words);
        command.arg("--lease-file").arg(&file);
        command.env("REDLOCK_NODES", servers.urls().join(","));
        // Root may remove it.
        as_other_user(&mut command);
        end_of(command)
    };
    allow(directory.path(), 0o755);
    allow(&folder, 0o777);
    run(&["lock", KEY]).expect_code(0);
    allow(&file, 0o444);
    allow(&folder, 0o555);
    for server in servers.iter() {
        let () = server.query(&["PEXPIRE", KEY, "10000"]).unwrap();
    }
    let ended = run(&["extend"]);
    ended.expect_code(0);
    ended.expect_stderr("is read-only");
    ended.expect_stderr("the lease was extended");
    let left = |server: &Server| server.query::<u64>(&["PTTL", KEY]).unwrap();
    assert!(servers.iter().map(left).max().unwrap() > 10_000);
    let ended = run(&["unlock"]);
    ended.expect_code(70);
    ended.expect_stderr("is left: Permission denied");
    ended.expect_stderr("the lock was released");
    assert!(file.exists());
    expect_no_lock(&servers);
    allow(&folder, 0o777);
}

#[test]
fn an_unlock_removes_the_file_behind_a_link() {
    let servers = Servers::start(3);
    let (directory, file) = place();
    let link = directory.path().join("link");
    std::os::unix::fs::symlink(&file, &link).unwrap();
    lock(&servers, &file, &[]).expect_code(0);
    with(&servers, "unlock", &link).expect_code(0);
    assert!(!file.exists());
    assert!(link.symlink_metadata().is_err());
    lock(&servers, &link, &[]).expect_code(0);
    with(&servers, "unlock", &link).expect_code(0);
}

#[test]
fn a_link_to_a_link_stays_for_it_may_be_that_of_stdin() {
    let servers = Servers::start(3);
    let (directory, file) = place();
    let [inner, outer] = ["inner", "outer"].map(|name| directory.path().join(name));
    std::os::unix::fs::symlink(&file, &inner).unwrap();
    std::os::unix::fs::symlink("inner", &outer).unwrap();
    lock(&servers, &file, &[]).expect_code(0);
    with(&servers, "unlock", &outer).expect_code(0);
    assert!(!file.exists());
    assert!(inner.is_symlink() && outer.is_symlink());
}

#[test]
fn the_file_of_another_lease_is_not_removed_with_the_one_whose_name_it_has() {
    let servers = Servers::start(3);
    let (_directory, file) = place();
    lock(&servers, &file, &[]).expect_code(0);
    let holder = Process::ready(adopt(&servers, &file, &[], "echo ready; exec sleep 60"));
    fs::remove_file(&file).unwrap();
    let mut other = redlock(&["lock", "dock-8", "--lease-file"]);
    other
        .arg(&file)
        .env("REDLOCK_NODES", servers.urls().join(","));
    end_of(other).expect_code(0);
    let lease = document(&file);
    holder.signal(Signal::TERM);
    holder.end().expect_code(128 + 15);
    assert_eq!(document(&file), lease);
    with(&servers, "unlock", &file).expect_code(0);
    assert!(!file.exists());
    expect_no_keys(&servers);
}

#[test]
fn a_lock_that_waited_waits_also_for_its_predecessor_to_remove_the_lease_file() {
    let servers = Servers::start(3);
    let (_directory, file) = place();
    let holder = Process::ready(run(&servers, &[], KEY, "echo ready; exec sleep 60"));
    let mut next = redlock(&["lock", KEY, "-v", "--lease-file"]);
    next.arg(&file)
        .env("REDLOCK_NODES", servers.urls().join(","));
    let next = Process::start(next);
    eventually("a waiting lock", || next.stderr().contains("waiting"));
    fs::write(&file, "of the predecessor").unwrap();
    holder.signal(Signal::TERM);
    holder.end();
    eventually("the lock", || next.stderr().contains("acquired"));
    // A predecessor releases the lock first.
    std::thread::sleep(Duration::from_millis(100));
    fs::remove_file(&file).unwrap();
    next.end().expect_code(0);
    assert_eq!(document(&file)["key"], KEY);
    with(&servers, "unlock", &file).expect_code(0);
}

#[test]
fn a_place_where_no_lease_file_can_be_is_refused_before_anything_is_locked() {
    let servers = Servers::start(3);
    let (directory, _) = place();
    let holder = Process::ready(run(&servers, &[], KEY, "echo ready; exec sleep 60"));
    let long = "a".repeat(256);
    for (name, why) in [
        ("new/", "it is the name of a folder"),
        ("new/.", "it is the name of a folder"),
        (&long, "File name too long"),
    ] {
        let mut command = redlock(&["lock", KEY, "--lease-file"]);
        command
            .arg(format!("{}/{name}", directory.path().display()))
            .env("REDLOCK_NODES", servers.urls().join(","));
        // It would wait for the lock.
        let ended = end_of(command);
        ended.expect_code(64);
        ended.expect_stderr(why);
    }
    holder.signal(Signal::TERM);
    holder.end();
    let file = directory.path().join("a".repeat(255));
    lock(&servers, &file, &[]).expect_code(0);
    with(&servers, "unlock", &file).expect_code(0);
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[test]
fn what_to_do_about_a_file_in_the_place_of_a_lease_fits_what_it_is() {
    let servers = Servers::start(3);
    let (directory, file) = place();
    lock(&servers, &file, &[]).expect_code(0);
    let lease = fs::read_to_string(&file).unwrap();
    with(&servers, "unlock", &file).expect_code(0);
    let whole = "another process may use it now";
    let in_folder = |name: &str| directory.path().join(name);
    let (line_break, long) = (in_folder("a\nb"), in_folder(&"zY3".repeat(80)));
    let unlock = format!("run redlock unlock --lease-file {}\n", file.display());
    for (path, content, told) in [
        (&file, lease.as_str(), [whole, unlock.as_str()]),
        (&file, "", ["it exists, and is empty", "remove it"]),
        (
            &file,
            &lease[..lease.len() / 2],
            ["is cut off", "remove it"],
        ),
        (
            &line_break,
            &lease,
            [whole, "run redlock unlock with this --lease-file"],
        ),
        (&long, &lease, [whole, "run redlock unlock --lease-file /"]),
    ] {
        fs::write(path, content).unwrap();
        let ended = lock(&servers, path, &[]);
        ended.expect_code(64);
        for text in told {
            ended.expect_stderr(text);
        }
        ended.expect_not_in_stderr("private key");
        assert_eq!(ended.stderr.contains("redlock unlock"), content == lease);
        fs::remove_file(path).unwrap();
    }
    for link in [file, long] {
        std::os::unix::fs::symlink(in_folder("gone"), &link).unwrap();
        let ended = lock(&servers, &link, &[]);
        ended.expect_code(64);
        ended.expect_stderr("it is a symbolic link to a file that is not there");
        ended.expect_not_in_stderr("redlock unlock");
        ended.expect_not_in_stderr("private key");
    }
    let ended = lock(&servers, directory.path(), &[]);
    ended.expect_stderr("it is a folder");
    expect_no_keys(&servers);
}

#[test]
fn a_lease_file_that_was_reformatted_is_whole_when_the_lease_is_extended() {
    let servers = Servers::start(3);
    let (_directory, file) = place();
    lock(&servers, &file, &[]).expect_code(0);
    let lease = document(&file);
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, text.replace(',', ",\n        ") + "\n\n").unwrap();
    with(&servers, "extend", &file).expect_code(0);
    assert_eq!(document(&file)["token"], lease["token"]);
    with(&servers, "unlock", &file).expect_code(0);
}

#[test]
fn a_lease_file_of_a_newer_version_is_told_as_one() {
    let servers = Servers::start(3);
    let (_directory, file) = place();
    fs::write(&file, r#"{"version": 2, "lease": "of the future"}"#).unwrap();
    let ended = with(&servers, "extend", &file);
    ended.expect_code(64);
    ended.expect_stderr("a newer redlock has written it");
}

#[test]
fn a_ttl_that_is_too_short_for_a_command_is_refused_at_once() {
    let (_directory, file) = place();
    let ended = lock(&Servers::start(3), &file, &["--ttl=99ms"]);
    ended.expect_code(64);
    ended.expect_stderr("--ttl 99ms: the TTL is too short");
    assert!(!file.exists());
}

#[test]
fn a_file_size_limit_leaves_no_lock_without_a_file_and_no_file_without_a_lock() {
    let servers = Servers::start(3);
    let (directory, file) = place();
    let limited = |script: &str| {
        let mut command = Command::new("bash");
        let script = format!("ulimit -S -f 0; exec \"$REDLOCK\" {script}");
        command
            .args(["-c", &script])
            .current_dir(directory.path())
            .env("REDLOCK", env!("CARGO_BIN_EXE_redlock"))
            .env("REDLOCK_NODES", servers.urls().join(","));
        end_of(command)
    };
    let ended = limited("lock --lease-file lease dock-7");
    ended.expect_code(70);
    ended.expect_stderr("the lock was released");
    assert!(!file.exists());
    expect_no_lock(&servers);
    lock(&servers, &file, &[]).expect_code(0);
    let ended = limited("extend --lease-file lease");
    ended.expect_code(0);
    ended.expect_stderr("the lease was extended, but valid_until in the file is old");
    limited("unlock -v --lease-file lease 2> log").expect_code(0);
    assert!(!file.exists());
    expect_no_lock(&servers);
}

#[test]
fn nothing_is_changed_with_a_file_that_is_cut_off_or_of_other_nodes() {
    let servers = Servers::start(3);
    let others = Servers::start(3);
    let (_directory, file) = place();
    lock(&servers, &file, &[]).expect_code(0);
    let text = fs::read_to_string(&file).unwrap();
    for command in ["extend", "unlock", "run"] {
        let on = |fleet: &Servers| match command {
            "run" => end_of(adopt(fleet, &file, &[], "echo ran")),
            command => with(fleet, command, &file),
        };
        let ended = on(&others);
        ended.expect_code(64);
        ended.expect_stderr("is of other nodes");
        fs::write(&file, &text[..text.len() / 2]).unwrap();
        let ended = on(&servers);
        ended.expect_code(64);
        ended.expect_stderr("it is cut off, or was not written by redlock lock");
        assert_eq!(ended.stdout, "");
        fs::write(&file, &text).unwrap();
    }
    // The last node may not have got it.
    assert!(servers.key_count() >= 2);
    with(&servers, "unlock", &file).expect_code(0);
}

#[test]
fn a_lease_in_another_database_of_the_same_servers_is_of_other_nodes() {
    let servers = Servers::start(3);
    let (_directory, file) = place();
    lock(&servers, &file, &[]).expect_code(0);
    let urls: Vec<String> = servers
        .urls()
        .iter()
        .map(|url| format!("{url}/1"))
        .collect();
    let mut unlock = redlock(&["unlock", "--lease-file"]);
    unlock.arg(&file).env("REDLOCK_NODES", urls.join(","));
    let ended = end_of(unlock);
    ended.expect_code(64);
    ended.expect_stderr("is of other nodes");
    with(&servers, "unlock", &file).expect_code(0);
}

#[test]
fn a_file_stays_while_no_quorum_answers_and_the_lease_in_it_can_be_used_later() {
    let servers = Servers::start(3);
    let (_directory, file) = place();
    lock(&servers, &file, &["--ttl=3s"]).expect_code(0);
    for server in &servers[..2] {
        server.pause();
    }
    let ended = with(&servers, "unlock", &file);
    ended.expect_code(69);
    assert!(file.exists());
    for server in &servers[..2] {
        server.resume();
    }
}

#[test]
fn no_lock_is_taken_if_its_file_cannot_be_made() {
    let servers = Servers::start(3);
    let (directory, file) = place();
    fs::write(&file, "of another").unwrap();
    let ended = lock(&servers, &file, &[]);
    ended.expect_code(64);
    ended.expect_stderr("it exists, and is cut off, or was not written by redlock lock");
    assert_eq!(fs::read_to_string(&file).unwrap(), "of another");
    let missing = directory.path().join("missing").join("lease");
    lock(&servers, &missing, &[]).expect_code(64);
    assert_eq!(servers.key_count(), 0);
    // A lock that is not got leaves no file.
    let holder = Process::start(run(&servers, &[], KEY, "echo ready; sleep 60"));
    holder.expect_line("ready");
    let other = directory.path().join("other");
    lock(&servers, &other, &["--no-wait"]).expect_code(75);
    assert!(!other.exists());
}

#[test]
fn a_process_that_is_killed_while_it_waits_leaves_no_file() {
    let servers = Servers::start(3);
    let (directory, file) = place();
    let holder = Process::ready(run(&servers, &[], KEY, "echo ready; exec sleep 60"));
    let waiting = |options: &[&str]| {
        let mut command = redlock(&["lock", KEY, "-v", "--lease-file"]);
        command.arg(&file).args(options);
        command.env("REDLOCK_NODES", servers.urls().join(","));
        let waiting = Process::start(command);
        eventually("a waiting lock", || waiting.stderr().contains("waiting"));
        waiting
    };
    let killed = waiting(&[]);
    killed.signal(Signal::KILL);
    assert_eq!(killed.end().code, None);
    let is_empty = || fs::read_dir(directory.path()).unwrap().next().is_none();
    assert!(is_empty());
    // A file that another process makes meanwhile stays, and the lock is given back.
    let late = waiting(&[]);
    fs::write(&file, "of another").unwrap();
    holder.signal(Signal::TERM);
    holder.end();
    let ended = late.end();
    ended.expect_code(64);
    ended.expect_stderr("it exists, and is cut off, or was not written by redlock lock");
    ended.expect_stderr("the lock was released");
    assert_eq!(fs::read_to_string(&file).unwrap(), "of another");
    fs::remove_file(&file).unwrap();
    assert!(is_empty());
    expect_no_keys(&servers);
}

#[test]
fn a_release_that_no_quorum_confirms_leaves_the_file() {
    let servers = Servers::start(3);
    let (_directory, file) = place();
    lock(&servers, &file, &[]).expect_code(0);
    for server in servers.iter() {
        // It may extend, but not release.
        let rules = ["ACL", "SETUSER", "default", "-del"];
        let () = server.query(&rules).unwrap();
    }
    let ended = with(&servers, "unlock", &file);
    ended.expect_code(69);
    ended.expect_stderr("only 0 of 3 nodes have told that the lock is released");
    assert!(file.exists());
    for server in servers.iter() {
        let () = server
            .query(&["ACL", "SETUSER", "default", "+del"])
            .unwrap();
    }
    with(&servers, "unlock", &file).expect_code(0);
    assert!(!file.exists());
    expect_no_lock(&servers);
}

/// The process that releases was never connected to the node that hangs, so nothing is on its way there when it ends.
#[test]
fn a_lease_that_was_adopted_is_released_on_a_node_that_hangs_for_a_moment() {
    let servers = Servers::start(3);
    for fenced in [&["--ttl=50s"][..], &["--ttl=50s", "--fenced"]] {
        for is_run in [false, true] {
            let (_directory, file) = place();
            lock(&servers, &file, fenced).expect_code(0);
            eventually("all nodes have the key", || {
                let has_key = |server: &Server| server.query::<usize>(&["EXISTS", KEY]).unwrap();
                servers.iter().all(|server| has_key(server) == 1)
            });
            servers[2].pause();
            let releasing = Process::start(match is_run {
                true => adopt(&servers, &file, &[], "true"),
                false => {
                    let mut command = redlock(&["unlock", "--lease-file"]);
                    command.arg(&file);
                    command.env("REDLOCK_NODES", servers.urls().join(","));
                    command
                }
            });
            eventually("the others have released it", || {
                servers[..2]
                    .iter()
                    .all(|server| server.query::<usize>(&["EXISTS", KEY]).unwrap() == 0)
            });
            servers[2].resume();
            releasing.end().expect_code(0);
            expect_no_lock(&servers);
        }
    }
}

#[test]
fn a_command_that_is_told_to_end_before_it_has_adopted_the_lease_leaves_the_file() {
    let servers = Servers::start(3);
    let (_directory, file) = place();
    lock(&servers, &file, &[]).expect_code(0);
    servers[..2].iter().for_each(Server::pause);
    let waiting = Process::start(adopt(&servers, &file, &["-v"], "echo ran"));
    eventually("it catches signals", || {
        has("SigCgt:", waiting.pid().as_raw_pid().into(), Signal::TERM)
    });
    waiting.signal(Signal::TERM);
    waiting.end().expect_code(128 + 15);
    servers[..2].iter().for_each(Server::resume);
    assert!(file.exists());
    with(&servers, "unlock", &file).expect_code(0);
    expect_no_lock(&servers);
}

#[test]
fn a_pipe_is_no_lease_file_and_is_not_waited_for() {
    let servers = Servers::start(3);
    let (directory, file) = place();
    let made = Command::new("mkfifo").arg(&file).status().unwrap();
    assert!(made.success());
    for mode in [0o600, 0o444] {
        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
        let mut unlock = redlock(&["unlock", "--lease-file"]);
        unlock
            .arg(&file)
            .env("REDLOCK_NODES", servers.urls().join(","));
        if mode == 0o444 {
            // Root may write to it.
            as_other_user(&mut unlock);
            let open = fs::Permissions::from_mode(0o755);
            fs::set_permissions(directory.path(), open).unwrap();
        }
        let ended = end_of(unlock);
        ended.expect_code(64);
        ended.expect_stderr("not a regular file");
    }
}

#[test]
fn the_nodes_can_be_in_a_file() {
    let servers = Servers::start(3);
    let directory = tempdir().unwrap();
    let file = directory.path().join("nodes");
    let text = format!("# the fleet\n\n {}\n", servers.urls().join("\n"));
    fs::write(&file, text).unwrap();
    let file = file.to_str().unwrap();
    let script = ["dock-7", "-c", "exit 3"];
    let mut command = redlock(&["run", "--nodes-file", file]);
    command.args(script);
    end_of(command).expect_code(3);
    // The argument has precedence over the environment.
    let mut command = redlock(&["run", "--nodes-file", file]);
    command
        .args(script)
        .env("REDLOCK_NODES", "redis://127.0.0.1:1");
    end_of(command).expect_code(3);
    let mut command = redlock(&["run"]);
    command.args(script).env("REDLOCK_NODES_FILE", file);
    end_of(command).expect_code(3);
    let mut command = redlock(&["run", "--node=redis://127.0.0.1:1", "--no-wait"]);
    command
        .args(script)
        .env("REDLOCK_NODES", "redis://127.0.0.1:1")
        .env("REDLOCK_NODES_FILE", file);
    end_of(command).expect_code(69);
    // What is wrong in it is not told.
    fs::write(directory.path().join("nodes"), "redis://me:secret@\n").unwrap();
    let mut command = redlock(&["run"]);
    command.args(script).env("REDLOCK_NODES_FILE", file);
    let ended = end_of(command);
    ended.expect_code(64);
    ended.expect_not_in_stderr("secret");
}

#[test]
fn a_named_pipe_is_no_list_of_nodes_and_is_not_waited_for_but_an_open_one_is_read() {
    let servers = Servers::start(3);
    let (_directory, file) = place();
    let made = Command::new("mkfifo").arg(&file).status().unwrap();
    assert!(made.success());
    let run = ["run", "dock-7", "-c", "exit 3"];
    let mut by_option = redlock(&run);
    by_option.arg("--nodes-file").arg(&file);
    let mut by_variable = redlock(&run);
    by_variable.env("REDLOCK_NODES_FILE", &file);
    for command in [by_option, by_variable] {
        let ended = end_of(command);
        ended.expect_code(64);
        ended.expect_stderr("is not a regular file: name a list of nodes");
    }
    let mut shell = Command::new("sh");
    let list = servers.urls().join("\n");
    let script = "echo \"$LIST\" | \"$REDLOCK\" run --nodes-file /dev/stdin dock-7 -c 'exit 3'";
    shell
        .args(["-c", script])
        .env("LIST", list)
        .env("REDLOCK", env!("CARGO_BIN_EXE_redlock"));
    end_of(shell).expect_code(3);
}

#[test]
fn a_url_that_is_not_valid_is_named_by_its_place() {
    let (_directory, file) = place();
    fs::write(
        &file,
        "# the fleet\nredis://127.0.0.1:1\nredis://127.0.0.1:2 # west\n",
    )
    .unwrap();
    let mut command = redlock(&["doctor", "--nodes-file"]);
    command.arg(&file);
    let ended = end_of(command);
    ended.expect_code(64);
    ended.expect_stderr("lease, line 3: bad node URL");
    ended.expect_stderr("a comment needs a line of its own");
    for list in [
        "redis://me:secret@127.0.0.1:1,redis://127.0.0.1:2 redis://me:secret@127.0.0.1:3",
        "redis://me:secret@127.0.0.1:1,redis://127.0.0.1:2;redis://me:secret@127.0.0.1:3",
    ] {
        for words in [&["doctor"][..], &["run", "dock-7", "--", "true"]] {
            let mut command = redlock(words);
            command.env("REDLOCK_NODES", list);
            let ended = end_of(command);
            ended.expect_code(64);
            ended.expect_stderr("REDLOCK_NODES, URL 2: bad node URL");
            ended.expect_stderr("separate URLs with commas");
            ended.expect_not_in_stderr("secret");
        }
    }
}

/// Runs it as a user whom modes of files bind, if this process is root.
fn as_other_user(command: &mut Command) {
    const OTHER_USER: u32 = 65_534;

    if rustix::process::geteuid().is_root() {
        command.uid(OTHER_USER);
    }
}

fn place() -> (TempDir, PathBuf) {
    let directory = tempdir().unwrap();
    let file = directory.path().join("lease");
    (directory, file)
}

fn lock(servers: &Servers, file: &Path, options: &[&str]) -> Ended {
    let mut command = redlock(&["lock", KEY, "--lease-file"]);
    command.arg(file).args(options);
    command.env("REDLOCK_NODES", servers.urls().join(","));
    end_of(command)
}

fn with(servers: &Servers, command: &str, file: &Path) -> Ended {
    let mut command = redlock(&[command, "--lease-file"]);
    command.arg(file);
    command.env("REDLOCK_NODES", servers.urls().join(","));
    end_of(command)
}

fn adopt(servers: &Servers, file: &Path, options: &[&str], script: &str) -> Command {
    let mut command = redlock(&["run", "--adopt"]);
    command
        .arg(file)
        .args(options)
        .args(["--", "sh", "-c", script]);
    command.env("REDLOCK_NODES", servers.urls().join(","));
    command
}

fn document(file: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap()
}

/// Waits until the key is gone; a fenced lock leaves its records.
fn expect_no_lock(servers: &[Server]) {
    eventually("a free lock", || {
        servers
            .iter()
            .all(|server| server.query::<usize>(&["EXISTS", KEY]).unwrap() == 0)
    });
}

fn clear(servers: &[Server]) {
    for server in servers {
        let _: usize = server.query(&["DEL", KEY]).unwrap();
    }
}
