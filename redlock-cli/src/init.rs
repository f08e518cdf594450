//! `redlock init`: a fleet's first start.

mod site;

use core::time::Duration;
use std::fmt::Display;
use std::io::Write;
use std::process::ExitCode;

use redlock_std::Options;

use crate::guard_record::Settings;
use crate::nodes::{FleetArguments, Node, block_on, each};
use crate::{duration, exit};
use site::{Mode, Site};

/// Write the guard record of each node, for a fleet's first start
///
/// Fenced locks count the vote of a node only when its guard record says that it has forgotten no
/// lock. A node without a record, or that has restarted since, is in quarantine for longer than the
/// longest TTL. This command takes the quarantine away: the votes count at once.
///
/// It is safe only when no client has held a lock on these nodes, fenced or plain, for the longest
/// TTL that any of them uses: on a first start, or when everything that locks stands still.
///
/// It writes where there is no record; a record that is there is kept, unless --force is given.
/// Nothing is written on any node when one of them cannot be reached or written to, is a replica,
/// is the same server as another, or, without --force, has a record with other settings.
///
/// Exit codes: 0 every node has a record with these settings; 1 refused, or failed on a node;
/// 64 usage; 70 internal error.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    fleet: FleetArguments,

    /// The longest TTL that a client may ask for; the quarantine is a little longer
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = duration::parse)]
    max_ttl: Duration,

    /// By how much a client's idea of the time may differ from a node's clock
    #[arg(long, value_name = "DURATION", default_value = "250ms", value_parser = duration::parse)]
    window: Duration,

    /// By how much the clock of a node may ever go back
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = duration::parse)]
    sigma: Duration,

    /// Write on every node, whatever record is there; all clients must use these settings from then on
    #[arg(long)]
    force: bool,
}

pub(crate) fn init(arguments: Arguments) -> ExitCode {
    let mode = if arguments.force {
        Mode::Force
    } else {
        Mode::Write
    };
    let settings = match arguments.settings() {
        Ok(settings) => settings,
        Err(why) => return exit::usage(&why),
    };
    match arguments.fleet.nodes() {
        Ok(nodes) => block_on(start(nodes, settings, mode)),
        Err(why) => exit::usage(&why),
    }
}

impl Arguments {
    fn settings(&self) -> Result<Settings, String> {
        Options::new(self.max_ttl).map_err(|error| format!("--max-ttl: {error}"))?;
        let at_least_one = |name, duration: Duration| {
            let ms = u64::try_from(duration.as_millis()).ok();
            ms.filter(|ms| (1..=u64::from(u32::MAX)).contains(ms))
                .ok_or_else(|| format!("{name} is not between 1ms and 49days"))
        };
        Ok(Settings {
            max_ttl_ms: at_least_one("--max-ttl", self.max_ttl)?,
            window_ms: at_least_one("--window", self.window)?,
            sigma_ms: at_least_one("--sigma", self.sigma)?,
        })
    }
}

/// Looks at every node before the first is written to.
async fn start(nodes: Vec<Node>, settings: Settings, mode: Mode) -> ExitCode {
    let names: Vec<String> = nodes.iter().map(|node| node.name().to_owned()).collect();
    let looked = each(nodes, |node| async move { Site::look(&node).await }).await;
    let obstacles = obstacles(&names, &looked, settings, mode);
    if obstacles.iter().any(Option::is_some) {
        let lines = looked
            .iter()
            .zip(obstacles)
            .map(|(site, obstacle)| match (site, obstacle) {
                (_, Some(obstacle)) => format!("refused: {obstacle}"),
                (Ok(site), None) => format!("could be written: there is {}", site.there()),
                (Err(why), None) => why.clone(),
            });
        tell(&names, lines);
        let _unread = writeln!(
            std::io::stderr(),
            "redlock: nothing was written on any node"
        );
        return exit::BAD.into();
    }
    let sites = looked.into_iter().flatten();
    let written = each(sites, |site| site.write(settings, mode)).await;
    let code = match written.iter().all(Result::is_ok) {
        true => ExitCode::SUCCESS,
        false => exit::BAD.into(),
    };
    tell(
        &names,
        written
            .into_iter()
            .map(|line| line.unwrap_or_else(|why| format!("failed: {why}"))),
    );
    code
}

/// For each node what forbids to write anywhere.
fn obstacles(
    names: &[String],
    looked: &[Result<Site, String>],
    settings: Settings,
    mode: Mode,
) -> Vec<Option<String>> {
    let obstacle = |number: usize, site: &Result<Site, String>| {
        let site = match site {
            Ok(site) => site,
            Err(why) => return Some(why.clone()),
        };
        let earlier = names.iter().zip(looked).take(number);
        for (name, other) in earlier {
            if other
                .as_ref()
                .is_ok_and(|other| other.run_id() == site.run_id())
            {
                return Some(format!("the same server as {name}: name it once"));
            }
        }
        site.obstacle(settings, mode)
    };
    let numbered = looked.iter().enumerate();
    numbered
        .map(|(number, site)| obstacle(number, site))
        .collect()
}

fn tell(names: &[String], lines: impl Iterator<Item = impl Display>) {
    let width = names.iter().map(String::len).max().unwrap_or_default();
    for (name, line) in names.iter().zip(lines) {
        // Nobody needs to read it: the exit code counts.
        let _unread = writeln!(std::io::stdout(), "{name:width$}  {line}");
    }
}
