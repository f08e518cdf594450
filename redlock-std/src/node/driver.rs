//! The future that moves the bytes of a connection.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

/// The driver of a connection of the `redis` crate. The task that owns it also hands the commands to it, through a channel. So the
/// task is not woken for what it has handed over itself, but only if bytes can be read or written. Otherwise it would be polled
/// once more for each write.
pub(crate) struct Driver {
    future: Pin<Box<dyn Future<Output = ()> + Send>>,
    /// That of the task which polled last.
    waker: Option<TaskWaker>,
}

struct TaskWaker {
    task: Waker,
    of_driver: Waker,
}

impl Driver {
    pub(crate) fn new(future: impl Future<Output = ()> + Send + 'static) -> Self {
        Self {
            future: Box::pin(future),
            waker: None,
        }
    }

    /// Polls `answers`, the future of commands that wait for this driver or for their replies. The caller polls the driver
    /// afterwards if commands are new, and `answers` after each poll of the driver. So `answers` needs no waker: only the driver
    /// completes it.
    pub(crate) fn poll_answers<T>(
        answers: Pin<&mut (impl Future<Output = T> + ?Sized)>,
    ) -> Poll<T> {
        let _handing_over = HandingOver::begin();
        answers.poll(&mut Context::from_waker(Waker::noop()))
    }
}

impl Future for Driver {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let Self { future, waker } = &mut *self;
        let task = context.waker();
        let waker = match waker {
            Some(waker) if waker.task.will_wake(task) => waker,
            waker => waker.insert(TaskWaker {
                task: task.clone(),
                of_driver: Waker::from(Arc::new(DriverWaker(task.clone()))),
            }),
        };
        future
            .as_mut()
            .poll(&mut Context::from_waker(&waker.of_driver))
    }
}

/// Wakes the task, unless this thread is just handing over a command: then the task polls the driver next.
struct DriverWaker(Waker);

impl Wake for DriverWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !HANDS_OVER.get() {
            self.0.wake_by_ref();
        }
    }
}

thread_local! {
    /// Of the thread, not of the driver: another thread that finds bytes at the same moment still wakes the task.
    static HANDS_OVER: Cell<bool> = const { Cell::new(false) };
}

/// While it exists, no driver is woken by this thread.
struct HandingOver;

impl HandingOver {
    fn begin() -> Self {
        HANDS_OVER.set(true);
        Self
    }
}

impl Drop for HandingOver {
    fn drop(&mut self) {
        HANDS_OVER.set(false);
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::pin::pin;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::mpsc;

    use super::*;

    #[derive(Default)]
    struct Wakes(AtomicUsize);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A driver that waits for what comes through a channel, a task that has polled it, and its wakes.
    fn driver() -> (Driver, mpsc::Sender<()>, Arc<Wakes>) {
        let (sender, mut receiver) = mpsc::channel(9);
        let mut driver = Driver::new(async move { while receiver.recv().await.is_some() {} });
        let wakes = Arc::new(Wakes::default());
        let task = Waker::from(Arc::clone(&wakes));
        assert!(
            pin!(&mut driver)
                .poll(&mut Context::from_waker(&task))
                .is_pending()
        );
        (driver, sender, wakes)
    }

    fn send(sender: &mpsc::Sender<()>) -> impl Future<Output = ()> {
        poll_fn(|_| {
            sender.try_send(()).unwrap();
            Poll::Ready(())
        })
    }

    #[test]
    fn a_task_is_not_woken_for_what_it_hands_to_its_driver() {
        let (_driver, sender, wakes) = driver();
        assert!(Driver::poll_answers(pin!(send(&sender))).is_ready());
        assert_eq!(wakes.0.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_task_is_woken_for_what_others_do_also_while_a_thread_hands_over() {
        let (_driver, sender, wakes) = driver();
        std::thread::scope(|scope| {
            let others = poll_fn(|_| {
                let other = scope.spawn(|| sender.try_send(()).unwrap());
                other.join().unwrap();
                Poll::Ready(())
            });
            assert!(Driver::poll_answers(pin!(others)).is_ready());
        });
        assert_eq!(wakes.0.load(Ordering::Relaxed), 1);

        let (_driver, sender, wakes) = driver();
        sender.try_send(()).unwrap();
        assert_eq!(wakes.0.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn a_panic_while_a_thread_hands_over_does_not_silence_its_drivers() {
        let (_driver, sender, wakes) = driver();
        let panicked = std::panic::catch_unwind(|| {
            Driver::poll_answers(pin!(poll_fn(|_| -> Poll<()> { panic!("as a test") })))
        });
        assert!(panicked.is_err());
        sender.try_send(()).unwrap();
        assert_eq!(wakes.0.load(Ordering::Relaxed), 1);
    }
}
