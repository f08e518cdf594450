//! The name server on the host. It answers what a test tells it to.

use core::cell::{Cell, RefCell};
use core::future::poll_fn;
use core::task::{Context, Poll};
use core::time::Duration;
use std::collections::VecDeque;
use std::rc::Rc;

use embassy_net::udp::{PacketMetadata, UdpMetadata, UdpSocket};
use embassy_net::{Ipv4Address, Stack};
use redlock_core::{Clock, Instant};
use redlock_embassy::EmbassyClock;

const PORT: u16 = 53;

/// Takes the name that is asked for, and the question as it came. `None`: no answer.
type Answer = dyn FnMut(&str, &[u8]) -> Option<Vec<u8>>;

pub(crate) struct NameServer {
    delay: Cell<Duration>,
    answer: RefCell<Box<Answer>>,
    asked: Cell<usize>,
}

impl NameServer {
    pub(super) fn new(answer: impl FnMut(&str, &[u8]) -> Option<Vec<u8>> + 'static) -> Self {
        Self {
            delay: Cell::default(),
            answer: RefCell::new(Box::new(answer)),
            asked: Cell::default(),
        }
    }

    /// Answers after this time.
    pub(crate) fn answer_after(&self, delay: Duration) {
        self.delay.set(delay);
    }

    /// Answers every question with these addresses of version 4. It knows none of version 6.
    pub(crate) fn answer_with(&self, addresses: &[Ipv4Address]) {
        let addresses = addresses.to_vec();
        self.answer_by(move |_, question| Some(reply(question, &addresses)));
    }

    pub(crate) fn answer_by(&self, answer: impl FnMut(&str, &[u8]) -> Option<Vec<u8>> + 'static) {
        *self.answer.borrow_mut() = Box::new(answer);
    }

    /// How many questions have arrived.
    pub(crate) fn asked(&self) -> usize {
        self.asked.get()
    }

    pub(super) async fn serve(self: Rc<Self>, stack: Stack<'static>) {
        let mut meta = [PacketMetadata::EMPTY; 16];
        let mut tx_meta = [PacketMetadata::EMPTY; 16];
        let (mut rx, mut tx) = ([0; 4_096], [0; 4_096]);
        let mut socket = UdpSocket::new(stack, &mut meta, &mut rx, &mut tx_meta, &mut tx);
        socket.bind(PORT).unwrap();
        let mut answers = VecDeque::new();
        poll_fn(|cx| self.work(&socket, &mut answers, cx)).await;
    }

    fn work(
        &self,
        socket: &UdpSocket<'_>,
        answers: &mut VecDeque<(Instant, Vec<u8>, UdpMetadata)>,
        cx: &mut Context<'_>,
    ) -> Poll<()> {
        let now = EmbassyClock.now();
        let mut buffer = [0; 512];
        while let Poll::Ready(Ok((count, from))) = socket.poll_recv_from(&mut buffer, cx) {
            self.asked.set(self.asked.get() + 1);
            let question = &buffer[..count];
            if let Some(answer) = (self.answer.borrow_mut())(&name_in(question), question) {
                answers.push_back((now.saturating_add(self.delay.get()), answer, from));
            }
        }
        while answers.front().is_some_and(|(at, ..)| *at <= now)
            && let Some((_, answer, to)) = answers.pop_front()
        {
            let _sent = socket.poll_send_to(&answer, to, cx);
        }
        Poll::Pending
    }
}

/// What follows the header: labels, each after its length.
fn name_in(question: &[u8]) -> String {
    let mut labels = Vec::new();
    let mut rest = &question[12..];
    while rest[0] > 0 {
        let (label, after) = rest[1..].split_at(rest[0].into());
        labels.push(String::from_utf8_lossy(label));
        rest = after;
    }
    labels.join(".")
}

/// The reply to `question` with these addresses.
pub(crate) fn reply(question: &[u8], addresses: &[Ipv4Address]) -> Vec<u8> {
    let is_for_version_4 = question.ends_with(&[0, 1, 0, 1]);
    let addresses = if is_for_version_4 { addresses } else { &[] };
    let mut reply = question.to_vec();
    reply[2..4].copy_from_slice(&[0x81, 0x80]);
    reply[6..8].copy_from_slice(&u16::try_from(addresses.len()).unwrap().to_be_bytes());
    for address in addresses {
        // The name is that of the question, and the address is valid for a minute.
        reply.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4]);
        reply.extend(address.octets());
    }
    reply
}
