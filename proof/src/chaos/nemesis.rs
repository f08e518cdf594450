//! Does what the schedule says, to the nodes and the clients of a stage, and undoes it in time, at once or step
//! by step.

mod remedy;
mod victim;

use std::collections::{BTreeSet, VecDeque};
use std::error::Error;
use std::time::Duration;

use redlock_core::{Clock, Instant};
use redlock_std::SystemClock;

use super::eviction;
use super::failback::Leader;
use super::fault::{Kind, NODES};
use super::lock::{step_back, window};
use super::network::Cut;
use super::random::Random;
use super::record::Fault;
use super::schedule::{Planned, stay_well};
use super::stage::Stage;
use remedy::{LIMIT, Lasting, Remedy};

#[derive(Debug)]
pub(super) struct Nemesis<'a> {
    stage: &'a mut Stage,
    ttl: Duration,
    random: Random,
    lasting: Vec<Lasting>,
}

impl<'a> Nemesis<'a> {
    pub(super) fn new(stage: &'a mut Stage, ttl: Duration, seed: u64) -> Self {
        Self {
            stage,
            ttl,
            random: Random::new(seed),
            lasting: Vec::new(),
        }
    }

    /// Does all that is planned, and returns when everything is as it was.
    pub(super) fn work_off(&mut self, planned: Vec<Planned>) -> Result<(), Box<dyn Error>> {
        let began = SystemClock.now();
        let mut planned = VecDeque::from(planned);
        loop {
            self.undo_what_is_due()?;
            let since = SystemClock.now().saturating_duration_since(began);
            let ready = self.first_ready(planned.iter().take_while(|next| next.at <= since));
            if let Some(next) = ready.and_then(|number| planned.remove(number)) {
                self.do_to(next)?;
            } else if planned.is_empty() && self.lasting.is_empty() {
                return Ok(());
            }
            self.stage.watch()?;
        }
    }

    /// The first one of those that are due whose nodes can be spared. What took longer than planned keeps its
    /// nodes busy, and who waits for a node comes before those that want it later.
    fn first_ready<'p>(&self, mut due: impl Iterator<Item = &'p Planned>) -> Option<usize> {
        let busy = self.lasting.iter().flat_map(|lasting| &lasting.nodes);
        let mut taken: BTreeSet<usize> = busy.copied().collect();
        let busy = taken.len();
        due.position(|next| {
            let Planned { kind, nodes, .. } = next;
            let is_free = nodes.iter().all(|node| !taken.contains(node));
            let well = NODES - busy;
            let is_spared = nodes.is_empty() || well >= nodes.len() + stay_well(*kind, nodes.len());
            taken.extend(nodes);
            is_free && is_spared && self.is_fit_for(*kind)
        })
    }

    /// A plain client that meets a node for the first time when it has just failed back takes its vote.
    fn is_fit_for(&self, kind: Kind) -> bool {
        let mut kinds = self.lasting.iter().map(|lasting| lasting.kind);
        self.stage.is_fenced()
            || !kind.brings_newcomer()
            || !kinds.any(|kind| kind == Kind::FailBack)
    }

    fn do_to(&mut self, planned: Planned) -> Result<(), Box<dyn Error>> {
        let Planned {
            kind, nodes, lasts, ..
        } = planned;
        let mut client = None;
        let mut from = SystemClock.now();
        let mut until = from.saturating_add(lasts);
        let remedy = match kind {
            Kind::StopNodes | Kind::StopMajority => {
                for node in &nodes {
                    self.stage.servers[*node].pause();
                }
                Some(Remedy::ResumeNodes)
            }
            Kind::KillNodes => {
                for node in &nodes {
                    self.stage.servers[*node].kill();
                }
                // The last one may have granted something until now.
                until = SystemClock.now().saturating_add(lasts);
                Some(Remedy::RestartNodes)
            }
            Kind::Forget => {
                for node in &nodes {
                    self.stage.tell(*node, &["FLUSHALL"])?;
                }
                Some(self.recover(&nodes, step_back(self.ttl), lasts, &mut until))
            }
            Kind::RestartEmpty => {
                for node in &nodes {
                    self.stage.servers[*node].kill();
                }
                // A clock may be set back by this much more while its node is dead.
                let most = self.ttl.max(step_back(self.ttl))
                    + 2 * window(self.ttl)
                    + Duration::from_secs(1);
                let remedy = self.recover(&nodes, most, lasts, &mut until);
                for node in &nodes {
                    self.stage.restart(*node)?;
                }
                Some(remedy)
            }
            Kind::FailBack => {
                let nodes = nodes.iter().map(|node| &self.stage.servers[*node]);
                let leaders = nodes.map(|node| Leader::of(node, &mut self.random));
                let leaders = leaders.collect::<Result<_, _>>()?;
                // What the nodes grant until then, the others do not know.
                until = self.later(Duration::ZERO, self.ttl / 4);
                Some(Remedy::Follow(leaders))
            }
            Kind::Evict => {
                until = from;
                let patience = from.saturating_add(self.ttl * 2);
                Some(Remedy::RunShort { patience })
            }
            Kind::Init | Kind::Repair | Kind::Examine => {
                // The first one keeps what it knows.
                for node in nodes.iter().skip(1) {
                    self.stage.tell(*node, &["FLUSHALL"])?;
                }
                until = SystemClock.now();
                let has_settings = self.random.one_in(2);
                Some(Remedy::Dismiss(self.stage.operate(kind, has_settings)?))
            }
            Kind::StepClocks => {
                for node in &nodes {
                    let step = self.clock_step();
                    self.stage.servers[*node].step_clock(step);
                }
                Some(Remedy::SetClocks)
            }
            Kind::FlushScripts => {
                for node in &nodes {
                    self.stage.tell(*node, &["SCRIPT", "FLUSH"])?;
                }
                None
            }
            Kind::KillConnections => {
                for node in &nodes {
                    self.stage
                        .tell(*node, &["CLIENT", "KILL", "TYPE", "normal"])?;
                }
                None
            }
            Kind::LoseRequests | Kind::LoseReplies => {
                let cuts = nodes.iter().map(|node| {
                    let port = self.stage.servers[*node].port();
                    if kind == Kind::LoseRequests {
                        Cut::ToPort(port)
                    } else {
                        Cut::FromPort(port)
                    }
                });
                self.cut(cuts.collect())?
            }
            Kind::CutOffClient | Kind::DeafenClient => {
                let is_moment = lasts < self.ttl / 10;
                let victim = if is_moment {
                    self.acquirer()?
                } else {
                    self.victim()?.0
                };
                from = SystemClock.now();
                until = from.saturating_add(lasts);
                client = Some(victim);
                let address = self.stage.address(victim);
                self.cut(vec![if kind == Kind::CutOffClient {
                    Cut::ToAddress(address)
                } else {
                    Cut::FromAddress(address)
                }])?
            }
            Kind::PauseClient => {
                let (victim, valid_until) = self.victim()?;
                self.stage.crew.pause(victim)?;
                from = SystemClock.now();
                // So that it sees others hold the lock when it wakes up.
                until = valid_until.max(from).saturating_add(lasts);
                client = Some(victim);
                Some(Remedy::ResumeClient)
            }
            Kind::KillClient => {
                let (victim, _) = self.victim()?;
                from = SystemClock.now();
                self.stage.crew.replace(victim)?;
                client = Some(victim);
                None
            }
            Kind::ResetDevice => {
                if let Some(device) = &mut self.stage.device {
                    client = Some(device.number());
                    device.reset()?;
                }
                None
            }
            Kind::FlushKeys => {
                self.wait_for_holder()?;
                from = SystemClock.now();
                for node in &nodes {
                    self.stage.tell(*node, &["FLUSHALL"])?;
                }
                None
            }
            Kind::EvictUnseen => {
                self.wait_for_holder()?;
                from = SystemClock.now();
                for node in &nodes {
                    eviction::happen_unseen(&self.stage.servers[*node])?;
                }
                None
            }
        };
        let fault = self.stage.recorder.begin(Fault {
            kind,
            nodes: nodes.clone(),
            client,
            from,
            until: remedy.is_none().then(|| SystemClock.now()),
        });
        if let Some(remedy) = remedy {
            self.lasting.push(Lasting {
                kind,
                fault,
                until,
                give_up_at: until.saturating_add(LIMIT),
                nodes,
                client,
                remedy,
            });
        }
        Ok(())
    }

    /// Some time from now.
    fn later(&mut self, min: Duration, max: Duration) -> Instant {
        SystemClock
            .now()
            .saturating_add(self.random.between(min, max))
    }

    /// In microseconds, forward or back: less than a window or more, and more than the longest lease. What was
    /// set forward is set back again.
    fn clock_step(&mut self) -> i64 {
        let most = [window(self.ttl), 4 * window(self.ttl), step_back(self.ttl)];
        let most = self.random.pick(&most).unwrap_or(self.ttl);
        let step = self.random.between(Duration::from_millis(1), most);
        let micros = micros(step);
        if self.random.one_in(2) {
            micros
        } else {
            -micros
        }
    }

    fn cut(&self, cuts: Vec<Cut>) -> Result<Option<Remedy>, Box<dyn Error>> {
        if let Some(network) = &self.stage.network {
            for cut in &cuts {
                network.cut(*cut)?;
            }
        }
        Ok(Some(Remedy::Mend(cuts)))
    }
}

fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}
