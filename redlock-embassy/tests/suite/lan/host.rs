//! The host: servers that listen at its ports.

use core::future::poll_fn;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};

use embassy_futures::select::{Either, select};
use embassy_net::Stack;
use embassy_net::tcp::TcpSocket;

use crate::wire::Server;

type Task = Pin<Box<dyn Future<Output = ()>>>;

/// How many clients a server has room for.
const CLIENTS_MAX: usize = 4;

/// The tasks of the host. They are polled with everything that happens, so they need no waker.
pub(super) struct Host {
    tasks: Vec<Task>,
}

impl Host {
    pub(super) fn new(
        stack: Stack<'static>,
        runner: Task,
        servers: &[&'static Server<'static>],
        first_port: u16,
    ) -> Self {
        let mut tasks = vec![runner];
        for (port, server) in (first_port..).zip(servers) {
            tasks.extend((0..CLIENTS_MAX).map(|_| Box::pin(serve(stack, port, server)) as Task));
        }
        Self { tasks }
    }

    #[cfg(feature = "dns")]
    pub(super) fn and(mut self, task: Task) -> Self {
        self.tasks.push(task);
        self
    }

    pub(super) fn poll(&mut self) {
        let mut cx = Context::from_waker(Waker::noop());
        // The stack first, and again after the servers: what they write must leave.
        for task in &mut self.tasks {
            let _runs_forever = task.as_mut().poll(&mut cx);
        }
        if let Some(stack) = self.tasks.first_mut() {
            let _runs_forever = stack.as_mut().poll(&mut cx);
        }
    }
}

/// Serves one client after the other.
async fn serve(stack: Stack<'static>, port: u16, server: &'static Server<'static>) {
    let (mut rx, mut tx) = ([0; 4_096], [0; 1_024]);
    let mut socket = TcpSocket::new(stack, &mut rx, &mut tx);
    socket.set_nagle_enabled(false);
    loop {
        if socket.accept(port).await.is_ok() {
            let number = server.accept();
            while exchange(&mut socket, server, number).await.is_some() {}
            server.end(number);
        }
        socket.abort();
        let _flushed = socket.flush().await;
    }
}

/// Reads commands or sends answers, whichever can be done. `None` if the connection has ended.
async fn exchange(socket: &mut TcpSocket<'_>, server: &Server<'_>, number: usize) -> Option<()> {
    let mut buffer = [0; 1_024];
    let answers = poll_fn(|_| match server.take_answers(number) {
        answers if answers.is_empty() && !server.has_ended(number) => Poll::Pending,
        answers => Poll::Ready(answers),
    });
    let read = select(answers, socket.read(&mut buffer)).await;
    match read {
        Either::First(answers) if answers.is_empty() => return None,
        Either::First(answers) => {
            let mut rest = answers.as_slice();
            while !rest.is_empty() {
                let count = socket.write(rest).await.ok()?;
                rest = rest.get(count..).unwrap_or_default();
            }
        }
        Either::Second(Ok(0) | Err(_)) => return None,
        Either::Second(Ok(count)) => server.read(number, &buffer[..count]),
    }
    Some(())
}
