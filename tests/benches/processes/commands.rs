//! The commands that clients send.

use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, TcpStream};
use std::thread::JoinHandle;

use redlock_tests::{Server, Servers};

/// Counts the commands that clients send to get and release locks, from now on. What a script calls inside is not counted: the
/// servers' own statistics have it.
pub(crate) struct Commands(Vec<(TcpStream, JoinHandle<usize>)>);

impl Commands {
    pub(crate) fn of(servers: &Servers) -> Self {
        Self(servers.iter().map(watch).collect())
    }

    pub(crate) fn count(self) -> usize {
        let counts = self.0.into_iter().map(|(stream, counter)| {
            stream.shutdown(Shutdown::Both).unwrap();
            counter.join().unwrap()
        });
        counts.sum()
    }
}

fn watch(server: &Server) -> (TcpStream, JoinHandle<usize>) {
    let mut stream = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    stream.write_all(b"MONITOR\r\n").unwrap();
    let mut lines = BufReader::new(stream.try_clone().unwrap());
    let mut first = String::new();
    lines.read_line(&mut first).unwrap();
    assert_eq!(first, "+OK\r\n");
    let counter = std::thread::spawn(move || {
        let lines = lines.split(b'\n').map_while(Result::ok);
        lines.filter(|line| is_of_client(line)).count()
    });
    (stream, counter)
}

/// `+TIME [DATABASE ADDRESS] "COMMAND" ...`, where the address is `lua` if a script calls the command.
fn is_of_client(line: &[u8]) -> bool {
    let line = String::from_utf8_lossy(line).to_ascii_lowercase();
    let command = line
        .split_once("] ")
        .map(|(from, command)| (from.ends_with("lua"), command));
    command.is_some_and(|(is_in_script, command)| {
        let is_lock = ["\"set\"", "\"evalsha\"", "\"eval\""]
            .iter()
            .any(|it| command.starts_with(it));
        is_lock && !is_in_script
    })
}
