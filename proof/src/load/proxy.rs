//! A way to a server on which each reply takes its time.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use redlock_tests::Server;

/// Starts a proxy that passes commands on at once, and replies after `delay`. It runs until the process ends. Returns
/// its URL.
pub(super) fn start(server: &Server, delay: Duration) -> io::Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let url = format!("redis://{}", listener.local_addr()?);
    let port = server.port();
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            // A connection that cannot be passed on ends.
            drop(serve(client, port, delay));
        }
    });
    Ok(url)
}

fn serve(client: TcpStream, port: u16, delay: Duration) -> io::Result<()> {
    let server = TcpStream::connect(("127.0.0.1", port))?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (commands, to_server) = (client.try_clone()?, server.try_clone()?);
    thread::spawn(move || pass_on(commands, to_server, Duration::ZERO));
    thread::spawn(move || pass_on(server, client, delay));
    Ok(())
}

/// Until one of the two ends.
fn pass_on(mut from: TcpStream, mut to: TcpStream, delay: Duration) {
    let (sender, pieces) = mpsc::channel::<(Instant, Vec<u8>)>();
    thread::spawn(move || {
        for (due, piece) in pieces {
            thread::sleep(due.saturating_duration_since(Instant::now()));
            if to.write_all(&piece).is_err() {
                break;
            }
        }
        // The other direction is over as well.
        drop(to.shutdown(std::net::Shutdown::Both));
    });
    let mut buffer = vec![0; 65_536];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        let piece = buffer.iter().take(count).copied().collect();
        if sender.send((Instant::now() + delay, piece)).is_err() {
            break;
        }
    }
}
