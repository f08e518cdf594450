//! Runs the tasks of a world: a task is polled when its waker was called, and never else.

use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};

use super::world::World;

/// The tasks of a world.
pub(crate) struct Executor {
    world: Rc<World>,
    tasks: Vec<Running>,
}

struct Running {
    client: usize,
    /// None when it is done.
    future: Option<Pin<Box<dyn Future<Output = ()>>>>,
    /// Set by the waker of the last poll. Those of earlier polls set nothing that is looked at: a future that
    /// does not take the new one is not woken.
    is_woken: Arc<Flag>,
}

#[derive(Debug)]
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Executor {
    pub(crate) const fn new(world: Rc<World>) -> Self {
        Self {
            world,
            tasks: Vec::new(),
        }
    }

    pub(crate) fn spawn(&mut self, client: usize, future: impl Future<Output = ()> + 'static) {
        self.tasks.push(Running {
            client,
            future: Some(Box::pin(future)),
            is_woken: Arc::new(Flag(AtomicBool::new(true))),
        });
    }

    /// Runs the world until nothing is left to happen.
    pub(crate) fn run(&mut self) {
        self.run_tasks();
        while self.world.look().step() {
            self.run_tasks();
        }
    }

    /// Polls every task that is woken and whose client can run.
    fn run_tasks(&mut self) {
        while let Some(task) = self
            .tasks
            .iter_mut()
            .find(|task| task.is_ready(&self.world))
        {
            task.poll();
        }
    }
}

impl Running {
    fn is_ready(&self, world: &World) -> bool {
        self.future.is_some()
            && self.is_woken.0.load(Ordering::Relaxed)
            && world.look().is_free(self.client)
    }

    fn poll(&mut self) {
        let Some(future) = &mut self.future else {
            return;
        };
        self.is_woken = Arc::new(Flag(AtomicBool::new(false)));
        let waker = Waker::from(Arc::clone(&self.is_woken));
        if let Poll::Ready(()) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            self.future = None;
        }
    }
}
