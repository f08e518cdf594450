//! Dropping a future before it is done.

use core::future::{Future, poll_fn};
use core::pin::pin;
use core::task::Poll;

use redlock_core::{Clock, Instant};

/// When a future is dropped if it has not ended by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cut {
    Never,
    /// After it was polled so often; zero means that it is not polled at all.
    Polls(u64),
    /// By a timeout.
    At(Instant),
}

/// What `future` gives, or nothing when it was dropped before.
pub(crate) async fn cut<F: Future>(future: F, end: Cut, clock: &impl Clock) -> Option<F::Output> {
    let (mut polls_left, deadline) = match end {
        Cut::Never => return Some(future.await),
        Cut::Polls(0) => return None,
        Cut::Polls(polls) => (polls, Instant::MAX),
        Cut::At(deadline) => (u64::MAX, deadline),
    };
    let mut future = pin!(future);
    let mut timer = pin!(clock.sleep_until(deadline));
    poll_fn(|context| {
        if let Poll::Ready(output) = future.as_mut().poll(context) {
            return Poll::Ready(Some(output));
        }
        polls_left -= 1;
        if polls_left == 0 {
            return Poll::Ready(None);
        }
        timer.as_mut().poll(context).map(|()| None)
    })
    .await
}
