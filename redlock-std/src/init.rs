//! The guard records of new nodes: what `redlock init` does.
//!
//! The items beside [`init`] and its error are for the command line of this repository.

// Ordered from the top down.
pub mod plan;
pub mod site;

pub mod connection;
pub mod recovery;

pub mod guard_record;

pub mod info;

pub mod clock;

pub mod duration;

use std::fmt;
use std::time::Duration;

use redlock_core::Fencing;

use crate::error::ConnectError;
use crate::node::Address;
use connection::{Node, each};
use guard_record::Settings;
use plan::{Look, Plan, Step};
use site::{Obstacle, Site, There};

/// Lets the votes of new nodes count at once, as `redlock init` does, for example at the start of a test or of a development
/// environment.
///
/// A server that has just started may have lost locks. So it has no vote for a plain lock until the longest TTL has passed, and none
/// for a fenced lock until its quarantine is over. This writes a guard record on each node, which says that it is new. The record
/// vouches for the node to fenced clients with the rules of `fencing`, and to plain clients whose TTL is at most its
/// [`max_ttl`](Fencing::max_ttl). A handle that had connected before learns of it up to a second later.
///
/// It writes all records or none, unless a node fails meanwhile. It requires that all nodes answer, each within a second, and are
/// distinct masters with `maxmemory-policy noeviction`; that no two clocks are certainly further apart than the window; that no node
/// has a guard record, or a key with a TTL, which may be a lock; and that no node was flushed, evicted a key, was a replica, or has
/// loaded a dump of a server with replicas, since it started. **Do not call it at every start of an application:** if all nodes restart
/// without their data, they look like new ones, although clients may hold locks. If every node has a record with these rules whose quarantine is over, there is nothing to do.
///
/// The user needs the permissions for [fenced locks](crate::Redlock::connect). Dropping the future may leave records on some
/// nodes.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use redlock_std::{Fencing, Options, Redlock};
///
/// let nodes = ["redis://127.0.0.1:6379", "redis://127.0.0.1:6380", "redis://127.0.0.1:6381"];
/// redlock_std::init(nodes, Fencing::default()).await?;
/// let options = Options::new(std::time::Duration::from_secs(10))?;
/// let redlock = Redlock::connect(nodes, options)?;
/// let guard = redlock.acquire("the first lock on these servers").await?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// [`InitError`] tells what was written and what was not.
///
/// # Panics
///
/// Outside of a tokio runtime with I/O and time drivers.
pub async fn init<U: AsRef<str>>(
    urls: impl IntoIterator<Item = U>,
    fencing: Fencing,
) -> Result<(), InitError> {
    /// For the connection, and for each answer.
    const PATIENCE: Duration = Duration::from_secs(1);

    let addresses = urls
        .into_iter()
        .enumerate()
        .map(|(index, url)| Address::parse(url.as_ref()).map_err(|error| error.of_url(index)));
    let nodes = Node::fleet(addresses, PATIENCE).map_err(InitError::Connect)?;
    let names: Vec<String> = nodes.iter().map(|node| node.name().to_owned()).collect();
    let wanted = Wanted::all(Settings::of(fencing));
    let Setup {
        lines,
        notes,
        state,
    } = set_up(nodes, wanted, Mode::Start).await;
    let nodes = names.into_iter().zip(lines).collect();
    match state {
        State::Done => Ok(()),
        State::NoVote(left) => Err(InitError::NoVote { nodes, left }),
        State::Failed => Err(InitError::Failed {
            nodes,
            advice: notes.join("; "),
        }),
    }
}

/// Why not every vote counts after [`init`](init()).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum InitError {
    /// The URLs do not name a fleet. Nothing was written.
    Connect(ConnectError),
    /// The nodes have records already, but a quarantine is not over. Nothing was written.
    NoVote {
        /// The name of each node, and its state.
        nodes: Vec<(String, String)>,
        /// The time until every vote counts.
        left: Duration,
    },
    /// The nodes are not new, or one of them has failed.
    Failed {
        /// The name of each node, and what was done or why nothing was written.
        nodes: Vec<(String, String)>,
        /// What was written, and what to do. It names rules as the options of `redlock init`: `--max-ttl` is
        /// [`Fencing::with_max_ttl`](crate::Fencing::with_max_ttl), for example.
        advice: String,
    },
}

impl fmt::Display for InitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (nodes, advice) = match self {
            Self::Connect(error) => return write!(f, "{error}"),
            Self::NoVote { nodes, left } => {
                let left = duration::in_words(*left);
                (nodes, format!("not every vote counts yet, but in {left}"))
            }
            Self::Failed { nodes, advice } => (nodes, advice.clone()),
        };
        write!(f, "{advice}")?;
        let mut separator = " (";
        for (node, line) in nodes {
            write!(f, "{separator}{node}: {line}")?;
            separator = "; ";
        }
        f.write_str(if nodes.is_empty() { "" } else { ")" })
    }
}

impl core::error::Error for InitError {}

/// What may be overwritten.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Nothing.
    Start,
    /// Records that are missing or wrong; the new ones have a quarantine.
    Repair,
    /// Everything.
    Force,
}

/// The settings for the records: those that the operator gave.
#[derive(Debug, Clone, Copy)]
pub struct Wanted {
    pub max_ttl_ms: Option<u64>,
    pub window_ms: Option<u64>,
    pub step_back_ms: Option<u64>,
}

impl Wanted {
    const fn all(settings: Settings) -> Self {
        Self {
            max_ttl_ms: Some(settings.max_ttl_ms),
            window_ms: Some(settings.window_ms),
            step_back_ms: Some(settings.step_back_ms),
        }
    }

    /// Those that were not given are from `others`.
    fn or(self, others: Settings) -> Settings {
        Settings {
            max_ttl_ms: self.max_ttl_ms.unwrap_or(others.max_ttl_ms),
            window_ms: self.window_ms.unwrap_or(others.window_ms),
            step_back_ms: self.step_back_ms.unwrap_or(others.step_back_ms),
        }
    }

    fn given(self) -> usize {
        let all = [self.max_ttl_ms, self.window_ms, self.step_back_ms];
        all.iter().flatten().count()
    }

    fn are_given(self) -> bool {
        self.given() > 0
    }

    fn are_all_given(self) -> bool {
        self.given() == 3
    }
}

/// What was done.
#[derive(Debug)]
pub struct Setup {
    /// A line for each node.
    pub lines: Vec<String>,
    /// What to do, and what this assumes.
    pub notes: Vec<String>,
    pub state: State,
}

/// The result for all nodes together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Every node has its record, or, with [`Mode::Repair`], every node that answers.
    Done,
    /// There was nothing to do, but a quarantine is not over. With [`Mode::Start`] only.
    NoVote(Duration),
    /// Nothing was written, or a node has failed.
    Failed,
}

/// Reads the state of every node before it writes to any.
pub async fn set_up(nodes: Vec<Node>, wanted: Wanted, mode: Mode) -> Setup {
    let names: Vec<String> = nodes.iter().map(|node| node.name().to_owned()).collect();
    let defaults = wanted.or(Settings::of(Fencing::default()));
    let looks = look(&nodes, defaults, mode).await;
    // A repair changes only what was given. The nodes give no vote to clients with another window or step back.
    let settings = match mode {
        Mode::Repair => plan::least(&looks).map_or(defaults, |least| wanted.or(least)),
        Mode::Start | Mode::Force => defaults,
    };
    let quarantines = looks.iter().flatten();
    let quarantine_left = quarantines
        .filter_map(|site| site.there().quarantine_left())
        .max();
    match Plan::new(&names, &looks, settings, wanted, mode) {
        Plan::Refuse { lines, advice } => Setup {
            lines,
            notes: vec![format!("nothing was written on any node{advice}")],
            state: State::Failed,
        },
        Plan::Proceed {
            steps,
            quarantine,
            follow_up,
        } => {
            let mut outcomes = write(looks, steps, settings, quarantine, mode).await;
            read_back(&nodes, &mut outcomes, settings).await;
            let failure = failure(&names, &outcomes, mode);
            let state = match (&failure, quarantine_left) {
                (Some(_), _) => State::Failed,
                (None, Some(left)) if mode == Mode::Start => State::NoVote(left),
                (None, _) => State::Done,
            };
            let is_written = |outcome: &Outcome| matches!(outcome, Outcome::Written(_));
            let is_written = outcomes.iter().any(is_written);
            let follow_up = follow_up.filter(|_| is_written);
            let left = quarantine_left.max(is_written.then_some(quarantine));
            let wait = left.filter(|_| mode == Mode::Repair && failure.is_none());
            let wait = wait.map(|left| {
                let left = duration::in_words(left);
                format!("the votes count in {left}; until then, redlock doctor and redlock init end with 1 or 2")
            });
            Setup {
                lines: outcomes.iter().map(Outcome::line).collect(),
                notes: failure.into_iter().chain(follow_up).chain(wait).collect(),
                state,
            }
        }
    }
}

/// Reads the state of every node. If another `init` is writing the same records, waits for its end.
async fn look(nodes: &[Node], settings: Settings, mode: Mode) -> Vec<Look> {
    /// Longer than another `init` takes for a node, unless this node is slow.
    const PAUSE: Duration = Duration::from_millis(200);

    let right = |looks: &[Look]| {
        let sites = looks.iter().flatten();
        sites.filter(|site| site.there().is_right(settings)).count()
    };
    let mut looks = look_once(nodes).await;
    loop {
        let before = right(&looks);
        let is_half_way = |look: &Look| {
            look.as_ref().is_ok_and(|site| {
                let there = site.there();
                matches!(there, There::Nothing) || there.is_right(settings)
            })
        };
        if mode != Mode::Start || before == 0 || before == looks.len() {
            return looks;
        }
        if !looks.iter().all(is_half_way) {
            return looks;
        }
        tokio::time::sleep(PAUSE).await;
        looks = look_once(nodes).await;
        if right(&looks) <= before {
            return looks;
        }
    }
}

async fn look_once(nodes: &[Node]) -> Vec<Look> {
    each(
        nodes.to_vec(),
        |node| async move { Site::look(&node).await },
    )
    .await
}

/// Reads the records again after they were written, because another `init` may have overwritten some. Two that write different settings
/// at once cannot both find only their own.
async fn read_back(nodes: &[Node], outcomes: &mut [Outcome], settings: Settings) {
    let is_written = |outcome: &Outcome| matches!(outcome, Outcome::Written(_));
    let written = nodes.iter().zip(&mut *outcomes);
    let written: Vec<_> = written.filter(|(_, outcome)| is_written(outcome)).collect();
    let looks = look_once(
        &written
            .iter()
            .map(|(node, _)| (*node).clone())
            .collect::<Vec<_>>(),
    )
    .await;
    for ((_, outcome), look) in written.into_iter().zip(looks) {
        match look {
            Ok(site) if site.there().is_right(settings) => {}
            Ok(site) => {
                *outcome = Outcome::Failed(format!(
                    "the record was overwritten, or the node lost it: there is {}; make sure that no other init runs, then run this again",
                    site.there()
                ));
            }
            Err(Obstacle::Away(why) | Obstacle::Unfit(why)) => {
                *outcome = Outcome::Failed(format!("the record may have been written: {why}"));
            }
        }
    }
}

/// The result for one node.
#[derive(Debug)]
enum Outcome {
    Written(String),
    Left(String),
    Failed(String),
}

impl Outcome {
    fn line(&self) -> String {
        match self {
            Self::Written(line) | Self::Left(line) => line.clone(),
            Self::Failed(why) => format!("failed: {why}"),
        }
    }
}

/// Writes to one node after the other. The order is the same for every operator: if two operators start a fleet with
/// different settings at once, one of them fails at the first node.
async fn write(
    looks: Vec<Look>,
    steps: Vec<Step>,
    settings: Settings,
    quarantine: Duration,
    mode: Mode,
) -> Vec<Outcome> {
    let mut work: Vec<_> = looks.into_iter().zip(steps).enumerate().collect();
    work.sort_by_cached_key(|(_, (look, _))| {
        look.as_ref().ok().map(|site| site.run_id().to_owned())
    });
    let mut outcomes = Vec::new();
    let mut has_failed = false;
    for (number, (look, step)) in work {
        let outcome = match (step, look) {
            (Step::Leave(why), _) => Outcome::Left(why),
            (Step::Write, _) if has_failed && mode == Mode::Start => {
                Outcome::Failed("not written, because another node failed".to_owned())
            }
            (Step::Write, Ok(mut site)) => match site.write(settings, quarantine, mode).await {
                Ok(line) => Outcome::Written(line),
                Err(why) => Outcome::Failed(why),
            },
            (Step::Write, Err(_)) => Outcome::Failed("the node did not answer".to_owned()),
        };
        has_failed |= matches!(outcome, Outcome::Failed(_));
        outcomes.push((number, outcome));
    }
    // The votes count from the next millisecond of each node on. Its clock may take a tick longer than this one.
    tokio::time::sleep(Duration::from_millis(2)).await;
    outcomes.sort_by_key(|(number, _)| *number);
    outcomes.into_iter().map(|(_, outcome)| outcome).collect()
}

/// If a node failed, names the nodes that have a new record.
fn failure(names: &[String], outcomes: &[Outcome], mode: Mode) -> Option<String> {
    let nodes = || names.iter().zip(outcomes);
    if !nodes().any(|(_, outcome)| matches!(outcome, Outcome::Failed(_))) {
        return None;
    }
    let written: Vec<&str> = nodes()
        .filter(|(_, outcome)| matches!(outcome, Outcome::Written(_)))
        .map(|(name, _)| name.as_str())
        .collect();
    Some(match written.as_slice() {
        [] => "no record was written".to_owned(),
        written => {
            let written = written.join(", ");
            // Other nodes may still have records with the old settings.
            let advice = match mode {
                Mode::Repair => "; run it again until all nodes have one",
                Mode::Start | Mode::Force => "",
            };
            format!("a record was written only on {written}{advice}")
        }
    })
}
