//! What a device has for a socket: a stream of bytes to one node of the world.

use core::future::poll_fn;
use core::task::Poll;
use std::rc::Rc;

use embedded_io_async::{ErrorKind, ErrorType, Read, Write};
use redlock_embassy::{Connect, NodeName};

use super::place::Route;
use super::world::World;

/// The stream from a device to one node.
#[derive(Debug)]
pub(crate) struct Stream {
    world: Rc<World>,
    route: Route,
}

impl Stream {
    pub(crate) const fn new(world: Rc<World>, route: Route) -> Self {
        Self { world, route }
    }
}

impl ErrorType for Stream {
    type Error = ErrorKind;
}

impl Connect for Stream {
    fn name(&self) -> NodeName {
        "a node".into()
    }

    async fn connect(&mut self) -> Result<(), ErrorKind> {
        poll_fn(|context| {
            let mut state = self.world.look();
            match state.touch_stream(self.route) {
                true => state.connect(self.route, context.waker()),
                false => Poll::Pending,
            }
        })
        .await
    }

    async fn close(&mut self) {
        self.world.look().hang_up(self.route);
    }
}

impl Read for Stream {
    async fn read(&mut self, buffer: &mut [u8]) -> Result<usize, ErrorKind> {
        poll_fn(|context| {
            let mut state = self.world.look();
            match state.touch_stream(self.route) {
                true => state.read(self.route, buffer, context.waker()).map(Ok),
                false => Poll::Pending,
            }
        })
        .await
    }
}

impl Write for Stream {
    async fn write(&mut self, bytes: &[u8]) -> Result<usize, ErrorKind> {
        poll_fn(|context| {
            let mut state = self.world.look();
            match state.touch_stream(self.route) {
                true => state.write(self.route, bytes, context.waker()),
                false => Poll::Pending,
            }
        })
        .await
    }

    async fn flush(&mut self) -> Result<(), ErrorKind> {
        self.world.look().flush(self.route)
    }
}
