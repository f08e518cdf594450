//! The smallest firmware without the lock: the same sockets, one PING on each. `sizes.sh` compares with it.

use embassy_executor::Spawner;
use embassy_futures::join::join_array;
use embassy_net::Stack;
use embassy_net::tcp::TcpSocket;
use embassy_time::{Duration, with_timeout};
use embedded_io_async::{Read, Write};

use crate::board::Exit;
use crate::buffers;
use crate::network::{HOST, NODES};

pub(crate) async fn run(_spawner: Spawner, stack: Stack<'static>) -> Exit {
    let mut ports = PORTS.into_iter();
    let pings = buffers::take().each_mut().map(|buffers| {
        let socket = TcpSocket::new(stack, &mut buffers.rx, &mut buffers.tx);
        ping(socket, ports.next().unwrap_or_default())
    });
    let answered = join_array(pings).await;
    if answered.iter().filter(|answered| **answered).count() > NODES / 2 {
        Exit::Passed
    } else {
        Exit::Failed
    }
}

/// Whether the server at `port` answers; the connection is closed afterwards.
async fn ping(mut socket: TcpSocket<'static>, port: u16) -> bool {
    const PATIENCE: Duration = Duration::from_secs(3);

    socket.set_nagle_enabled(false);
    socket.set_keep_alive(Some(PATIENCE));
    socket.set_timeout(Some(PATIENCE));
    let conversation = async {
        let mut reply = [0; PONG.len()];
        socket.connect((HOST, port)).await.is_ok()
            && socket.write_all(b"*1\r\n$4\r\nPING\r\n").await.is_ok()
            && socket.read_exact(&mut reply).await.is_ok()
            && reply == *PONG
    };
    let answered = with_timeout(PATIENCE, conversation).await;
    socket.abort();
    let closed = socket.flush().await;
    answered == Ok(true) && closed.is_ok()
}

const PONG: &[u8; 7] = b"+PONG\r\n";

/// The ports of README.md's example.
const PORTS: [u16; NODES] = [17101, 17102, 17103, 17104, 17105];
