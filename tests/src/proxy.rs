//! A way to a server that takes time, and can be cut.

#![expect(clippy::unwrap_used, reason = "what fails here fails a test")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use crate::Server;

/// Passes on what both sides send, each byte after a delay.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    is_open: watch::Sender<bool>,
    port: watch::Sender<u16>,
    rate: watch::Sender<Option<u32>>,
}

/// How many bytes a narrow way passes on at once.
const CHUNK: u32 = 1_024;

/// How many bytes wait in the proxy for a narrow way, about.
const RECEIVE_BUFFER: u32 = 8 * 1_024;

impl Proxy {
    /// Listens on a port of its own, on the current runtime.
    ///
    /// # Panics
    ///
    /// When no port is left.
    pub async fn start(server: &Server, delay: Duration) -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(RECEIVE_BUFFER).unwrap();
        socket.bind(([127, 0, 0, 1], 0).into()).unwrap();
        let listener = socket.listen(1_024).unwrap();
        let address = listener.local_addr().unwrap();
        let (is_open, open) = watch::channel(true);
        let (rate, rate_now) = watch::channel(None);
        let (port, server_port) = watch::channel(server.port());
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let mut open = open.clone();
                let rate = rate_now.clone();
                let port = *server_port.borrow();
                tokio::spawn(async move {
                    if !*open.borrow() {
                        return;
                    }
                    let server = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
                    tokio::select! {
                        () = pass_on(client, server, delay, rate) => {}
                        _ = open.wait_for(|is_open| !is_open) => {}
                    }
                });
            }
        });
        Self {
            address,
            is_open,
            port,
            rate,
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

    /// Lets so many bytes through in a second, each way, from now on.
    pub fn narrow(&self, bytes_per_second: u32) {
        self.rate.send_replace(Some(bytes_per_second));
    }

    /// Lets connections through again.
    pub fn mend(&self) {
        self.is_open.send_replace(true);
    }
}

async fn pass_on(
    client: TcpStream,
    server: TcpStream,
    delay: Duration,
    rate: watch::Receiver<Option<u32>>,
) {
    client.set_nodelay(true).unwrap();
    server.set_nodelay(true).unwrap();
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    tokio::join!(
        one_way(from_client, to_server, delay, &rate),
        one_way(from_server, to_client, delay, &rate)
    );
}

async fn one_way(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    delay: Duration,
    rate: &watch::Receiver<Option<u32>>,
) {
    let (sender, mut receiver) = mpsc::unbounded_channel::<(Instant, Arc<[u8]>)>();
    let read = async move {
        let mut buffer = vec![0; 65_536];
        loop {
            let rate = *rate.borrow();
            let room = rate.map_or(buffer.len(), |_| CHUNK as usize);
            let Ok(count @ 1..) = from.read(&mut buffer[..room]).await else {
                break;
            };
            if let Some(rate) = rate {
                // Nothing more is read meanwhile, so that the sender has to wait.
                tokio::time::sleep(Duration::from_secs(1) * CHUNK / rate).await;
            }
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
