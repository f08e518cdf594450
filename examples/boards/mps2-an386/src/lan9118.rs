//! Ethernet: embassy's driver for the SMSC LAN9118 (32-bit bus, words moved by the processor).
//!
//! Frames are queued in the controller; the driver has room for one frame in each direction. Register names are those of
//! the data sheet.

use core::task::Context;

use embassy_net_driver::{Capabilities, Driver, HardwareAddress, LinkState};
use embassy_sync::waitqueue::AtomicWaker;
use embassy_time::{Duration, Instant};
use static_cell::ConstStaticCell;

use crate::board::Interrupt;
use crate::registers::Registers;

/// The controller, started.
pub(crate) struct Lan9118 {
    mac: [u8; MAC_LEN],
    is_link_up: bool,
    frames: &'static mut Frames,
}

/// A static of its own, so that it is never built on the stack.
struct Frames {
    received: Frame,
    sent: Frame,
}

type Frame = [u8; FRAME_WORDS * WORD];

/// Why the controller was not started.
#[derive(Debug)]
pub(crate) enum StartError {
    /// It has been started already.
    Started,
    /// The device at this address is not a LAN9118.
    Missing,
    /// The controller does not execute a command.
    Silent,
}

impl Lan9118 {
    /// Resets and starts the controller, once.
    pub(crate) fn start() -> Result<Self, StartError> {
        static FRAMES: ConstStaticCell<Frames> = ConstStaticCell::new(Frames {
            received: [0; FRAME_WORDS * WORD],
            sent: [0; FRAME_WORDS * WORD],
        });

        let frames = FRAMES.try_take().ok_or(StartError::Started)?;
        Self::reset()?;
        Self::prepare_interrupt();
        let mac = Self::station_address()?;
        Self::start_traffic()?;
        Interrupt::Ethernet.enable();
        Ok(Self {
            mac,
            is_link_up: false,
            frames,
        })
    }

    fn reset() -> Result<(), StartError> {
        wait_until(|| REGISTERS.read(PMT_CTRL) & PMT_READY != 0)?;
        let id = REGISTERS.read(ID_REV) >> ID_SHIFT;
        if REGISTERS.read(BYTE_TEST) != BYTE_TEST_VALUE || id != ID_LAN9118 {
            return Err(StartError::Missing);
        }
        REGISTERS.write(HW_CFG, HW_SOFT_RESET);
        wait_until(|| REGISTERS.read(HW_CFG) & HW_SOFT_RESET == 0)?;
        // After a reset the controller loads its address from the EEPROM.
        wait_until(|| REGISTERS.read(E2P_CMD) & BUSY == 0)?;
        REGISTERS.write(HW_CFG, HW_MUST_BE_ONE | TX_FIFO_KIB << HW_TX_FIFO_SHIFT);
        REGISTERS.write(AFC_CFG, AFC_LEVELS);
        Ok(())
    }

    fn prepare_interrupt() {
        REGISTERS.write(INT_EN, 0);
        REGISTERS.write(INT_STS, ALL);
        // Any other kind of line is inverted, and would be pending for ever.
        REGISTERS.write(IRQ_CFG, IRQ_ENABLE | IRQ_ACTIVE_HIGH | IRQ_PUSH_PULL);
        REGISTERS.write(FIFO_INT, FIFO_INT_FIRST_FRAME);
    }

    /// The address that the controller came with, or else one of our own.
    fn station_address() -> Result<[u8; MAC_LEN], StartError> {
        const OWN: [u8; MAC_LEN] = [0x02, 0x00, 0x00, 0x91, 0x18, 0x01];

        let low = read_mac(MAC_ADDRL)?.to_le_bytes();
        let high = read_mac(MAC_ADDRH)?.to_le_bytes();
        let address = [low[0], low[1], low[2], low[3], high[0], high[1]];
        if address != [0; MAC_LEN] && address != [u8::MAX; MAC_LEN] {
            return Ok(address);
        }
        let [a, b, c, d, e, f] = OWN;
        write_mac(MAC_ADDRL, u32::from_le_bytes([a, b, c, d]))?;
        write_mac(MAC_ADDRH, u32::from_le_bytes([e, f, 0, 0]))?;
        Ok(OWN)
    }

    fn start_traffic() -> Result<(), StartError> {
        REGISTERS.write(RX_CFG, RX_WHOLE_WORDS);
        REGISTERS.write(TX_CFG, TX_ON | TX_STATUS_MAY_OVERRUN);
        let control = read_mac(MAC_CR)?;
        write_mac(
            MAC_CR,
            control | MAC_FULL_DUPLEX | MAC_TRANSMIT | MAC_RECEIVE,
        )
    }

    /// Moves frames out of the controller until one is good; its length.
    fn take_frame(&mut self) -> Option<usize> {
        while fifo_statuses(RX_FIFO_INF) != 0 {
            let status = REGISTERS.read(RX_STATUS);
            let len = (status >> RX_STATUS_LEN_SHIFT & RX_STATUS_LEN_MASK) as usize;
            let is_whole = status & RX_STATUS_ERROR == 0;
            let fits = (HEADER_LEN + CHECKSUM_LEN..=FRAME_LEN + CHECKSUM_LEN).contains(&len);
            if is_whole && fits {
                let words = self.frames.received.chunks_exact_mut(WORD);
                for bytes in words.take(len.div_ceil(WORD)) {
                    bytes.copy_from_slice(&REGISTERS.read(RX_DATA).to_le_bytes());
                }
                return Some(len - CHECKSUM_LEN);
            }
            discard_frame(len);
        }
        None
    }
}

impl Driver for Lan9118 {
    type RxToken<'a> = Received<'a>;
    type TxToken<'a> = Free<'a>;

    fn receive(&mut self, cx: &mut Context<'_>) -> Option<(Received<'_>, Free<'_>)> {
        if !can_send() {
            wake_when_sent(cx);
            return None;
        }
        let len = match self.take_frame() {
            Some(len) => len,
            None => {
                RECEIVED.register(cx.waker());
                REGISTERS.write(INT_STS, INT_RX_STATUS_LEVEL);
                REGISTERS.write(INT_EN, INT_RX_STATUS_LEVEL);
                // A frame that came between the look and the arming raises no interrupt any more.
                self.take_frame()?
            }
        };
        let frame = self.frames.received.get_mut(..len)?;
        Some((Received(frame), Free(&mut self.frames.sent)))
    }

    fn transmit(&mut self, cx: &mut Context<'_>) -> Option<Free<'_>> {
        if !can_send() {
            wake_when_sent(cx);
            return None;
        }
        Some(Free(&mut self.frames.sent))
    }

    fn link_state(&mut self, cx: &mut Context<'_>) -> LinkState {
        const LOOK_AGAIN: Duration = Duration::from_millis(100);

        // An emulated cable stays in.
        self.is_link_up |= read_phy(PHY_STATUS).is_ok_and(|status| status & PHY_LINK_UP != 0);
        if self.is_link_up {
            return LinkState::Up;
        }
        let again_at = Instant::now() + LOOK_AGAIN;
        embassy_time_driver::schedule_wake(again_at.as_ticks(), cx.waker());
        LinkState::Down
    }

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::default();
        capabilities.max_transmission_unit = FRAME_LEN;
        capabilities.max_burst_size = Some(1);
        capabilities
    }

    fn hardware_address(&self) -> HardwareAddress {
        HardwareAddress::Ethernet(self.mac)
    }
}

/// A frame that was received.
pub(crate) struct Received<'a>(&'a mut [u8]);

impl embassy_net_driver::RxToken for Received<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, read: F) -> R {
        read(self.0)
    }
}

/// Room for a frame to be sent.
pub(crate) struct Free<'a>(&'a mut Frame);

impl embassy_net_driver::TxToken for Free<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, write: F) -> R {
        // The stack keeps to `max_transmission_unit`, so this is a bug of the stack, and no frame from the network causes it.
        let result = write(&mut self.0[..len]);
        let len_bits = len as u32;
        // One buffer, which is the whole frame; padding and checksum are added by the controller.
        REGISTERS.write(TX_DATA, TX_A_FIRST | TX_A_LAST | len_bits);
        REGISTERS.write(TX_DATA, len_bits);
        for bytes in self.0.chunks_exact(WORD).take(len.div_ceil(WORD)) {
            let word = bytes.try_into().map_or(0, u32::from_le_bytes);
            REGISTERS.write(TX_DATA, word);
        }
        result
    }
}

/// A frame has come: the interrupt masks itself, `receive` arms it again.
pub(crate) fn on_interrupt() {
    REGISTERS.write(INT_EN, 0);
    REGISTERS.write(INT_STS, ALL);
    RECEIVED.wake();
}

static RECEIVED: AtomicWaker = AtomicWaker::new();

/// Whether the longest frame would fit into the controller.
fn can_send() -> bool {
    // The status of sent frames is not needed, but unread it blocks the next frames.
    for _ in 0..fifo_statuses(TX_FIFO_INF) {
        REGISTERS.read(TX_STATUS);
    }
    let free = REGISTERS.read(TX_FIFO_INF) & FIFO_BYTES_MASK;
    free as usize >= FRAME_WORDS * WORD + TX_COMMAND_LEN
}

/// Polls for room. The emulated controller has sent a frame before the write of the last word returns, so this does not
/// run there; and it has no interrupt for a FIFO that has room again.
fn wake_when_sent(cx: &Context<'_>) {
    cx.waker().wake_by_ref();
}

fn fifo_statuses(fifo: usize) -> u32 {
    REGISTERS.read(fifo) >> FIFO_STATUSES_SHIFT & FIFO_STATUSES_MASK
}

fn discard_frame(len: usize) {
    // From the data sheet: shorter frames have to be read.
    const FAST_FORWARD_MIN_WORDS: usize = 4;

    let words = len.div_ceil(WORD);
    if words < FAST_FORWARD_MIN_WORDS {
        for _ in 0..words {
            REGISTERS.read(RX_DATA);
        }
        return;
    }
    REGISTERS.write(RX_DP_CTRL, RX_FAST_FORWARD);
    // If it does not end, the next frame is garbage too, and is discarded or dropped by the stack.
    let _ = wait_until(|| REGISTERS.read(RX_DP_CTRL) & RX_FAST_FORWARD == 0);
}

fn read_phy(register: u32) -> Result<u32, StartError> {
    write_mac(
        MII_ACC,
        PHY_ADDRESS << MII_ADDRESS_SHIFT | register << MII_REGISTER_SHIFT | MII_BUSY,
    )?;
    for _ in 0..PATIENCE {
        if read_mac(MII_ACC)? & MII_BUSY == 0 {
            return read_mac(MII_DATA);
        }
    }
    Err(StartError::Silent)
}

fn read_mac(register: u32) -> Result<u32, StartError> {
    wait_until(|| REGISTERS.read(MAC_CSR_CMD) & BUSY == 0)?;
    REGISTERS.write(MAC_CSR_CMD, BUSY | MAC_CSR_READ | register);
    wait_until(|| REGISTERS.read(MAC_CSR_CMD) & BUSY == 0)?;
    Ok(REGISTERS.read(MAC_CSR_DATA))
}

fn write_mac(register: u32, value: u32) -> Result<(), StartError> {
    wait_until(|| REGISTERS.read(MAC_CSR_CMD) & BUSY == 0)?;
    REGISTERS.write(MAC_CSR_DATA, value);
    REGISTERS.write(MAC_CSR_CMD, BUSY | register);
    wait_until(|| REGISTERS.read(MAC_CSR_CMD) & BUSY == 0)
}

fn wait_until(mut is_so: impl FnMut() -> bool) -> Result<(), StartError> {
    (0..PATIENCE)
        .any(|_| is_so())
        .then_some(())
        .ok_or(StartError::Silent)
}

/// How often a register is read at most, which is enough for everything that the controller does.
const PATIENCE: u32 = 100_000;

// SAFETY: where the board has its LAN9118, with the registers below; this module alone has it.
static REGISTERS: Registers = unsafe { Registers::at(0x4020_0000) };

const WORD: usize = size_of::<u32>();
const MAC_LEN: usize = 6;
const HEADER_LEN: usize = 14;
const CHECKSUM_LEN: usize = 4;
/// The longest frame, header and all, without its checksum.
const FRAME_LEN: usize = 1514;
const FRAME_WORDS: usize = (FRAME_LEN + CHECKSUM_LEN).div_ceil(WORD);

const ALL: u32 = u32::MAX;
/// In several registers: the operation is still running.
const BUSY: u32 = 1 << 31;

const RX_DATA: usize = 0x00;
const TX_DATA: usize = 0x20;
/// The two command words before a frame: A with the place in the frame, B with its length.
const TX_COMMAND_LEN: usize = 2 * WORD;
const TX_A_LAST: u32 = 1 << 12;
const TX_A_FIRST: u32 = 1 << 13;

const RX_STATUS: usize = 0x40;
const RX_STATUS_ERROR: u32 = 1 << 15;
const RX_STATUS_LEN_SHIFT: u32 = 16;
const RX_STATUS_LEN_MASK: u32 = 0x3fff;

const TX_STATUS: usize = 0x48;

const ID_REV: usize = 0x50;
const ID_SHIFT: u32 = 16;
const ID_LAN9118: u32 = 0x0118;

const IRQ_CFG: usize = 0x54;
const IRQ_PUSH_PULL: u32 = 1 << 0;
const IRQ_ACTIVE_HIGH: u32 = 1 << 4;
const IRQ_ENABLE: u32 = 1 << 8;

const INT_STS: usize = 0x58;
const INT_EN: usize = 0x5c;
/// More received frames are waiting than `FIFO_INT` says.
const INT_RX_STATUS_LEVEL: u32 = 1 << 3;

const BYTE_TEST: usize = 0x64;
const BYTE_TEST_VALUE: u32 = 0x8765_4321;

const FIFO_INT: usize = 0x68;
/// The level for received frames is zero; that for sending stays as after a reset.
const FIFO_INT_FIRST_FRAME: u32 = 0x4800_0000;

const RX_CFG: usize = 0x6c;
/// No offset before a frame, no alignment after it.
const RX_WHOLE_WORDS: u32 = 0;

const TX_CFG: usize = 0x70;
const TX_ON: u32 = 1 << 1;
const TX_STATUS_MAY_OVERRUN: u32 = 1 << 2;

const HW_CFG: usize = 0x74;
const HW_SOFT_RESET: u32 = 1 << 0;
const HW_MUST_BE_ONE: u32 = 1 << 20;
const HW_TX_FIFO_SHIFT: u32 = 16;
/// Of 16 KiB the share for sending.
const TX_FIFO_KIB: u32 = 5;

const RX_DP_CTRL: usize = 0x78;
const RX_FAST_FORWARD: u32 = BUSY;

const RX_FIFO_INF: usize = 0x7c;
const TX_FIFO_INF: usize = 0x80;
const FIFO_STATUSES_SHIFT: u32 = 16;
const FIFO_STATUSES_MASK: u32 = 0xff;
/// In `TX_FIFO_INF` the bytes that are free.
const FIFO_BYTES_MASK: u32 = 0xffff;

const PMT_CTRL: usize = 0x84;
const PMT_READY: u32 = 1 << 0;

const MAC_CSR_CMD: usize = 0xa4;
const MAC_CSR_DATA: usize = 0xa8;
const MAC_CSR_READ: u32 = 1 << 30;

const AFC_CFG: usize = 0xac;
/// When to pause the sender: the levels that the data sheet proposes.
const AFC_LEVELS: u32 = 0x006e_3740;

const E2P_CMD: usize = 0xb0;

// Behind `MAC_CSR_CMD` and `MAC_CSR_DATA`.
const MAC_CR: u32 = 1;
const MAC_RECEIVE: u32 = 1 << 2;
const MAC_TRANSMIT: u32 = 1 << 3;
const MAC_FULL_DUPLEX: u32 = 1 << 20;
const MAC_ADDRH: u32 = 2;
const MAC_ADDRL: u32 = 3;
const MII_ACC: u32 = 6;
const MII_BUSY: u32 = 1 << 0;
const MII_REGISTER_SHIFT: u32 = 6;
const MII_ADDRESS_SHIFT: u32 = 11;
const MII_DATA: u32 = 7;

// Behind `MII_ACC` and `MII_DATA`: the controller's own PHY.
const PHY_ADDRESS: u32 = 1;
const PHY_STATUS: u32 = 1;
const PHY_LINK_UP: u32 = 1 << 2;
