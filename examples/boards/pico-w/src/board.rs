//! The Pico W: a pin, randomness, and Wi-Fi with DHCP.

use cyw43::{Aligned, JoinOptions, NetDriver, PowerManagementMode, SpiBus, aligned_bytes};
use cyw43_pio::{DEFAULT_CLOCK_DIVIDER, PioSpi};
use defmt::{info, unwrap, warn};
use defmt_rtt as _;
use embassy_executor::Spawner;
use embassy_net::{Config, Runner, Stack, StackResources};
use embassy_rp::gpio::Level;
use embassy_rp::peripherals::{DMA_CH0, PIO0};
use embassy_rp::pio::{self, Pio};
use embassy_rp::{bind_interrupts, dma};
use embassy_time::{Duration, Timer, with_timeout};
use panic_probe as _;
use static_cell::StaticCell;

use crate::NODES;
use crate::entropy::Entropy;

pub(crate) struct Board {
    pub(crate) stack: Stack<'static>,
    pub(crate) rng: Entropy,
    /// GP15. The LED of the board is connected to the Wi-Fi chip, which is slow to set it.
    pub(crate) dock: Output,
}

pub(crate) type Output = embassy_rp::gpio::Output<'static>;

/// Starts everything, and waits until the network is up.
pub(crate) async fn start(spawner: Spawner) -> Board {
    let chip = embassy_rp::init(Default::default());
    let dock = Output::new(chip.PIN_15, Level::Low);
    let mut rng = Entropy::gather(chip.FLASH);

    let power = Output::new(chip.PIN_23, Level::Low);
    let select = Output::new(chip.PIN_25, Level::High);
    let mut pio = Pio::new(chip.PIO0, Irqs);
    let spi = PioSpi::new(
        &mut pio.common,
        pio.sm0,
        DEFAULT_CLOCK_DIVIDER,
        pio.irq0,
        select,
        chip.PIN_24,
        chip.PIN_29,
        dma::Channel::new(chip.DMA_CH0, Irqs),
    );
    static STATE: StaticCell<cyw43::State> = StaticCell::new();
    let state = STATE.init_with(cyw43::State::new);
    let (device, mut control, runner) = cyw43::new(state, power, spi, FIRMWARE, NVRAM).await;
    spawner.spawn(unwrap!(drive_wifi(runner)));
    control.init(CLM).await;
    // With power saving, the chip receives a reply only with the next beacon: too late for a round.
    control
        .set_power_management(PowerManagementMode::None)
        .await;

    // One socket per node and one for DHCP. If there is no room for a socket, the stack panics.
    static RESOURCES: StaticCell<StackResources<{ NODES.len() + 1 }>> = StaticCell::new();
    let config = Config::dhcpv4(Default::default());
    let resources = RESOURCES.init_with(StackResources::new);
    // The first local port is random: after a restart, a node may still have connections from the old ports.
    let (stack, runner) = embassy_net::new(device, config, resources, rng.next_u64());
    spawner.spawn(unwrap!(drive_stack(runner)));
    spawner.spawn(unwrap!(stay_joined(control, stack)));

    info!("waiting for {=str} and an address", env!("WIFI_SSID"));
    stack.wait_config_up().await;
    if let Some(config) = stack.config_v4() {
        info!("this is {}", config.address);
    }
    Board { stack, rng, dock }
}

#[embassy_executor::task]
async fn drive_wifi(runner: cyw43::Runner<'static, SpiBus<Output, PioSpi<'static, PIO0, 0>>>) -> ! {
    runner.run().await
}

#[embassy_executor::task]
async fn drive_stack(mut runner: Runner<'static, NetDriver<'static>>) -> ! {
    runner.run().await
}

/// Joins the network, and joins it again when the connection is lost. The chip does not do this by itself.
#[embassy_executor::task]
async fn stay_joined(mut control: cyw43::Control<'static>, stack: Stack<'static>) -> ! {
    /// The timeout for joining: a network in range answers within a few seconds.
    const LIMIT: Duration = Duration::from_secs(20);

    loop {
        let options = match env!("WIFI_PASSWORD") {
            "" => JoinOptions::new_open(),
            password => JoinOptions::new(password.as_bytes()),
        };
        match with_timeout(LIMIT, control.join(env!("WIFI_SSID"), options)).await {
            Ok(Ok(())) => {
                // If the connection is lost already, join again.
                if with_timeout(LIMIT, stack.wait_link_up()).await.is_ok() {
                    stack.wait_link_down().await;
                }
                warn!("the Wi-Fi network is lost");
            }
            Ok(Err(error)) => warn!("cannot join {=str}: {}", env!("WIFI_SSID"), error),
            Err(_) => warn!("cannot join {=str}: no answer", env!("WIFI_SSID")),
        }
        Timer::after_secs(1).await;
    }
}

bind_interrupts!(struct Irqs {
    PIO0_IRQ_0 => pio::InterruptHandler<PIO0>;
    DMA_IRQ_0 => dma::InterruptHandler<DMA_CH0>;
});

// The program of the Wi-Fi chip, the radio regulations, and the wiring of the board.
static FIRMWARE: &Blob = aligned_bytes!(concat!(env!("CYW43_FIRMWARE"), "/43439A0.bin"));
static CLM: &Blob = aligned_bytes!(concat!(env!("CYW43_FIRMWARE"), "/43439A0_clm.bin"));
static NVRAM: &Blob = aligned_bytes!(concat!(env!("CYW43_FIRMWARE"), "/nvram_rp2040.bin"));

type Blob = Aligned<cyw43::A4, [u8]>;
