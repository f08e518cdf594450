//! The server that answers anything.

use std::time::Duration;

use fastrand::Rng;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;

use crate::reply;

/// Serves until it is dropped.
pub(crate) struct Babbler {
    url: String,
    task: AbortHandle,
}

impl Babbler {
    pub(crate) async fn start(seed: u64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("redis://{}", listener.local_addr().unwrap());
        let task = tokio::spawn(async move {
            let mut random = Rng::with_seed(seed);
            // Half of them let every client in: what they say after that is what counts.
            let is_polite = random.bool();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let random = random.fork();
                // It ends when the client ends, or by chance.
                tokio::spawn(serve(stream, random, is_polite));
            }
        });
        let task = task.abort_handle();
        Self { url, task }
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }
}

impl Drop for Babbler {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(stream: TcpStream, mut random: Rng, is_polite: bool) -> Option<()> {
    let mut stream = BufReader::new(stream);
    let mut is_in = false;
    loop {
        let command = read_command(&mut stream).await?;
        let bytes = if is_polite && !is_in {
            is_in = command == "EVAL";
            reply::right(&command).to_vec()
        } else {
            reply::random(&mut random, &command)
        };
        send(&mut stream, &bytes, &mut random).await?;
        // Closes, in the middle or unasked.
        if random.u8(0..40) == 0 {
            return None;
        }
    }
}

/// In pieces.
async fn send(stream: &mut BufReader<TcpStream>, mut bytes: &[u8], random: &mut Rng) -> Option<()> {
    while !bytes.is_empty() {
        let count = match random.u8(0..3) {
            0 => bytes.len(),
            _ => random.usize(1..=bytes.len()),
        };
        let (piece, rest) = bytes.split_at(count);
        stream.write_all(piece).await.ok()?;
        bytes = rest;
        if random.u8(0..4) == 0 {
            tokio::time::sleep(Duration::from_millis(random.u64(0..3))).await;
        }
    }
    Some(())
}

/// The first word of an array of bulk strings; `None` at the end of the stream.
async fn read_command(stream: &mut BufReader<TcpStream>) -> Option<String> {
    let words = read_length(stream, '*').await?;
    let mut first = None;
    for _ in 0..words {
        let length = read_length(stream, '$').await?;
        let mut word = vec![0; length + 2];
        stream.read_exact(&mut word).await.ok()?;
        word.truncate(length);
        first.get_or_insert_with(|| String::from_utf8_lossy(&word).into_owned());
    }
    first
}

async fn read_length(stream: &mut BufReader<TcpStream>, kind: char) -> Option<usize> {
    let mut line = String::new();
    stream.read_line(&mut line).await.ok()?;
    line.trim_end().strip_prefix(kind)?.parse().ok()
}
