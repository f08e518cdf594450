//! The cable between the stacks: it delays frames, loses them, and can be pulled.

use core::cell::{Cell, RefCell};
use core::task::{Context, Waker};
use core::time::Duration;
use std::collections::VecDeque;
use std::rc::Rc;

use embassy_net::driver::{Capabilities, Driver, HardwareAddress, LinkState, RxToken, TxToken};
use redlock_core::mock::SeededEntropy;
use redlock_core::{Clock, Entropy, Instant};
use redlock_embassy::EmbassyClock;

use crate::world::ms;

/// Who is at an end of the cable. The number is the last byte of its hardware address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Side(u8);

impl Side {
    pub(crate) const DEVICE: Self = Self(0);
    pub(crate) const HOST: Self = Self(1);

    /// Further hosts, counted from 0.
    pub(crate) const fn neighbor(number: u8) -> Self {
        Self(2 + number)
    }
}

/// The device, the host, and up to three further hosts.
const SIDES: usize = 5;

/// A cable. By default, it takes 1 ms each way and loses nothing.
pub(crate) struct Cable {
    ways: [RefCell<Way>; SIDES],
    /// How long each frame takes.
    delay: Cell<Duration>,
    /// How much longer the first segment of a connection takes: the host is slow to accept.
    accept_delay: Cell<Duration>,
    /// A radio that sleeps after this time without a frame, and takes this time to wake up.
    sleep: Cell<Option<(Duration, Duration)>>,
    last_frame_at: Cell<Instant>,
    /// The percentage of frames that are lost.
    loss: Cell<u8>,
    entropy: RefCell<SeededEntropy>,
    is_pulled: Cell<bool>,
    frames: Cell<usize>,
    bytes: Cell<usize>,
    opens: Cell<usize>,
}

/// The frames on their way to one side.
#[derive(Default)]
struct Way {
    frames: VecDeque<(Instant, Vec<u8>)>,
    waker: Option<Waker>,
    is_attached: bool,
}

impl Default for Cable {
    fn default() -> Self {
        Self {
            ways: Default::default(),
            delay: Cell::new(ms(1)),
            accept_delay: Cell::default(),
            sleep: Cell::default(),
            last_frame_at: Cell::new(Instant::from_micros(0)),
            loss: Cell::default(),
            entropy: RefCell::new(SeededEntropy::new(1)),
            is_pulled: Cell::default(),
            frames: Cell::default(),
            bytes: Cell::default(),
            opens: Cell::default(),
        }
    }
}

impl Cable {
    pub(super) fn end(self: &Rc<Self>, side: Side) -> End {
        self.way(side).borrow_mut().is_attached = true;
        End {
            cable: Rc::clone(self),
            side,
        }
    }

    fn way(&self, side: Side) -> &RefCell<Way> {
        &self.ways[usize::from(side.0)]
    }

    /// Each frame takes this time.
    pub(crate) fn delay(&self, delay: Duration) {
        self.delay.set(delay);
    }

    /// The first segment of each connection takes this much longer.
    pub(crate) fn accept_after(&self, delay: Duration) {
        self.accept_delay.set(delay);
    }

    /// The radio sleeps after `idle` without a frame, and takes `wake_up` to send the next one.
    pub(crate) fn sleep_after(&self, idle: Duration, wake_up: Duration) {
        self.sleep.set(Some((idle, wake_up)));
    }

    /// This percentage of frames is lost.
    pub(crate) fn lose(&self, percent: u8) {
        self.loss.set(percent);
    }

    /// Loses all frames from now on, also those on their way.
    pub(crate) fn pull(&self) {
        self.is_pulled.set(true);
        for way in &self.ways {
            way.borrow_mut().frames.clear();
        }
        self.wake();
    }

    pub(crate) fn plug_in(&self) {
        self.is_pulled.set(false);
        self.wake();
    }

    /// How many frames were sent, both ways.
    pub(crate) fn frames(&self) -> usize {
        self.frames.get()
    }

    /// How many bytes were sent, both ways.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.get()
    }

    /// How many times the device asked for a connection.
    pub(crate) fn opens(&self) -> usize {
        self.opens.get()
    }

    /// Wakes the sides that have a frame to receive.
    pub(super) fn deliver(&self) {
        let now = EmbassyClock.now();
        for way in &self.ways {
            let mut way = way.borrow_mut();
            if way.frames.front().is_some_and(|(at, _)| *at <= now) {
                way.waker.take().into_iter().for_each(Waker::wake);
            }
        }
    }

    fn wake(&self) {
        for way in &self.ways {
            way.borrow_mut()
                .waker
                .take()
                .into_iter()
                .for_each(Waker::wake);
        }
    }

    fn send(&self, from: Side, frame: &[u8]) {
        self.frames.set(self.frames.get() + 1);
        self.bytes.set(self.bytes.get() + frame.len());
        let now = EmbassyClock.now();
        let mut delay = self.delay.get();
        if from == Side::DEVICE && is_opening(frame) {
            self.opens.set(self.opens.get() + 1);
            delay += self.accept_delay.get();
        }
        let idle = now.saturating_duration_since(self.last_frame_at.get());
        self.last_frame_at.set(now);
        match self.sleep.get() {
            Some((limit, wake_up)) if idle >= limit => delay += wake_up,
            _ => {}
        }
        let mut random = [0];
        self.entropy.borrow_mut().fill(&mut random);
        if random[0] % 100 < self.loss.get() || self.is_pulled.get() {
            return;
        }
        let is_for_all = frame[0] & 1 == 1;
        for (side, way) in (0..).map(Side).zip(&self.ways) {
            let mut way = way.borrow_mut();
            let is_for_it = is_for_all || frame[5] == side.0;
            if way.is_attached && side != from && is_for_it {
                // Frames do not overtake each other.
                let earliest = way.frames.back().map_or(now, |(at, _)| *at);
                let at = now.saturating_add(delay).max(earliest);
                way.frames.push_back((at, frame.to_vec()));
            }
        }
    }
}

/// Whether the frame asks for a connection: TCP over IPv4, with the flag SYN.
fn is_opening(frame: &[u8]) -> bool {
    let Some(packet) = frame.strip_prefix_after_ethernet() else {
        return false;
    };
    let header = usize::from(packet[0] & 0xf) * 4;
    packet[9] == 6 && packet[header + 13] & 0x12 == 0x02
}

trait Frame {
    /// The IPv4 packet in an Ethernet frame.
    fn strip_prefix_after_ethernet(&self) -> Option<&[u8]>;
}

impl Frame for [u8] {
    fn strip_prefix_after_ethernet(&self) -> Option<&[u8]> {
        let (header, packet) = self.split_at_checked(14)?;
        header.ends_with(&[0x08, 0x00]).then_some(packet)
    }
}

/// One end of the cable.
pub(super) struct End {
    cable: Rc<Cable>,
    side: Side,
}

impl Driver for End {
    type RxToken<'a> = Received;
    type TxToken<'a> = Sender<'a>;

    fn receive(&mut self, cx: &mut Context<'_>) -> Option<(Received, Sender<'_>)> {
        let mut way = self.cable.way(self.side).borrow_mut();
        let now = EmbassyClock.now();
        if way.frames.front().is_none_or(|(at, _)| *at > now) {
            way.waker = Some(cx.waker().clone());
            return None;
        }
        let (_, frame) = way.frames.pop_front()?;
        Some((Received(frame), Sender(&*self)))
    }

    fn transmit(&mut self, _: &mut Context<'_>) -> Option<Sender<'_>> {
        Some(Sender(self))
    }

    fn link_state(&mut self, _: &mut Context<'_>) -> LinkState {
        if self.cable.is_pulled.get() {
            LinkState::Down
        } else {
            LinkState::Up
        }
    }

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::default();
        capabilities.max_transmission_unit = 1_514;
        capabilities
    }

    fn hardware_address(&self) -> HardwareAddress {
        HardwareAddress::Ethernet([2, 0, 0, 0, 0, self.side.0])
    }
}

pub(super) struct Received(Vec<u8>);

impl RxToken for Received {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(mut self, f: F) -> R {
        f(&mut self.0)
    }
}

pub(super) struct Sender<'a>(&'a End);

impl TxToken for Sender<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let mut frame = vec![0; len];
        let result = f(&mut frame);
        self.0.cable.send(self.0.side, &frame);
        result
    }
}
