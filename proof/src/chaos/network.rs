//! A network of this run alone, in which nodes and clients are cut off from each other.
//!
//! It is a network namespace without a name: the kernel removes it with the last process in it, however that
//! ended, so nothing can be left behind and nothing of other processes is touched. All that is in it is the
//! loopback interface. A cut is a routing rule that throws away the packets of one node's port or of one
//! client's address, silently, in one direction.

use std::env;
use std::error::Error;
use std::io;
use std::net::Ipv4Addr;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use super::lock::Lock;

/// Goes on in a network of its own: runs this program once more in the place of this one, with these
/// arguments besides. Returns only when it cannot, and says why.
pub(super) fn enter(arguments: &[String]) -> Box<dyn Error> {
    let mut refusal = String::new();
    // As root, or else as a user who is root in there alone.
    for flags in [&["--net"][..], &["--map-root-user", "--net"]] {
        match probe(flags) {
            Err(error) => return format!("unshare: {error}").into(),
            Ok(Some(why)) => refusal = why,
            Ok(None) => {
                let program = match env::current_exe() {
                    Ok(program) => program,
                    Err(error) => return error.into(),
                };
                return Command::new("unshare")
                    .args(flags)
                    .arg("--")
                    .arg(program)
                    .args(env::args_os().skip(1))
                    .args(arguments)
                    .exec()
                    .into();
            }
        }
    }
    refusal.into()
}

/// Why there cannot be a network with rules; none when there can.
fn probe(flags: &[&str]) -> io::Result<Option<String>> {
    let output = Command::new("unshare")
        .args(flags)
        .args(["--", "sh", "-c"])
        .arg("ip link set lo up && ip rule add pref 1 ipproto tcp dport 9 blackhole")
        .stdin(Stdio::null())
        .output()?;
    let why = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Ok((!output.status.success()).then_some(why))
}

/// The network that this process has for itself.
#[derive(Debug, Clone, Copy)]
pub(super) struct Network(());

/// What is thrown away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cut {
    ToPort(u16),
    FromPort(u16),
    ToAddress(Ipv4Addr),
    FromAddress(Ipv4Addr),
}

impl Network {
    /// The network that was [entered](enter), ready to be cut.
    pub(super) fn prepare() -> Result<Self, Box<dyn Error>> {
        ip(&["link", "set", "lo", "up"])?;
        // Rules are asked in order, and the kernel's rule for its own addresses is the first one.
        ip(&["rule", "add", "pref", "100", "lookup", "local"])?;
        ip(&["rule", "del", "pref", "0"])?;
        Ok(Self(()))
    }

    /// The address at which the nodes are for client number `client` of the lock alone.
    pub(super) fn address_for(lock: Lock, client: usize) -> Ipv4Addr {
        let last = u8::try_from(client % 200).unwrap_or(0) + 2;
        Ipv4Addr::new(127, 0, u8::from(lock.is_fenced()), last)
    }

    pub(super) fn cut(&self, cut: Cut) -> Result<(), Box<dyn Error>> {
        self.rule("add", cut)
    }

    pub(super) fn mend(&self, cut: Cut) -> Result<(), Box<dyn Error>> {
        self.rule("del", cut)
    }

    fn rule(&self, action: &str, cut: Cut) -> Result<(), Box<dyn Error>> {
        let (selector, value) = match cut {
            Cut::ToPort(port) => ("dport", port.to_string()),
            Cut::FromPort(port) => ("sport", port.to_string()),
            Cut::ToAddress(address) => ("to", address.to_string()),
            Cut::FromAddress(address) => ("from", address.to_string()),
        };
        ip(&[
            "rule",
            action,
            "pref",
            "50",
            selector,
            &value,
            "ipproto",
            "tcp",
            "blackhole",
        ])
    }
}

fn ip(words: &[&str]) -> Result<(), Box<dyn Error>> {
    let output = Command::new("ip").args(words).output()?;
    if output.status.success() {
        return Ok(());
    }
    let why = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(format!("ip {}: {why}", words.join(" ")).into())
}
