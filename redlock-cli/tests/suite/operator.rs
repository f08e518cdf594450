//! What an operator does beside `run`: watch, wait, break a lock, and install the command.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use redlock_tests::{Server, Servers};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use tempfile::tempdir;

use crate::process::{Ended, Process, end_of, eventually, expect_no_keys, redlock, run};
use crate::server::user_of;
use crate::terminal::Terminal;

const KEY: &str = "dock-7";

#[test]
fn wait_ends_when_the_lock_is_free_and_takes_nothing() {
    let servers = Servers::start(3);
    on(&servers, &["wait", KEY]).expect_code(0);
    let holder = Process::ready(run(&servers, &[], KEY, "echo ready; exec sleep 60"));
    let ended = on(&servers, &["wait", "--timeout=0.1", KEY]);
    ended.expect_code(75);
    ended.expect_stderr("dock-7: held by ");
    let mut waiting = Process::start(command(&servers, &["wait", KEY]));
    assert!(waiting.is_running());
    holder.signal(Signal::TERM);
    holder.end();
    waiting.end().expect_code(0);
    assert_eq!(servers.key_count(), 0);
    for server in servers.iter() {
        server.pause();
    }
    let mut waiting = command(&servers, &["wait", "--timeout=0", KEY]);
    waiting.arg("--node-timeout=0.1");
    end_of(waiting).expect_code(69);
}

#[test]
fn wait_ends_when_a_quorum_has_told_that_the_lock_is_free_although_a_node_hangs() {
    let servers = Servers::start(5);
    servers[0].pause();
    let start = Instant::now();
    on(&servers, &["wait", "--node-timeout=20s", KEY]).expect_code(0);
    assert!(start.elapsed() < Duration::from_secs(10));
}

#[test]
fn break_deletes_what_it_has_shown_and_nothing_else() {
    let servers = Servers::start(3);
    on(&servers, &["break", KEY]).expect_code(0);
    let holder = Process::ready(run(
        &servers,
        &[],
        KEY,
        "echo $REDLOCK_TOKEN; echo ready; exec sleep 60",
    ));
    // Without a terminal, and with the token of another.
    let ended = on(&servers, &["break", KEY]);
    ended.expect_code(1);
    ended.expect_stdout("held by");
    ended.expect_stderr("give --token-prefix");
    let ended = on(&servers, &["break", "--token-prefix=00000000", KEY]);
    ended.expect_code(1);
    ended.expect_stderr("another client holds it");
    assert!(servers.key_count() >= 2);
    // On a terminal it asks.
    for (answer, code, told) in [("n", 1, "not broken"), ("y", 0, "deleted")] {
        let mut terminal = Terminal::start_shell(&servers, "exec $REDLOCK break dock-7");
        terminal.expect("still be at work? [y/N]");
        terminal.type_in(&format!("{answer}\n"));
        terminal.expect(told);
        assert_eq!(terminal.end(), Some(code));
    }
    expect_no_keys(&servers);
    // The holder finds out when its command ends.
    holder.signal(Signal::TERM);
    holder.end().expect_code(76);
    // A script names the holder that it means.
    let holder = Process::ready(run(
        &servers,
        &[],
        KEY,
        "echo $REDLOCK_TOKEN; echo ready; exec sleep 60",
    ));
    let prefix = holder.stdout().get(..8).unwrap().to_owned();
    on(&servers, &["break", "--token-prefix", &prefix, KEY]).expect_code(0);
    expect_no_keys(&servers);
}

#[test]
fn a_lock_that_only_its_min_hold_keeps_is_shown_with_the_same_digits_and_can_be_broken() {
    let servers = Servers::start(3);
    for fenced in [&[][..], &["--fenced"]] {
        let options = [&["--min-hold=50s"], fenced].concat();
        let ended = end_of(run(&servers, &options, KEY, "echo $REDLOCK_TOKEN"));
        ended.expect_code(0);
        let prefix = ended.stdout.get(..8).unwrap();
        let shown = on(&servers, &["inspect", KEY]);
        shown.expect_stdout(&format!("{KEY}: held by {prefix}.. "));
        shown.expect_stdout("; released, held by --min-hold");
        on(&servers, &["break", "--token-prefix", prefix, KEY]).expect_code(0);
        for server in servers.iter() {
            assert_eq!(server.query::<u8>(&["EXISTS", KEY]).unwrap(), 0);
        }
    }
}

#[test]
fn a_break_while_another_client_holds_the_lock_does_not_end_as_if_it_were_free() {
    let servers = Servers::start(3);
    let set = |servers: &[Server], token: &str| {
        for server in servers {
            let _: () = server.query(&["SET", KEY, token, "PX", "60000"]).unwrap();
        }
    };
    // One key of an earlier holder is left.
    set(&servers[..1], "aaaaaaaaaaaaaaaa");
    set(&servers[1..], "bbbbbbbbbbbbbbbb");
    let ended = on(&servers, &["break", "--token-prefix=61616161", KEY]);
    ended.expect_code(1);
    ended.expect_stdout("deleted");
    ended.expect_stderr("another client holds it");
    assert_eq!(servers.key_count(), 2);
    // Users who may not call INFO do not learn who holds the lock.
    set(&servers[..1], "aaaaaaaaaaaaaaaa");
    let urls: Vec<String> = servers
        .iter()
        .map(|server| user_of(server, "app", "&* +@all -info"))
        .collect();
    let mut command = redlock(&["break", "--token-prefix=61616161", KEY]);
    command.env("REDLOCK_NODES", urls.join(","));
    let ended = end_of(command);
    ended.expect_code(69);
    ended.expect_stderr("too few answers count to know whether another client holds it");
    assert_eq!(servers.key_count(), 2);
    // The lock changes hands between the question and the answer, on all nodes or on so many that the next client has it.
    for kept in [0, 1] {
        set(&servers, "aaaaaaaaaaaaaaaa");
        let mut terminal = Terminal::start_shell(&servers, "exec $REDLOCK break dock-7");
        terminal.expect("still be at work? [y/N]");
        set(&servers[kept..], "bbbbbbbbbbbbbbbb");
        terminal.type_in("y\n");
        terminal.expect("another client holds it");
        assert_eq!(terminal.end(), Some(1));
        assert_eq!(servers.key_count(), 3 - kept);
    }
}

#[test]
fn a_fenced_lock_that_is_broken_is_free_at_once_and_its_holder_finds_out() {
    let servers = Servers::start(3);
    let options = ["--fenced", "--ttl=3s"];
    let script = "echo $REDLOCK_TOKEN; echo ready; exec sleep 60";
    let holder = Process::ready(run(&servers, &options, KEY, script));
    let prefix = holder.stdout().get(..8).unwrap().to_owned();
    on(&servers, &["break", "--token-prefix", &prefix, KEY]).expect_code(0);
    let next = run(&servers, &["--fenced", "--no-wait"], KEY, "exit 7");
    end_of(next).expect_code(7);
    holder.end().expect_code(76);
}

#[test]
fn a_node_that_shows_another_token_with_the_same_first_digits_keeps_no_lock_from_being_broken() {
    let servers = Servers::start(3);
    let script = "echo $REDLOCK_TOKEN; echo ready; exec sleep 60";
    let holder = Process::ready(run(&servers, &[], KEY, script));
    let prefix = holder.stdout().get(..8).unwrap().to_owned();
    let bytes = (0..8)
        .step_by(2)
        .map(|at| u8::from_str_radix(&prefix[at..at + 2], 16).unwrap());
    let other = [bytes.collect(), b"another token".to_vec()].concat();
    let set: redis::RedisResult<()> = servers[0].query(&[&b"SET"[..], KEY.as_bytes(), &other]);
    set.unwrap();
    on(&servers, &["break", "--token-prefix", &prefix, KEY]).expect_code(0);
    assert_eq!(servers.key_count(), 0);
    holder.signal(Signal::TERM);
    holder.end().expect_code(76);
}

#[test]
fn several_locks_are_shown_again_and_again_and_in_colour_on_a_terminal() {
    let servers = Servers::start(3);
    let holder = Process::ready(run(&servers, &[], KEY, "echo ready; exec sleep 60"));
    let ended = on(&servers, &["inspect", KEY, "dock-8"]);
    ended.expect_code(0);
    ended.expect_stdout("dock-7: held by ");
    ended.expect_stdout("dock-8: free");
    ended.expect_not_in_stdout("\x1b");
    let watching = Process::start(command(&servers, &["inspect", "--watch", KEY, "dock-8"]));
    eventually("both", || watching.stdout().contains("dock-8: free"));
    holder.signal(Signal::TERM);
    holder.end();
    eventually("the change", || watching.stdout().contains("dock-7: free"));
    let line = "export NO_COLOR=; NO_COLOR=1 $REDLOCK inspect dock-7; TERM=dumb $REDLOCK inspect dock-7; $REDLOCK inspect --watch dock-7";
    let mut terminal = Terminal::start_shell(&servers, line);
    eventually("both without colours", || {
        terminal.text().matches("dock-7: free").count() == 2
    });
    terminal.expect("dock-7: \x1b[32mfree\x1b[0m");
    terminal.expect("\x1b[H\x1b[2J");
    terminal.type_in("\x03");
    assert_eq!(terminal.end(), Some(128 + 2));
}

#[test]
fn wait_says_once_that_too_few_nodes_answer() {
    let servers = Servers::start(3);
    servers[1..].iter().for_each(Server::pause);
    let waiting = Process::start(command(&servers, &["wait", "--node-timeout=0.1", KEY]));
    let said = || waiting.stderr().matches("dock-7: unknown: ").count();
    eventually("the reason", || said() == 1);
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(said(), 1);
    servers[1..].iter().for_each(Server::resume);
    // Another test may keep a node busy for longer than the short timeout.
    waiting.end().expect_code(0);
}

#[test]
fn wait_does_not_say_again_at_its_end_what_it_has_said() {
    let servers = Servers::start(3);
    servers[1..].iter().for_each(Server::pause);
    let ended = on(
        &servers,
        &["wait", "--timeout=3s", "--node-timeout=0.1", KEY],
    );
    servers[1..].iter().for_each(Server::resume);
    ended.expect_code(69);
    let mut told: Vec<_> = ended.stderr.lines().collect();
    let count = told.len();
    told.dedup();
    assert!(!told.is_empty());
    assert_eq!(told.len(), count, "{}", ended.stderr);
}

#[test]
fn a_command_that_is_tied_to_redlock_ends_with_it_also_by_sigkill() {
    let servers = Servers::start(3);
    let options = ["--die-with-parent"];
    let holder = Process::ready(run(
        &servers,
        &options,
        KEY,
        "echo $$; echo ready; exec sleep 60",
    ));
    let stdout = holder.stdout();
    let pid: i32 = stdout.lines().next().unwrap().parse().unwrap();
    let pid = Pid::from_raw(pid).unwrap();
    assert!(test_kill_process(pid).is_ok());
    kill_process(holder.pid(), Signal::KILL).unwrap();
    eventually("its end", || is_gone(pid));

    // All else is as without it.
    let second = Servers::start(3);
    end_of(run(&second, &options, KEY, "exit 7")).expect_code(7);
    end_of(run(&second, &options, KEY, "kill -TERM $$")).expect_code(128 + 15);
    let mut missing = command(
        &second,
        &["run", "--die-with-parent", KEY, "--", "/no/such"],
    );
    missing.env_remove("PATH");
    let ended = end_of(missing);
    ended.expect_code(127);
    ended.expect_stderr("cannot run /no/such");
    let ended = end_of(run(
        &second,
        &options,
        KEY,
        "echo \"${REDLOCK_NODES-none}\"",
    ));
    assert_eq!(ended.stdout, "none\n");
}

#[test]
fn a_command_that_is_tied_to_redlock_cannot_have_a_name_that_says_that_it_did_not_start() {
    let servers = Servers::start(3);
    let directory = tempdir().unwrap();
    let named = directory.path().join("not-started-2");
    let copied = Command::new("cp")
        .args(["/bin/true".as_ref(), &*named])
        .status();
    assert!(copied.unwrap().success());
    let mut command = command(&servers, &["run", "--die-with-parent", KEY, "--"]);
    command.arg(&named);
    end_of(command).expect_code(0);
}

#[test]
fn a_command_that_the_system_may_not_end_with_redlock_is_warned_of() {
    let servers = Servers::start(3);
    let directory = tempdir().unwrap();
    let named = directory.path().join("tool");
    let copied = Command::new("cp")
        .args(["/bin/true".as_ref(), &*named])
        .status();
    assert!(copied.unwrap().success());
    for (mode, rights) in [
        (0o4755, Some("set-user-ID")),
        (0o2755, Some("set-group-ID")),
        (0o755, None),
    ] {
        fs::set_permissions(&named, fs::Permissions::from_mode(mode)).unwrap();
        for program in [named.as_os_str(), "tool".as_ref()] {
            let mut command = command(&servers, &["run", "--die-with-parent", KEY, "--"]);
            let path = std::env::var("PATH").unwrap();
            command
                .arg(program)
                .env("PATH", format!("{}:{path}", directory.path().display()));
            let ended = end_of(command);
            ended.expect_code(0);
            match rights {
                Some(rights) => ended.expect_stderr(&format!(
                    "tool has {rights}, so --die-with-parent may not end it"
                )),
                None => assert_eq!(ended.stderr, ""),
            }
        }
    }
}

#[test]
fn a_script_is_warned_of_by_the_rights_of_its_interpreter_and_not_by_its_own() {
    let servers = Servers::start(3);
    let directory = tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let [shell, script, outer] = ["shell", "script", "outer"].map(path);
    let copied = Command::new("cp")
        .args(["/bin/sh".as_ref(), &*shell])
        .status();
    assert!(copied.unwrap().success());
    write_by_another(&script, &format!("#! {} -e\nexit 0\n", shell.display()));
    // The interpreter of a script can be a script.
    write_by_another(&outer, &format!("#!{}\n", script.display()));
    for (interpreter, own, rights) in [
        (0o4755, 0o755, Some("set-user-ID")),
        (0o2755, 0o755, Some("set-group-ID")),
        (0o755, 0o4755, None),
    ] {
        fs::set_permissions(&shell, fs::Permissions::from_mode(interpreter)).unwrap();
        for script in [&script, &outer] {
            fs::set_permissions(script, fs::Permissions::from_mode(own)).unwrap();
        }
        for script in [&script, &outer] {
            let mut command = command(&servers, &["run", "--die-with-parent", KEY, "--"]);
            command.arg(script);
            let ended = end_of(command);
            ended.expect_code(0);
            match rights {
                Some(rights) => ended.expect_stderr(&format!(
                    "{}, the interpreter of {}, has {rights}, so --die-with-parent may not end it",
                    shell.display(),
                    script.display(),
                )),
                None => assert_eq!(ended.stderr, ""),
            }
        }
    }
}

#[test]
fn a_file_on_the_path_that_cannot_be_executed_hides_no_rights_of_a_later_one() {
    let servers = Servers::start(3);
    let (first, second) = (tempdir().unwrap(), tempdir().unwrap());
    fs::write(first.path().join("tool"), "").unwrap();
    let named = second.path().join("tool");
    let copied = Command::new("cp")
        .args(["/bin/true".as_ref(), &*named])
        .status();
    assert!(copied.unwrap().success());
    fs::set_permissions(&named, fs::Permissions::from_mode(0o4755)).unwrap();
    let mut command = command(&servers, &["run", "--die-with-parent", KEY, "--", "tool"]);
    let path = std::env::var("PATH").unwrap();
    let directories = [first.path(), second.path()].map(|directory| directory.display());
    command.env(
        "PATH",
        format!("{}:{}:{path}", directories[0], directories[1]),
    );
    let ended = end_of(command);
    ended.expect_code(0);
    ended.expect_stderr(&format!("{} has set-user-ID", named.display()));
}

/// A file that is open for writing in this process, and so in what another test has just started, cannot be run.
fn write_by_another(file: &Path, text: &str) {
    let written = Command::new("sh")
        .args(["-c", "printf %s \"$1\" > \"$0\""])
        .arg(file)
        .arg(text)
        .status();
    assert!(written.unwrap().success());
}

#[test]
fn where_redlock_itself_has_other_rights_than_its_caller_it_warns_that_it_may_not_end_its_command()
{
    if !rustix::process::geteuid().is_root() {
        println!("not tested: only root can make a program with other rights");
        return;
    }
    let servers = Servers::start(3);
    let directory = tempdir().unwrap();
    let copy = directory.path().join("redlock");
    let inner = command(&servers, &["run", "--die-with-parent", KEY, "--", "true"]);
    let copied = Command::new("cp")
        .args([inner.get_program(), copy.as_os_str()])
        .status();
    assert!(copied.unwrap().success());
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    for (mode, is_warned) in [(0o4755, true), (0o2755, true), (0o755, false)] {
        fs::set_permissions(&copy, fs::Permissions::from_mode(mode)).unwrap();
        let mut command = Command::new("setpriv");
        command
            .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
            .arg(&copy)
            .args(inner.get_args())
            .env("REDLOCK_NODES", servers.urls().join(","));
        let ended = end_of(command);
        ended.expect_code(0);
        let words = "redlock itself has set-user-ID or set-group-ID";
        assert_eq!(ended.stderr.contains(words), is_warned, "{}", ended.stderr);
    }
}

#[test]
fn with_too_few_open_files_redlock_says_so_and_does_not_panic() {
    let servers = Servers::start(3);
    let mut refused = 0;
    for files in 4..20 {
        let inner = command(&servers, &["run", "--no-wait", KEY, "--", "true"]);
        let mut command = Command::new("sh");
        command
            .args(["-c", "ulimit -n \"$0\"; exec \"$@\""])
            .arg(files.to_string())
            .arg(inner.get_program())
            .args(inner.get_args())
            .env("REDLOCK_NODES", servers.urls().join(","));
        let ended = end_of(command);
        assert!(!ended.stderr.contains("panicked"), "{}", ended.stderr);
        refused += i32::from(ended.stderr.contains("open files"));
    }
    assert!(refused > 3, "{refused}");
}

#[test]
fn a_command_that_is_tied_to_redlock_is_started_also_when_the_file_of_redlock_is_gone() {
    let servers = Servers::start(3);
    let directory = tempdir().unwrap();
    let copy = directory.path().join("redlock");
    // By another process: a file that is open for writing here, and so in what another test has just started, cannot be run.
    let original = env!("CARGO_BIN_EXE_redlock");
    let copied = Command::new("cp")
        .args([original.as_ref(), &*copy])
        .status();
    assert!(copied.unwrap().success());
    let holder = Process::ready(run(&servers, &[], KEY, "echo ready; exec sleep 60"));
    let inner = run(&servers, &["-v", "--die-with-parent"], KEY, "echo ran");
    let mut next = Command::new(&copy);
    next.args(inner.get_args())
        .env("REDLOCK_NODES", servers.urls().join(","));
    let next = Process::start(next);
    eventually("a waiting run", || next.stderr().contains("waiting"));
    // An upgrade does this too.
    fs::remove_file(&copy).unwrap();
    holder.signal(Signal::TERM);
    holder.end();
    let ended = next.end();
    ended.expect_code(0);
    assert_eq!(ended.stdout, "ran\n");
    expect_no_keys(&servers);
}

#[test]
fn a_command_that_cannot_be_started_is_told_alike_and_keeps_no_lock_whether_it_is_tied_or_not() {
    let servers = Servers::start(3);
    for (program, code) in [("/no/such", 127), ("/dev/null", 126)] {
        let [loose, tied] = [&[][..], &["--die-with-parent"]].map(|options| {
            let mut command = command(&servers, &["run", "--no-wait", "--min-hold=50s"]);
            command.args(options).args([KEY, "--", program]);
            let ended = end_of(command);
            ended.expect_code(code);
            expect_no_keys(&servers);
            ended.stderr
        });
        assert_eq!(loose, tied);
        assert!(tied.contains(&format!("cannot run {program}: ")), "{tied}");
    }
}

/// Whether the process is gone, or a zombie that its new parent has not reaped.
fn is_gone(pid: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_pid()));
    stat.map_or(true, |stat| stat.contains(") Z "))
}

#[test]
fn completions_and_man_pages_are_made_by_the_command() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let ended = end_of(redlock(&["completions", shell]));
        ended.expect_code(0);
        ended.expect_stdout("doctor");
        // A command of the tool to itself.
        assert!(!ended.stdout.contains("become"), "{shell}");
    }
    let mut check = Command::new("bash");
    let script = "source <($0 completions bash) && complete -p redlock";
    check.args(["-c", script, env!("CARGO_BIN_EXE_redlock")]);
    end_of(check).expect_code(0);
    let ended = end_of(redlock(&["man"]));
    ended.expect_code(0);
    ended.expect_stdout(".TH redlock 1");
    let directory = tempdir().unwrap();
    let pages = directory.path().join("man1");
    let path = pages.to_str().unwrap();
    end_of(redlock(&["man", "--dir", path])).expect_code(0);
    let page = fs::read_to_string(pages.join("redlock-run.1")).unwrap();
    assert!(page.contains("kill\\-after"), "{page}");
    assert!(
        page.contains("redlock run\\fR [OPTIONS] <KEY> \\-\\- <CMD>..."),
        "{page}"
    );
    // Roff would join the items of a list.
    assert!(page.contains(".PP\n\\- 75 "), "{page}");
    // And it would fill the lines of an example, and hyphenate its commands.
    let (_, examples) = page.split_once("\n.nf\nExamples:\n").unwrap();
    let (examples, _) = examples.split_once("\n.fi\n").unwrap();
    let examples = examples.replace("\\-", "-").replace("\\\\", "\\");
    end_of(redlock(&["run", "--help"])).expect_stdout(&examples);
    let mut groff = Command::new("groff");
    groff
        .args(["-man", "-Tascii", "-P-c"])
        .arg(pages.join("redlock-run.1"));
    if let Ok(shown) = groff.output() {
        let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
        // It may justify the line, with more spaces between words.
        let is_item = |line: &str| line.split_whitespace().take(2).eq(["-", "75"]);
        assert!(shown.lines().any(is_item), "{shown}");
    }
    let file = pages.join("redlock-run.1");
    end_of(redlock(&["man", "--dir", file.to_str().unwrap()])).expect_code(70);
    let ended = end_of(redlock(&["--version"]));
    ended.expect_stdout(&format!("redlock {}", env!("CARGO_PKG_VERSION")));
}

#[test]
fn a_command_whose_output_is_lost_does_not_end_as_if_all_were_well() {
    let servers = Servers::start(3);
    for arguments in [
        &["doctor", "--json"][..],
        &["inspect", "--json", KEY],
        &["inspect", "--watch", KEY],
        &["conformance"],
        &["--version"],
        &["help"],
        &["completions", "bash"],
        &["man"],
        &["init"],
        &["break", "--token-prefix=61616161", KEY],
    ] {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let ended = command(&servers, arguments).stdout(full).output().unwrap();
        let stderr = String::from_utf8(ended.stderr).unwrap();
        assert_eq!(ended.status.code(), Some(70), "{arguments:?}: {stderr}");
        assert!(
            stderr.contains("cannot write the output: No space left"),
            "{stderr}"
        );
        // The caller may want only the exit code.
        let (reader, closed) = io::pipe().unwrap();
        drop(reader);
        let ended = command(&servers, arguments)
            .stdout(closed)
            .output()
            .unwrap();
        assert_ne!(ended.status.code(), Some(70), "{arguments:?}");
    }
}

fn on(servers: &Servers, arguments: &[&str]) -> Ended {
    end_of(command(servers, arguments))
}

fn command(servers: &Servers, arguments: &[&str]) -> Command {
    let mut command = redlock(arguments);
    command.env("REDLOCK_NODES", servers.urls().join(","));
    command
}
