//! Servers, told what to be and asked what they are.

use redlock_tests::{Server, Servers};

use crate::process::eventually;

/// Servers for which nothing vouches: as young as they are.
pub(crate) fn unvouched(count: usize) -> Servers {
    let servers = Servers::start(count);
    servers.iter().for_each(Server::disown);
    servers
}

/// As messages call it.
pub(crate) fn name(server: &Server) -> String {
    format!("127.0.0.1:{}", server.port())
}

/// The URL of a server as one of its users, with these rules.
pub(crate) fn user_of(server: &Server, user: &str, rules: &str) -> String {
    let mut command = vec!["ACL", "SETUSER", user, "reset", "on", ">secret", "~*"];
    command.extend(rules.split(' ').filter(|rule| !rule.is_empty()));
    let _: () = server.query(&command).unwrap();
    server
        .url()
        .replace("redis://", &format!("redis://{user}:secret@"))
}

/// Changes a setting.
pub(crate) fn set(server: &Server, setting: &str, value: &str) {
    let _: () = server.query(&["CONFIG", "SET", setting, value]).unwrap();
}

/// Makes `replica` one of `master`, and waits until it follows it.
pub(crate) fn replicate(master: &Server, replica: &Server) {
    set(master, "repl-diskless-sync-delay", "0");
    let port = master.port().to_string();
    let _: () = replica.query(&["REPLICAOF", "127.0.0.1", &port]).unwrap();
    eventually("a replica in step", || {
        field(replica, "master_link_status") == "up"
    });
}

/// Writes a guard record.
pub(crate) fn guard(server: &Server, run_id: &str, until_ms: u64, settings: &str) {
    let record = format!("{run_id}:{until_ms}:{settings}");
    let _: () = server.query(&["SET", "redlock:guard", &record]).unwrap();
}

pub(crate) fn run_id(server: &Server) -> String {
    field(server, "run_id")
}

/// A field of INFO.
pub(crate) fn field(server: &Server, name: &str) -> String {
    let info: String = server.query(&["INFO"]).unwrap();
    let mut lines = info.lines();
    let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    value.unwrap_or_default().to_owned()
}
