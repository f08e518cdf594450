//! Nodes behind TLS, with an authority and certificates of their own.

use std::fs;
use std::process::Command;

use redlock_tests::{Authority, Certified, Servers, TlsServer};

use crate::process::{end_of, redlock};

const COMMANDS: [&[&str]; 4] = [
    &["run", "dock-7", "--", "true"],
    &["inspect", "dock-7"],
    &["doctor", "--seconds=1"],
    &["init"],
];

#[test]
fn every_command_shows_its_certificate_and_trusts_the_authority_it_is_given() {
    let authority = Authority::create();
    let server = TlsServer::start(&authority, true);
    let client = authority.sign("client");
    for arguments in COMMANDS {
        let mut command = to(&server, arguments);
        command
            .env("REDLOCK_TLS_CA", authority.certificate())
            .env("REDLOCK_TLS_CERT", &client.certificate)
            .env("REDLOCK_TLS_KEY", &client.key);
        let ended = end_of(command);
        let told = ended.stdout + &ended.stderr;
        assert_eq!(ended.code, Some(0), "{arguments:?}: {told}");
    }
}

#[test]
fn a_variable_that_is_empty_is_not_set_and_an_error_names_the_variable() {
    let servers = Servers::start(1);
    let inspect = || {
        let mut command = redlock(&["inspect", "dock-7"]);
        command.env("REDLOCK_NODES", servers[0].url());
        command
    };
    let variables = ["REDLOCK_TLS_CA", "REDLOCK_TLS_CERT", "REDLOCK_TLS_KEY"];
    let mut command = inspect();
    command.envs(variables.map(|name| (name, "")));
    end_of(command).expect_code(0);
    for (name, why) in [
        ("REDLOCK_TLS_CA", "REDLOCK_TLS_CA /gone cannot be read"),
        (
            "REDLOCK_TLS_CERT",
            "REDLOCK_TLS_CERT needs the private key too",
        ),
        (
            "REDLOCK_TLS_KEY",
            "REDLOCK_TLS_KEY needs the certificate too",
        ),
    ] {
        let mut command = inspect();
        command.env(name, "/gone");
        let ended = end_of(command);
        ended.expect_code(64);
        ended.expect_stderr(why);
    }
}

#[test]
fn a_port_without_tls_is_told_as_one_that_may_be() {
    let servers = Servers::start(1);
    let url = format!("rediss://127.0.0.1:{}", servers[0].port());
    let mut command = redlock(&["doctor", "--node", &url]);
    command.env_remove("REDLOCK_NODES");
    let ended = end_of(command);
    ended.expect_code(1);
    ended.expect_stdout("(over TLS; is this its TLS port?)");
}

#[test]
fn without_a_certificate_or_with_another_authority_the_reason_is_told() {
    let authority = Authority::create();
    let other = Authority::create();
    let server = TlsServer::start(&authority, true);
    for arguments in COMMANDS {
        for (ca, why) in [
            (&authority, "CertificateRequired"),
            (&other, "invalid peer certificate"),
        ] {
            let mut arguments = arguments.to_vec();
            if arguments[0] == "run" {
                arguments.insert(1, "--no-wait");
            }
            let mut command = to(&server, &arguments);
            command.env("REDLOCK_TLS_CA", ca.certificate());
            let ended = end_of(command);
            let told = ended.stdout + &ended.stderr;
            assert_ne!(ended.code, Some(0), "{arguments:?}: {told}");
            assert!(told.contains(why), "{arguments:?}: {told}");
        }
    }
}

#[test]
fn a_server_that_shows_too_many_certificates_is_refused_with_any_options() {
    let authority = Authority::create();
    let own = authority.forge("127.0.0.1", 8, 100);
    let server = TlsServer::start_as(&own, &authority, true);
    let client = authority.sign("client");
    for (of_authority, shows_own) in [
        ("SSL_CERT_FILE", false),
        ("SSL_CERT_FILE", true),
        ("REDLOCK_TLS_CA", false),
        ("REDLOCK_TLS_CA", true),
    ] {
        for arguments in COMMANDS {
            let mut arguments = arguments.to_vec();
            if arguments[0] == "run" {
                arguments.insert(1, "--no-wait");
            }
            let mut command = to(&server, &arguments);
            command.env(of_authority, authority.certificate());
            if shows_own {
                command
                    .env("REDLOCK_TLS_CERT", &client.certificate)
                    .env("REDLOCK_TLS_KEY", &client.key);
            }
            let ended = end_of(command);
            let told = ended.stdout + &ended.stderr;
            let words = "the server sent 108 intermediate certificates (";
            assert!(told.contains(words), "{arguments:?}: {told}");
        }
    }
}

#[test]
fn files_that_are_of_no_use_are_named() {
    let authority = Authority::create();
    let Certified { certificate, key } = authority.sign("client");
    let other = authority.sign("other");
    let directory = tempfile::tempdir().unwrap();
    let empty = directory.path().join("empty.pem");
    fs::write(&empty, "").unwrap();
    let missing = directory.path().join("missing.pem");
    for (files, why) in [
        (vec![("--tls-ca", &missing)], "missing.pem cannot be read"),
        (
            vec![("--tls-ca", &empty)],
            "empty.pem is empty: name a PEM file",
        ),
        (vec![("--tls-ca", &key)], "the file contains no certificate"),
        (vec![("--tls-key", &key)], "--tls-cert"),
        (vec![("--tls-cert", &certificate)], "--tls-key"),
        (
            vec![("--tls-cert", &certificate), ("--tls-key", &missing)],
            "missing.pem cannot be read",
        ),
        (
            vec![("--tls-cert", &certificate), ("--tls-key", &certificate)],
            "the file contains no private key",
        ),
        (
            vec![
                ("--tls-ca", &certificate),
                ("--tls-cert", &certificate),
                ("--tls-key", &other.key),
            ],
            "cannot be used together",
        ),
    ] {
        for command in ["doctor", "init"] {
            let mut command = redlock(&[command, "--node=rediss://127.0.0.1:1"]);
            for (option, file) in &files {
                command.arg(option).arg(file);
            }
            let ended = end_of(command);
            assert_eq!(ended.code, Some(64), "{files:?} {}", ended.stderr);
            assert!(ended.stderr.contains(why), "{files:?} {}", ended.stderr);
        }
    }
}

#[test]
fn a_key_may_come_from_a_command_over_a_pipe_of_the_shell() {
    let authority = Authority::create();
    let server = TlsServer::start(&authority, true);
    let client = authority.sign("client");
    let mut command = Command::new("bash");
    command
        .args([
            "-c",
            "exec \"$0\" run dock-7 --tls-key <(cat \"$KEY\") -- true",
        ])
        .arg(env!("CARGO_BIN_EXE_redlock"))
        .env("KEY", &client.key)
        .env("REDLOCK_NODES", server.tls_url())
        .env("REDLOCK_TLS_CA", authority.certificate())
        .env("REDLOCK_TLS_CERT", &client.certificate);
    let ended = end_of(command);
    ended.expect_code(0);
}

#[test]
fn a_pipe_a_device_or_a_huge_file_in_place_of_certificates_is_refused_and_not_read() {
    let authority = Authority::create();
    let certified = authority.sign("client");
    let certificate = certified.certificate.to_str().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    // A pipe that nothing is ever written to, and a file of which the disk has nothing.
    let (pipe, huge) = (path("pipe"), path("huge.pem"));
    let made = Command::new("mkfifo").arg(&pipe).status().unwrap();
    assert!(made.success());
    let made = fs::File::create(&huge).unwrap();
    made.set_len(1 << 40).unwrap();
    for (file, why) in [
        (&*pipe, "pipe is not a regular file: name a PEM file"),
        (
            "/dev/zero",
            "/dev/zero is not a regular file: name a PEM file",
        ),
        ("/dev", "/dev is not a regular file: name a PEM file"),
        (&*huge, "huge.pem is longer than 4 MiB: name a PEM file"),
        // Reading it waits for the next message of the kernel.
        ("/proc/kmsg", "/proc/kmsg is empty: name a PEM file"),
    ] {
        for options in [
            &[("--tls-ca", file)][..],
            &[("--tls-cert", file), ("--tls-key", file)],
            &[("--tls-cert", certificate), ("--tls-key", file)],
        ] {
            let mut command = with_little_memory(&["doctor", "--node=rediss://127.0.0.1:1"]);
            for (option, file) in options {
                command.args([option, file]);
            }
            let ended = end_of(command);
            assert_eq!(ended.code, Some(64), "{options:?} {}", ended.stderr);
            assert!(ended.stderr.contains(why), "{options:?} {}", ended.stderr);
        }
        // The authorities of the system, of another place.
        let mut command = with_little_memory(&["doctor", "--node=rediss://127.0.0.1:1"]);
        command.env("SSL_CERT_FILE", file);
        let ended = end_of(command);
        assert_eq!(ended.code, Some(64), "{file} {}", ended.stderr);
        let why = why.replace("4 MiB", "64 MiB");
        assert!(ended.stderr.contains(&why), "{file} {}", ended.stderr);
    }
}

#[test]
fn a_file_with_the_certificates_of_a_system_and_text_beside_them_is_read() {
    let authority = Authority::create();
    let server = TlsServer::start(&authority, false);
    let own = fs::read_to_string(authority.certificate()).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let bundle = directory.path().join("bundle.pem");
    let text = "    Signature Algorithm: ecdsa-with-SHA256\n".repeat(200);
    fs::write(&bundle, format!("{text}{own}").repeat(150)).unwrap();
    assert!(fs::metadata(&bundle).unwrap().len() > 1_000_000);
    let mut command = to(&server, &["inspect", "dock-7"]);
    command.env("REDLOCK_TLS_CA", &bundle);
    let ended = end_of(command);
    assert_eq!(ended.code, Some(0), "{}{}", ended.stdout, ended.stderr);
}

#[test]
fn nothing_of_a_private_key_is_told() {
    let authority = Authority::create();
    let Certified { certificate, key } = authority.sign("client");
    let secret = fs::read_to_string(&key).unwrap();
    let line = secret.lines().nth(1).unwrap().to_owned();
    let directory = tempfile::tempdir().unwrap();
    let broken = directory.path().join("broken.pem");
    for text in [
        // As it gets through an environment variable.
        secret.replace('\n', " "),
        secret.replace('\n', "\\n"),
        secret.replace("-----END", ""),
        secret.replace(&line, &format!("{line}%")),
        format!("-----BEGIN {line}"),
    ] {
        fs::write(&broken, &text).unwrap();
        for files in [
            [("--tls-cert", &certificate), ("--tls-key", &broken)],
            [("--tls-cert", &broken), ("--tls-key", &key)],
        ] {
            let mut command = redlock(&["doctor", "--node=rediss://127.0.0.1:1"]);
            for (option, file) in files {
                command.arg(option).arg(file);
            }
            let ended = end_of(command);
            assert_eq!(ended.code, Some(64), "{text} {}", ended.stderr);
            let bytes = format!("{:?}", &line.as_bytes()[..8]);
            for part in [&line[..8], bytes.trim_matches(['[', ']'])] {
                assert!(!ended.stderr.contains(part), "{text} {}", ended.stderr);
            }
        }
    }
}

#[test]
fn nothing_of_a_private_key_is_told_that_stands_in_place_of_its_file() {
    let authority = Authority::create();
    let Certified { certificate, key } = authority.sign("client");
    let text = fs::read_to_string(&key).unwrap();
    let line = text.lines().nth(1).unwrap().to_owned();
    let certificate = certificate.to_str().unwrap();
    let node = "--node=rediss://127.0.0.1:1";
    for value in [&*text, &text.replace('\n', " "), &format!("{line}\n")] {
        for [ca, cert, key] in [
            [value, certificate, certificate],
            [certificate, value, certificate],
            [certificate, certificate, value],
        ] {
            let mut by_environment = redlock(&["inspect", node, "dock-7"]);
            by_environment
                .env("REDLOCK_TLS_CA", ca)
                .env("REDLOCK_TLS_CERT", cert)
                .env("REDLOCK_TLS_KEY", key);
            let mut by_option = redlock(&["inspect", node, "dock-7", "--tls-ca", ca]);
            by_option.args(["--tls-cert", cert, "--tls-key", key]);
            for command in [by_environment, by_option] {
                let ended = end_of(command);
                ended.expect_code(64);
                ended.expect_not_in_stderr(&line[..8]);
            }
        }
        let mut command = redlock(&["inspect", node, "dock-7"]);
        command
            .env("REDLOCK_TLS_CERT", certificate)
            .env("REDLOCK_TLS_KEY", value);
        let ended = end_of(command);
        let why = "REDLOCK_TLS_KEY (not shown, it may be a private key: give the path of a file)";
        ended.expect_stderr(why);
    }
}

fn with_little_memory(arguments: &[&str]) -> Command {
    let mut command = Command::new("sh");
    command
        .args(["-c", "ulimit -v 120000; exec \"$@\"", "sh"])
        .arg(env!("CARGO_BIN_EXE_redlock"))
        .args(arguments)
        .env_remove("REDLOCK_NODES");
    command
}

fn to(server: &TlsServer, arguments: &[&str]) -> Command {
    let mut command = redlock(arguments);
    command.env("REDLOCK_NODES", server.tls_url());
    command
}
