//! Everything that is tried, by name.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use clap::ValueEnum as _;

use super::attacker::{Attack, Moment};
use super::hostile::Hostility;
use super::length::Length;
use super::report::Report;
use super::runtime::Runtime;
use super::{burst, churn, drops, handles, hostile, kept, reconnect, slow, tasks};

/// One row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Trial {
    Burst { keys: usize, runtime: Runtime },
    Tasks { keys: usize },
    Kept { guards: usize, runtime: Runtime },
    Churn,
    Drop,
    Reconnect,
    Slow,
    Hostile(Hostility),
    Handles,
}

impl Trial {
    /// All of them, scene by scene.
    pub(super) fn all() -> Vec<Self> {
        let mut all = Vec::new();
        for keys in [1_000, 10_000, 30_000, 100_000] {
            for runtime in [Runtime::CurrentThread, Runtime::MultiThread] {
                all.push(Self::Burst { keys, runtime });
            }
        }
        all.extend([1_000, 10].map(|keys| Self::Tasks { keys }));
        for guards in [10_000, 40_000] {
            for runtime in [Runtime::CurrentThread, Runtime::MultiThread] {
                all.push(Self::Kept { guards, runtime });
            }
        }
        all.extend([Self::Churn, Self::Drop, Self::Reconnect, Self::Slow]);
        for attack in Attack::value_variants() {
            for moment in Moment::value_variants() {
                if matches!(attack, Attack::Waiters | Attack::Calls) && *moment != Moment::Busy {
                    // No other command asks for it.
                    continue;
                }
                all.extend([false, true].map(|over_tls| {
                    Self::Hostile(Hostility {
                        attack: *attack,
                        moment: *moment,
                        over_tls,
                    })
                }));
            }
        }
        all.push(Self::Handles);
        all
    }

    /// Whether it is part of the short form.
    pub(super) fn is_short(&self) -> bool {
        match self {
            // Even a fast machine cannot have 100,000 rounds in flight.
            Self::Burst { keys, runtime } => match runtime {
                Runtime::CurrentThread => matches!(keys, 10_000 | 100_000),
                Runtime::MultiThread => *keys == 10_000,
            },
            // Of these most were lost when extensions were not admitted.
            Self::Kept { guards, runtime } => {
                *guards == 40_000 && *runtime == Runtime::CurrentThread
            }
            // Each moment, and those attacks that differ in what they cost; over TLS what is most to decrypt. Not the calls: the 4 MB that a
            // client reads of them at once take a good part of a second.
            Self::Hostile(Hostility {
                attack,
                moment,
                over_tls,
            }) => matches!(
                (attack, moment, over_tls),
                (Attack::Nulls, Moment::AtOnce, false)
                    | (Attack::Dribble | Attack::Okays, Moment::Idle, false)
                    | (
                        Attack::Reply | Attack::Push | Attack::Waiters,
                        Moment::Busy,
                        false
                    )
                    | (Attack::Flood, Moment::Busy, true)
            ),
            _ => true,
        }
    }

    pub(super) const fn scene(&self) -> &'static str {
        match self {
            Self::Burst { .. } => "burst",
            Self::Tasks { .. } => "tasks",
            Self::Kept { .. } => "kept",
            Self::Churn => "churn",
            Self::Drop => "drop",
            Self::Reconnect => "reconnect",
            Self::Slow => "slow",
            Self::Hostile(_) => "hostile",
            Self::Handles => "handles",
        }
    }

    /// Far longer than it takes: what has not ended by then hangs.
    pub(super) const fn limit(&self, length: Length) -> Duration {
        Duration::from_secs(match length {
            Length::Short => 120,
            Length::Full => 400,
            Length::Long => 1_200,
        })
    }

    /// Runs it in this process.
    pub(super) fn perform(self, length: Length) -> Result<Report, Box<dyn Error>> {
        let name = self.to_string();
        match self {
            Self::Burst { keys, runtime } => burst::perform(name, keys, runtime),
            Self::Tasks { keys } => tasks::perform(name, keys, length),
            Self::Kept { guards, runtime } => kept::perform(name, guards, runtime),
            Self::Churn => churn::perform(name, length),
            Self::Drop => drops::perform(name),
            Self::Reconnect => reconnect::perform(name, length),
            Self::Slow => slow::perform(name, length),
            Self::Hostile(hostility) => hostile::perform(name, hostility, length),
            Self::Handles => handles::perform(name, length),
        }
    }
}

impl fmt::Display for Trial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.scene())?;
        match self {
            Self::Burst { keys, runtime } => write!(f, "-{keys}-{runtime}"),
            Self::Tasks { keys } => write!(f, "-{keys}-keys"),
            Self::Kept { guards, runtime } => write!(f, "-{guards}-{runtime}"),
            Self::Hostile(Hostility {
                attack,
                moment,
                over_tls,
            }) => {
                let tls = if *over_tls { "-tls" } else { "" };
                write!(f, "-{attack}-{moment}{tls}")
            }
            Self::Churn | Self::Drop | Self::Reconnect | Self::Slow | Self::Handles => Ok(()),
        }
    }
}
