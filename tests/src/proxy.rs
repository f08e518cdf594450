//! A way to a server that takes time, and can be cut.

#![expect(clippy::unwrap_used, reason = "what fails here fails a test")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use crate::Server;

/// Passes on what both sides send, each byte after a delay.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    is_open: watch::Sender<bool>,
    port: watch::Sender<u16>,
}

impl Proxy {
    /// Listens on a port of its own, on the current runtime.
    ///
    /// # Panics
    ///
    /// When no port is left.
    pub async fn start(server: &Server, delay: Duration) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (is_open, open) = watch::channel(true);
        let (port, server_port) = watch::channel(server.port());
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let mut open = open.clone();
                let port = *server_port.borrow();
                tokio::spawn(async move {
                    if !*open.borrow() {
                        return;
                    }
                    let server = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
                    tokio::select! {
                        () = pass_on(client, server, delay) => {}
                        _ = open.wait_for(|is_open| !is_open) => {}
                    }
                });
            }
        });
        Self {
            address,
            is_open,
            port,
        }
    }

    /// Where a client connects to.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    /// Leads new connections to `server`, as a name does whose address changes.
    pub fn lead_to(&self, server: &Server) {
        self.port.send_replace(server.port());
    }

    /// Breaks the connections, and those that are made until it is mended.
    pub fn cut(&self) {
        self.is_open.send_replace(false);
    }

    /// Lets connections through again.
    pub fn mend(&self) {
        self.is_open.send_replace(true);
    }
}

async fn pass_on(client: TcpStream, server: TcpStream, delay: Duration) {
    client.set_nodelay(true).unwrap();
    server.set_nodelay(true).unwrap();
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    tokio::join!(
        one_way(from_client, to_server, delay),
        one_way(from_server, to_client, delay)
    );
}

async fn one_way(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    delay: Duration,
) {
    let (sender, mut receiver) = mpsc::unbounded_channel::<(Instant, Arc<[u8]>)>();
    let read = async move {
        let mut buffer = vec![0; 65_536];
        while let Ok(count @ 1..) = from.read(&mut buffer).await {
            let due = Instant::now() + delay;
            if sender.send((due, buffer[..count].into())).is_err() {
                break;
            }
        }
    };
    let write = async move {
        while let Some((due, bytes)) = receiver.recv().await {
            tokio::time::sleep_until(due).await;
            if to.write_all(&bytes).await.is_err() {
                break;
            }
        }
    };
    tokio::join!(read, write);
}
