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

/// Writes a guard record of this run and this data set.
pub(crate) fn guard(server: &Server, until_ms: u64, settings: &str) {
    let (run_id, data) = (run_id(server), field(server, "master_replid"));
    write_guard(server, &format!("{run_id}:{until_ms}:{settings}:{data}"));
}

/// Writes a guard record of another run.
pub(crate) fn guard_of_another_run(server: &Server, settings: &str) {
    write_guard(
        server,
        &format!("0123456789abcdef:0:{settings}:fedcba9876543210"),
    );
}

/// Writes something in the place of a guard record.
pub(crate) fn write_guard(server: &Server, record: &str) {
    let _: () = server.query(&["SET", "redlock:guard", record]).unwrap();
}

/// What stands in the place of the guard record, if anything does.
pub(crate) fn record(server: &Server) -> Option<String> {
    server.query(&["GET", "redlock:guard"]).unwrap()
}

/// Makes `server` follow its former replica `replica`, and a master again: its process stays the same, and
/// its data is what the replica has.
pub(crate) fn fail_back(server: &Server, replica: &Server) {
    replicate(replica, server);
    let _: () = server.query(&["REPLICAOF", "NO", "ONE"]).unwrap();
}

/// The node's time.
pub(crate) fn now_ms(server: &Server) -> u64 {
    let [seconds, micros]: [u64; 2] = server.query(&["TIME"]).unwrap();
    seconds * 1_000 + micros / 1_000
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
