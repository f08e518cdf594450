//! The ESP32-C6: a pin, its random number generator, and Wi-Fi with DHCP.

use defmt::{info, unwrap, warn};
use embassy_executor::Spawner;
use embassy_net::{Runner, Stack, StackResources};
use embassy_time::Timer;
use esp_backtrace as _;
use esp_hal::clock::CpuClock;
use esp_hal::gpio::{Level, OutputConfig};
use esp_hal::ram;
use esp_hal::rng::Trng;
use esp_hal::timer::timg::TimerGroup;
use esp_println as _;
use esp_radio::wifi::sta::StationConfig;
use esp_radio::wifi::{
    AuthenticationMethodConfig, Config, ControllerConfig, Interface, PowerSaveMode, WifiController,
};
use static_cell::StaticCell;

use crate::NODES;

pub(crate) struct Board {
    pub(crate) stack: Stack<'static>,
    /// Truly random while the radio is on. Here it is always on.
    pub(crate) rng: Trng,
    /// GPIO10. The LED of most boards needs colours instead of a level.
    pub(crate) dock: Output,
}

pub(crate) type Output = esp_hal::gpio::Output<'static>;

/// Starts everything, and waits until the network is up.
pub(crate) async fn start(spawner: Spawner) -> Board {
    let chip = esp_hal::init(esp_hal::Config::default().with_cpu_clock(CpuClock::max()));
    let dock = Output::new(chip.GPIO10, Level::Low, OutputConfig::default());

    // The heap of the Wi-Fi driver: memory that the bootloader no longer needs, and a little more.
    esp_alloc::heap_allocator!(#[ram(reclaimed)] size: 64 * 1024);
    esp_alloc::heap_allocator!(size: 36 * 1024);
    let timers = TimerGroup::new(chip.TIMG0);
    esp_rtos::start(timers.timer0, chip.FROM_CPU_INTR0);

    let authentication = match env!("WIFI_PASSWORD") {
        "" => AuthenticationMethodConfig::Open,
        password => AuthenticationMethodConfig::Wpa2Personal(unwrap!(password.try_into())),
    };
    let station = StationConfig::default()
        .with_ssid(unwrap!(env!("WIFI_SSID").try_into()))
        .with_authentication(authentication);
    let config = ControllerConfig::default().with_initial_config(Config::Station(station));
    let mut controller = unwrap!(WifiController::new(chip.WIFI, config));
    // With power saving, the chip receives a reply only with the next beacon: too late for a round.
    unwrap!(controller.set_power_saving(PowerSaveMode::None));
    // The radio must be on: without it, the numbers are not random, and this fails.
    let rng = unwrap!(Trng::try_new());

    // One socket per node and one for DHCP. If there is no room for a socket, the stack panics.
    static RESOURCES: StaticCell<StackResources<{ NODES.len() + 1 }>> = StaticCell::new();
    let config = embassy_net::Config::dhcpv4(Default::default());
    let resources = RESOURCES.init_with(StackResources::new);
    // The first local port is random: after a restart, a node may still have connections from the old ports.
    let mut seed = [0; 8];
    rng.read(&mut seed);
    let seed = u64::from_ne_bytes(seed);
    let (stack, runner) = embassy_net::new(Interface::station(), config, resources, seed);
    spawner.spawn(unwrap!(drive_stack(runner)));
    spawner.spawn(unwrap!(stay_joined(controller)));

    info!("waiting for {=str} and an address", env!("WIFI_SSID"));
    stack.wait_config_up().await;
    if let Some(config) = stack.config_v4() {
        info!("this is {}", config.address);
    }
    Board { stack, rng, dock }
}

#[embassy_executor::task]
async fn drive_stack(mut runner: Runner<'static, Interface>) -> ! {
    runner.run().await
}

/// Joins the network, and joins it again when the connection is lost. The chip does not do this by itself.
#[embassy_executor::task]
async fn stay_joined(mut controller: WifiController<'static>) -> ! {
    loop {
        match controller.connect_async().await {
            Ok(_) => {
                let lost = controller.wait_for_disconnect_async().await;
                warn!("the Wi-Fi network is lost: {}", lost);
            }
            Err(error) => warn!("cannot join {=str}: {}", env!("WIFI_SSID"), error),
        }
        Timer::after_secs(1).await;
    }
}

esp_bootloader_esp_idf::esp_app_desc!();
