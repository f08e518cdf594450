//! The control server: a Redis server that is not a node. It has the data that the lock protects, and the orders of the
//! host.

use core::fmt::Write as _;

use embassy_net::Stack;
use embassy_net::tcp::TcpSocket;
use embassy_time::{Duration, Timer, with_timeout};
use embedded_io_async::Write;
use heapless::String;
use static_cell::ConstStaticCell;

use super::Failure;
use crate::network::HOST;

/// A connection with one outstanding command at a time.
pub(crate) struct Control {
    socket: TcpSocket<'static>,
}

/// A reply as text, whatever its type. `None` for a null.
pub(crate) type Answer = Option<String<ANSWER_MAX>>;

impl Control {
    /// Connects, once.
    pub(crate) async fn connect(stack: Stack<'static>, port: u16) -> Result<Self, Failure> {
        static RX: ConstStaticCell<[u8; 256]> = ConstStaticCell::new([0; 256]);
        static TX: ConstStaticCell<[u8; 256]> = ConstStaticCell::new([0; 256]);

        let mut socket = TcpSocket::new(stack, RX.take(), TX.take());
        socket.set_nagle_enabled(false);
        match with_timeout(PATIENCE, socket.connect((HOST, port))).await {
            Ok(Ok(())) => Ok(Self { socket }),
            Ok(Err(_)) | Err(_) => Err(Failure::Control("no connection")),
        }
    }

    /// Waits for the host's next order.
    pub(crate) async fn order(&mut self) -> Result<String<ANSWER_MAX>, Failure> {
        const LOOK_AGAIN: Duration = Duration::from_millis(5);

        loop {
            if let Some(order) = self.ask(&["LPOP", "orders"]).await? {
                return Ok(order);
            }
            Timer::after(LOOK_AGAIN).await;
        }
    }

    /// Waits for this order; any other is a failure.
    pub(crate) async fn expect_order(&mut self, wanted: &str) -> Result<(), Failure> {
        if self.order().await? == wanted {
            Ok(())
        } else {
            Err(Failure::Control("gave another order than the scenario has"))
        }
    }

    /// Sends a command and waits for the answer to it.
    pub(crate) async fn ask(&mut self, words: &[&str]) -> Result<Answer, Failure> {
        with_timeout(PATIENCE, self.converse(words))
            .await
            .unwrap_or(Err(Failure::Control("no answer")))
    }

    /// Ends the connection so that the server notices.
    pub(crate) async fn close(&mut self) {
        self.socket.abort();
        // An aborted socket has nothing left to fail.
        let _ = self.socket.flush().await;
    }

    async fn converse(&mut self, words: &[&str]) -> Result<Answer, Failure> {
        const COMMAND_MAX: usize = 256;

        let mut command = String::<COMMAND_MAX>::new();
        encode(words, &mut command).map_err(|_| Failure::Control("a command is too long"))?;
        let written = self.socket.write_all(command.as_bytes()).await;
        written.map_err(|_| Failure::Control("the connection broke"))?;

        let line = self.line().await?;
        let (kind, rest) = line
            .split_at_checked(1)
            .ok_or(Failure::Control("an empty line"))?;
        match kind {
            "+" | ":" => Ok(Some(
                rest.try_into()
                    .map_err(|_| Failure::Control("a long answer"))?,
            )),
            "$" if rest == "-1" => Ok(None),
            // All stored values are single lines, so the length is not needed.
            "$" => self.line().await.map(Some),
            _ => Err(Failure::Control(
                "an error, or what a control server never says",
            )),
        }
    }

    /// The next line, without its end.
    async fn line(&mut self) -> Result<String<ANSWER_MAX>, Failure> {
        let mut line = String::new();
        loop {
            let mut byte = [0];
            match self.socket.read(&mut byte).await {
                Ok(1) => {}
                Ok(_) | Err(_) => return Err(Failure::Control("the connection broke")),
            }
            match char::from(byte[0]) {
                '\n' => return Ok(line),
                '\r' => {}
                character => line
                    .push(character)
                    .map_err(|_| Failure::Control("a long answer"))?,
            }
        }
    }
}

fn encode<const N: usize>(words: &[&str], command: &mut String<N>) -> core::fmt::Result {
    write!(command, "*{}\r\n", words.len())?;
    for word in words {
        write!(command, "${}\r\n{word}\r\n", word.len())?;
    }
    Ok(())
}

const ANSWER_MAX: usize = 32;

/// The server is on the same host as the emulator, so a longer time means a fault.
const PATIENCE: Duration = Duration::from_secs(10);
