//! Decides which answers count: a node that may have lost a key does not know that the lock is free.

use core::time::Duration;

use serde_json::{Value as Json, json};

use super::holding::{Holding, Identity, Key};
use super::line::Line;
use crate::nodes::Info;
use crate::uptime::time_without_vote;
use crate::{defaults, duration};
use redlock_std::init::guard_record::{Content, GuardRecord, Settings, Standing};

/// How much of a node's answer counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Credit {
    /// The whole answer: the vote of the node counts for every client.
    Full,
    /// Only a key that is there: the node may have lost a key that is missing.
    KeysOnly {
        why: String,
        /// The time after which the whole answer counts. `None` if waiting is not enough.
        left: Option<Duration>,
    },
    /// Nothing.
    Nothing { why: String },
}

impl Credit {
    /// Returns how much of each answer counts. `max_ttl` is the longest TTL of any client; the guard records contain it too.
    pub(crate) fn of(holdings: &[Holding], max_ttl: Option<Duration>) -> Vec<Self> {
        let fleet = Fleet::of(holdings);
        let longest = max_ttl.into_iter().chain(fleet.max_ttl).max();
        let longest = longest.unwrap_or(defaults::MAX_TTL);
        let mut credits: Vec<Self> = Vec::with_capacity(holdings.len());
        for holding in holdings {
            let credit = match &holding.identity {
                // Of a server with several names, the first counts whose answer can. Another may only claim to be it.
                Ok(identity) => match twin(holdings.iter().zip(&credits), identity) {
                    Some(twin) => Self::nothing(format!("the same server as {twin}")),
                    None => Self::of_node(identity, fleet.settings).unwrap_or_else(|| {
                        let uptime_s = identity.info.number("uptime_in_seconds").unwrap_or(0);
                        let record = identity.max_ttl(fleet.settings);
                        match time_without_vote(uptime_s, longest, record) {
                            Duration::ZERO => Self::Full,
                            left => Self::restarted(uptime_s, left),
                        }
                    }),
                },
                Err(why) => Self::nothing(format!("it does not tell its identity: {why}")),
            };
            credits.push(credit.of_state(holding));
        }
        credits
    }

    /// The answer of a node as JSON. Absent values are null.
    pub(crate) fn json(&self, holding: &Holding) -> Json {
        let (state, error) = match &holding.state {
            Ok(state) => (Some(state), None),
            Err(why) => (None, Some(why)),
        };
        let (name, token, kind) = match state.map(|state| &state.key) {
            None => ("unknown", None, None),
            Some(Key::Free) => ("free", None, None),
            Some(Key::Held { token, .. }) => ("held", Some(token.to_string()), None),
            Some(Key::Foreign { kind, .. }) => ("foreign", None, Some(kind)),
        };
        json!({
            "node": holding.node,
            "state": name,
            "token": token,
            "owner": holding.owner(),
            "released": holding.is_released(),
            "type": kind,
            "ends_in_ms": state
                .and_then(|state| state.key.ends_in())
                .map(|left| u64::try_from(left.as_millis()).unwrap_or(u64::MAX)),
            "fence": state.and_then(|state| state.fence.highest()),
            "fence_error": state.and_then(|state| state.fence.error()),
            "refuses_fenced_for_ms": state
                .and_then(|state| state.refuses_fenced_for)
                .map(|left| u64::try_from(left.as_millis()).unwrap_or(u64::MAX)),
            "counts": self.counts(holding),
            "line": holding.line.as_ref().ok().map(Line::json),
            "line_error": state.and_then(|_| holding.line.as_ref().err()),
            "no_vote": state.and_then(|_| self.doubt()),
            "error": error,
        })
    }

    /// Whether the state in `holding` counts.
    pub(crate) fn counts(&self, holding: &Holding) -> bool {
        match self {
            Self::Full => holding.state.is_ok(),
            Self::KeysOnly { .. } => holding.state.is_ok() && !holding.is_free(),
            Self::Nothing { .. } => false,
        }
    }

    /// Why the vote of the node does not count.
    pub(crate) fn doubt(&self) -> Option<&str> {
        match self {
            Self::Full => None,
            Self::KeysOnly { why, .. } | Self::Nothing { why } => Some(why),
        }
    }

    /// The time after which the whole answer counts. `None` if waiting is not enough.
    pub(crate) const fn full_in(&self) -> Option<Duration> {
        match self {
            Self::Full => Some(Duration::ZERO),
            Self::KeysOnly { left, .. } => *left,
            Self::Nothing { .. } => None,
        }
    }

    /// The credit of a node. `None` if it depends on the uptime.
    fn of_node(identity: &Identity, fleet: Option<Settings>) -> Option<Self> {
        let info = &identity.info;
        if info.run_id().is_empty() {
            return Some(Self::nothing("INFO has no run_id"));
        }
        if !info.is_master() {
            return Some(Self::nothing(format!("a replica of {}", info.master())));
        }
        if info.text("loading") == Some("1") {
            return Some(Self::nothing("it loads its data"));
        }
        let has_evicted = info
            .number("evicted_keys")
            .is_some_and(|keys: u64| keys > 0);
        // Clients of fenced locks give such a node no vote.
        if info.may_evict() != Some(false) && (fleet.is_some() || has_evicted) {
            return Some(Self::keys_only(
                "it may evict locks; set maxmemory-policy noeviction",
            ));
        }
        identity.guard_doubt(fleet)
    }

    /// The credit of the node with its state: while the node refuses fenced locks, a fenced lease may last although its key is
    /// missing.
    fn of_state(self, holding: &Holding) -> Self {
        let state = holding.state.as_ref().ok();
        let missing = state.filter(|state| state.key == Key::Free);
        let refused = missing.and_then(|state| state.refuses_fenced_for);
        match (self, refused) {
            (Self::Full, Some(left)) => Self::KeysOnly {
                why: "a fenced lease has not ended: its --min-hold is over, the key was deleted, or it expired too early \
                      because the clock was ahead"
                    .to_owned(),
                left: Some(left),
            },
            (Self::KeysOnly { why, left }, Some(refused)) => Self::KeysOnly {
                why,
                left: left.map(|left| left.max(refused)),
            },
            (credit, _) => credit,
        }
    }

    fn restarted(uptime_s: i64, left: Duration) -> Self {
        Self::KeysOnly {
            why: format!(
                "restarted {} s ago and may have lost locks, its vote counts again in {}",
                uptime_s.max(0),
                duration::in_words(left)
            ),
            left: Some(left),
        }
    }

    fn keys_only(why: impl Into<String>) -> Self {
        Self::KeysOnly {
            why: why.into(),
            left: None,
        }
    }

    fn nothing(why: impl Into<String>) -> Self {
        Self::Nothing { why: why.into() }
    }
}

/// The guard records of all nodes together.
struct Fleet {
    /// The settings that most nodes have; `None` if no node has a record, and fenced locks are not in use.
    settings: Option<Settings>,
    /// The longest TTL in any record.
    max_ttl: Option<Duration>,
}

impl Fleet {
    fn of(holdings: &[Holding]) -> Self {
        let identities = holdings
            .iter()
            .filter_map(|holding| holding.identity.as_ref().ok());
        let settings: Vec<Settings> = identities
            .filter_map(|identity| Some(identity.record()?.settings))
            .collect();
        let count = |wanted: &Settings| settings.iter().filter(|other| *other == wanted).count();
        let longest_ms = settings.iter().map(|settings| settings.max_ttl_ms).max();
        Self {
            // If two settings are on the same number of nodes, neither has a quorum.
            settings: settings.iter().copied().max_by_key(count),
            max_ttl: longest_ms.map(Duration::from_millis),
        }
    }
}

impl Identity {
    fn record(&self) -> Option<GuardRecord> {
        match self.guard.as_ref().ok()? {
            Content::Text(value) => GuardRecord::parse(value),
            Content::Nothing | Content::OtherType => None,
        }
    }

    /// Why the vote does not count by the guard record, in a fleet with these settings.
    fn guard_doubt(&self, fleet: Option<Settings>) -> Option<Credit> {
        let why = match (&self.guard, self.record(), fleet) {
            (Err(why), ..) => format!("its guard record cannot be read: {why}"),
            (Ok(Content::Nothing), _, None) => return None,
            (Ok(Content::Nothing), ..) => {
                "no guard record, unlike other nodes: it has lost its data".to_owned()
            }
            (Ok(_), None, _) => "its value at redlock:guard is no guard record".to_owned(),
            (_, Some(record), Some(fleet)) if record.settings != fleet => {
                format!(
                    "its guard record ({}) is unlike that of other nodes",
                    record.settings
                )
            }
            (_, Some(record), _) => match self.standing(&record) {
                Some(Standing::Counts) => return None,
                Some(Standing::Quarantined { left, .. }) => {
                    return Some(Credit::KeysOnly {
                        why: format!(
                            "may have lost locks, its vote counts again in {}",
                            duration::in_words(left)
                        ),
                        left: Some(left),
                    });
                }
                Some(Standing::OtherRun) => "its guard record is of another run".to_owned(),
                Some(Standing::OtherData) => "its guard record is of another data set".to_owned(),
                Some(Standing::Older) => "its guard record is of an older version".to_owned(),
                None => "its clock cannot be read".to_owned(),
            },
        };
        Some(Credit::keys_only(why))
    }

    fn standing(&self, record: &GuardRecord) -> Option<Standing> {
        Some(record.standing(&self.info, self.now_ms?))
    }

    /// The max TTL of its record, and whether the record vouches for it.
    fn max_ttl(&self, fleet: Option<Settings>) -> Option<(Duration, bool)> {
        let record = self.record()?;
        let is_vouched = self.standing(&record) == Some(Standing::Counts);
        let is_of_fleet = fleet == Some(record.settings);
        let max_ttl = Duration::from_millis(record.settings.max_ttl_ms);
        Some((max_ttl, is_vouched && is_of_fleet))
    }
}

/// Returns an earlier node that is the same server, and whose answer counts.
fn twin<'a>(
    earlier: impl Iterator<Item = (&'a Holding, &'a Credit)>,
    identity: &Identity,
) -> Option<&'a str> {
    let run_id = identity.info.run_id();
    let is_same = |info: &Info| !run_id.is_empty() && info.run_id() == run_id;
    let mut earlier = earlier
        .filter(|(other, credit)| other.state.is_ok() && !matches!(credit, Credit::Nothing { .. }));
    let twin = earlier.find(|(other, _)| {
        let other = other.identity.as_ref();
        other.is_ok_and(|other| is_same(&other.info))
    });
    twin.map(|(twin, _)| twin.node.as_str())
}
