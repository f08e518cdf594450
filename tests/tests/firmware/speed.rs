//! How fast the device is while nodes are stopped.

use std::time::Duration;

use redlock_tests::{Server, Servers, eventually};

use crate::figures;
use crate::firmware::{Firmware, order};

#[tokio::test]
async fn a_stopped_minority_makes_an_acquire_no_slower() {
    /// In hundredths: what the noise of a small machine may cost a median.
    const MOST: u64 = 120;
    /// Of the whole measurement, since other programs may use the machine.
    const TRIES: usize = 3;

    let (servers, control) = (Servers::start(5), Server::start());
    let arguments = [
        ("acquisitions", "100".to_owned()),
        ("node_timeout_ms", "500".to_owned()),
    ];
    let mut firmware = Firmware::start("speed", &servers, &control, &arguments);
    firmware.wait_for("ready");
    let mut tries = Vec::new();
    while tries.len() < TRIES {
        let [healthy, one, two] = measure(&mut firmware, &servers, &control).await;
        let line = format!(
            "acquire p50 on the device: {healthy} us healthy, {one} us with one node stopped, \
             {two} us with two"
        );
        figures::print(&line);
        tries.push(line);
        if one.max(two) * 100 <= healthy * MOST {
            order(&control, "end");
            return firmware.finish(&servers, &control).await;
        }
    }
    panic!("slower with stopped nodes: {tries:#?}");
}

/// The medians with no node stopped, with one and with two, in microseconds.
async fn measure(firmware: &mut Firmware, servers: &Servers, control: &Server) -> [u64; 3] {
    /// Each is as long as a moment of noise, so that the noise meets all three.
    const PHASES: usize = 7;

    let mut times = [const { Vec::new() }; 3];
    for _ in 0..PHASES {
        for (stopped, times) in times.iter_mut().enumerate() {
            let stopped = &servers[..stopped];
            stopped.iter().for_each(Server::pause);
            order(control, "measure");
            firmware.wait_for("acquire_p50_us");
            times.push(firmware.number("acquire_p50_us"));
            stopped.iter().for_each(Server::resume);
            eventually("they answer again", Duration::from_secs(10), || {
                servers
                    .iter()
                    .all(|server| server.query::<String>(&["PING"]).is_ok())
            })
            .await;
        }
    }
    times.map(|mut times| {
        times.sort_unstable();
        times[times.len() / 2]
    })
}
