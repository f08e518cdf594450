//! Nodes behind TLS, with an authority and certificates of their own.

use std::fs;
use std::process::Command;

use redlock_tests::{Authority, Certified, TlsServer};

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
            "empty.pem: there is no certificate",
        ),
        (vec![("--tls-ca", &key)], "there is no certificate"),
        (vec![("--tls-key", &key)], "--tls-cert"),
        (vec![("--tls-cert", &certificate)], "--tls-key"),
        (
            vec![("--tls-cert", &certificate), ("--tls-key", &missing)],
            "missing.pem cannot be read",
        ),
        (
            vec![("--tls-cert", &certificate), ("--tls-key", &certificate)],
            "there is no private key",
        ),
        (
            vec![
                ("--tls-ca", &certificate),
                ("--tls-cert", &certificate),
                ("--tls-key", &other.key),
            ],
            "are of no use together",
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

fn to(server: &TlsServer, arguments: &[&str]) -> Command {
    let mut command = redlock(arguments);
    command.env("REDLOCK_NODES", server.tls_url());
    command
}
