//! The NUCLEO-H563ZI: its clocks, its LED, its random number generator, and Ethernet with DHCP.

use defmt::{info, unwrap};
use defmt_rtt as _;
use embassy_executor::Spawner;
use embassy_net::{Config as NetConfig, Runner, Stack, StackResources};
use embassy_stm32::eth::{self, Ethernet, GenericPhy, PacketQueue, Sma};
use embassy_stm32::gpio::{Level, Speed};
use embassy_stm32::peripherals::{ETH, ETH_SMA, RNG};
use embassy_stm32::rcc::{
    Hse, HseMode, Pll, PllDiv, PllMul, PllPreDiv, PllSource, Sysclk, VoltageScale,
};
use embassy_stm32::rng::{self, Rng};
use embassy_stm32::time::Hertz;
use embassy_stm32::{Config, bind_interrupts, uid};
use panic_probe as _;
use static_cell::StaticCell;

use crate::NODES;

pub(crate) struct Board {
    pub(crate) stack: Stack<'static>,
    /// The chip's true random number generator, which tests itself.
    pub(crate) rng: Rng<'static, RNG>,
    /// LD1, the green LED.
    pub(crate) dock: Output,
}

pub(crate) type Output = embassy_stm32::gpio::Output<'static>;

/// Starts everything, and waits until the network is up.
pub(crate) async fn start(spawner: Spawner) -> Board {
    let chip = embassy_stm32::init(clocks());
    let dock = Output::new(chip.PB0, Level::Low, Speed::Low);
    let mut rng = Rng::new(chip.RNG, Irqs);

    static PACKETS: StaticCell<PacketQueue<4, 4>> = StaticCell::new();
    let ethernet = Ethernet::new(
        PACKETS.init_with(PacketQueue::new),
        chip.ETH,
        Irqs,
        chip.PA1,
        chip.PA7,
        chip.PC4,
        chip.PC5,
        chip.PG13,
        chip.PB15,
        chip.PG11,
        mac_address(),
        chip.ETH_SMA,
        chip.PA2,
        chip.PC1,
    );

    // One socket per node and one for DHCP. If there is no room for a socket, the stack panics.
    static RESOURCES: StaticCell<StackResources<{ NODES.len() + 1 }>> = StaticCell::new();
    let config = NetConfig::dhcpv4(Default::default());
    let resources = RESOURCES.init_with(StackResources::new);
    // The first local port is random: after a restart, a node may still have connections from the old ports.
    let (stack, runner) = embassy_net::new(ethernet, config, resources, rng.next_u64());
    spawner.spawn(unwrap!(drive(runner)));

    info!("waiting for the cable and an address");
    stack.wait_config_up().await;
    if let Some(config) = stack.config_v4() {
        info!("this is {}", config.address);
    }
    Board { stack, rng, dock }
}

#[embassy_executor::task]
async fn drive(mut runner: Runner<'static, Device>) -> ! {
    runner.run().await
}

type Device = Ethernet<'static, ETH, GenericPhy<Sma<'static, ETH_SMA>>>;

bind_interrupts!(struct Irqs {
    ETH => eth::InterruptHandler;
    RNG => rng::InterruptHandler<RNG>;
});

/// 250 MHz, from the 8 MHz clock of the debug probe.
fn clocks() -> Config {
    let mut config = Config::default();
    config.rcc.hsi = None;
    // Drives the random number generator.
    config.rcc.hsi48 = Some(Default::default());
    config.rcc.hse = Some(Hse {
        freq: Hertz(8_000_000),
        mode: HseMode::BypassDigital,
    });
    config.rcc.pll1 = Some(Pll {
        source: PllSource::HSE,
        prediv: PllPreDiv::DIV2,
        mul: PllMul::MUL125,
        divp: Some(PllDiv::DIV2),
        divq: Some(PllDiv::DIV2),
        divr: None,
    });
    config.rcc.sys = Sysclk::PLL1_P;
    config.rcc.voltage_scale = VoltageScale::Scale0;
    config
}

/// A MAC address that differs from chip to chip, in the locally administered range. A product needs its own range.
fn mac_address() -> [u8; 6] {
    // FNV-1a over the whole identity of the chip, because different parts of it differ from lot to lot.
    let hash = uid::uid()
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
        });
    let [a, b, c, d, e, ..] = hash.to_be_bytes();
    [0x02, a, b, c, d, e]
}
