//! The arguments of the host: `name=value` after the name of the firmware, in any order.

use core::time::Duration;

use heapless::String;
use redlock_embassy::{Fencing, Options};
use semihosting::experimental::env;

use super::Failure;
use crate::network::NODES;

#[derive(Debug)]
pub(crate) struct Arguments {
    pub(crate) scenario: Scenario,
    /// The ports of the nodes, as in `nodes=7001:7002:7003:7004:7005`.
    pub(crate) nodes: [u16; NODES],
    /// The port of the control server.
    pub(crate) control: u16,
    pub(crate) key: Key,
    /// How often `contend` and `wait` take the lock, `share` each of its two, and `speed` in each phase.
    pub(crate) acquisitions: u32,
    /// From `ttl_ms`, `node_timeout_ms`, `wait_ms`, `refuse_eviction` and `fenced`.
    pub(crate) options: Options,
}

pub(crate) type Key = String<64>;

#[derive(Debug, Clone, Copy)]
pub(crate) enum Scenario {
    Contend,
    Speed,
    Outage,
    Wait,
    Share,
    Tls,
    Sizes,
}

impl Arguments {
    pub(crate) fn read() -> Result<Self, Failure> {
        // The longest command line that QEMU passes on.
        const LINE: usize = 512;

        let mut scenario = None;
        let mut nodes = None;
        let mut control = None;
        let mut key = "dock-7".try_into().ok();
        let mut acquisitions = Some(200);
        let mut ttl = Some(Duration::from_secs(10));
        let mut node_timeout = None;
        let mut wait = None;
        let mut refuse_eviction = Some(false);
        let mut fenced = Some(false);
        let line = env::args::<LINE>().map_err(|_| Failure::UnknownArgument)?;
        for argument in line.into_iter().skip(1) {
            let argument = argument.map_err(|_| Failure::UnknownArgument)?;
            let (name, value) = argument.split_once('=').ok_or(Failure::UnknownArgument)?;
            match name {
                "scenario" => scenario = Scenario::named(value),
                "nodes" => nodes = ports(value),
                "control" => control = value.parse().ok(),
                "key" => key = value.try_into().ok(),
                "acquisitions" => acquisitions = value.parse().ok(),
                "ttl_ms" => ttl = millis(value),
                "node_timeout_ms" => node_timeout = Some(millis(value)),
                "wait_ms" => wait = Some(millis(value)),
                "refuse_eviction" => refuse_eviction = value.parse().ok(),
                "fenced" => fenced = value.parse().ok(),
                _ => return Err(Failure::UnknownArgument),
            }
        }
        let ttl = ttl.ok_or(Failure::Argument("ttl_ms"))?;
        let mut options = Options::new(ttl).map_err(|_| Failure::Argument("ttl_ms"))?;
        if let Some(node_timeout) = node_timeout {
            options = node_timeout
                .and_then(|node_timeout| options.node_timeout(node_timeout).ok())
                .ok_or(Failure::Argument("node_timeout_ms"))?;
        }
        if let Some(wait) = wait {
            options = options.wait(wait.ok_or(Failure::Argument("wait_ms"))?);
        }
        let refuse_eviction = refuse_eviction.ok_or(Failure::Argument("refuse_eviction"))?;
        options = options.refuse_eviction(refuse_eviction);
        if fenced.ok_or(Failure::Argument("fenced"))? {
            options = options
                .fenced(Fencing::default())
                .map_err(|_| Failure::Argument("fenced"))?;
        }
        Ok(Self {
            scenario: scenario.ok_or(Failure::Argument("scenario"))?,
            nodes: nodes.ok_or(Failure::Argument("nodes"))?,
            control: control.ok_or(Failure::Argument("control"))?,
            key: key.ok_or(Failure::Argument("key"))?,
            acquisitions: acquisitions.ok_or(Failure::Argument("acquisitions"))?,
            options,
        })
    }
}

impl Scenario {
    fn named(name: &str) -> Option<Self> {
        Some(match name {
            "contend" => Self::Contend,
            "speed" => Self::Speed,
            "outage" => Self::Outage,
            "wait" => Self::Wait,
            "share" => Self::Share,
            "tls" => Self::Tls,
            "sizes" => Self::Sizes,
            _ => return None,
        })
    }
}

fn ports(list: &str) -> Option<[u16; NODES]> {
    let mut ports = [0; NODES];
    let mut words = list.split(':');
    for port in &mut ports {
        *port = words.next()?.parse().ok()?;
    }
    words.next().is_none().then_some(ports)
}

fn millis(value: &str) -> Option<Duration> {
    value.parse().ok().map(Duration::from_millis)
}
