//! Does what the schedule says, to the nodes and the clients of a stage, and undoes it in time, at once or step
//! by step.

use std::collections::{BTreeSet, VecDeque};
use std::error::Error;
use std::time::Duration;

use redlock_core::{Clock, Instant};
use redlock_std::SystemClock;

use super::eviction;
use super::failback::{AGAIN, Leader, disconnect};
use super::fault::{Kind, MAJORITY, NODES};
use super::lock::{quarantine, step_back, window};
use super::network::Cut;
use super::operator::Operator;
use super::random::Random;
use super::record::Fault;
use super::schedule::{Planned, away, stay_well};
use super::stage::Stage;

#[derive(Debug)]
pub(super) struct Nemesis<'a> {
    stage: &'a mut Stage,
    ttl: Duration,
    random: Random,
    lasting: Vec<Lasting>,
}

/// What has to be undone.
#[derive(Debug)]
struct Lasting {
    kind: Kind,
    /// Its number in the record.
    fault: usize,
    /// When the next step is due.
    until: Instant,
    /// When the run fails if a step has still not succeeded.
    give_up_at: Instant,
    nodes: Vec<usize>,
    client: Option<usize>,
    remedy: Remedy,
}

#[derive(Debug)]
enum Remedy {
    ResumeNodes,
    RestartNodes,
    /// Their clocks are right again.
    SetClocks,
    /// Their clocks are right again, and their quarantine can begin.
    CatchUp,
    /// Time alone undoes it, or clients do, who write the guard records of a fenced lock again.
    Recover,
    /// They become replicas of these servers.
    Follow(Vec<Leader>),
    /// They are masters again.
    Lead(Vec<Leader>),
    /// They may evict keys, and do, as soon as there is a lock, or at this time.
    RunShort {
        patience: Instant,
    },
    /// They evict what has come since.
    Evict,
    /// They evict nothing any more.
    KeepKeys,
    /// The operator is done.
    Dismiss(Operator),
    ResumeClient,
    Mend(Vec<Cut>),
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
                let patience = from.saturating_add(self.ttl);
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

    /// What becomes of nodes that have just lost everything, and when. The clocks of a few are set back besides, by
    /// up to `most`: then no client may write their guard records before they are right again.
    fn recover(
        &mut self,
        nodes: &[usize],
        most: Duration,
        lasts: Duration,
        until: &mut Instant,
    ) -> Remedy {
        if !self.stage.is_fenced() || nodes.len() >= MAJORITY || !self.random.one_in(3) {
            *until = SystemClock.now().saturating_add(lasts);
            return Remedy::Recover;
        }
        for node in nodes {
            let step = micros(self.random.between(2 * window(self.ttl), most));
            self.stage.servers[*node].step_clock(-step);
        }
        self.stage
            .recorder
            .note(|record| record.set_back += nodes.len());
        *until = self.later(self.ttl / 4, self.ttl);
        Remedy::CatchUp
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

    fn undo_what_is_due(&mut self) -> Result<(), Box<dyn Error>> {
        let now = SystemClock.now();
        while let Some(due) = self.lasting.iter().position(|lasting| lasting.until <= now) {
            let mut lasting = self.lasting.swap_remove(due);
            let Some(next) = self.undo(&mut lasting)? else {
                self.stage.recorder.end(lasting.fault, SystemClock.now());
                continue;
            };
            if now >= lasting.give_up_at {
                let (name, nodes) = (lasting.kind.name(), &lasting.nodes);
                return Err(format!("'{name}' does not end, on nodes {nodes:?} from 0").into());
            }
            lasting.until = SystemClock.now().saturating_add(next.max(AGAIN));
            self.lasting.push(lasting);
        }
        Ok(())
    }

    /// Takes the next step; after which time there is another one.
    fn undo(&mut self, lasting: &mut Lasting) -> Result<Option<Duration>, Box<dyn Error>> {
        let nodes = &lasting.nodes;
        match &mut lasting.remedy {
            Remedy::ResumeNodes => {
                for node in nodes {
                    self.stage.servers[*node].resume();
                }
            }
            Remedy::RestartNodes => {
                for node in nodes {
                    self.stage.restart(*node)?;
                }
            }
            Remedy::SetClocks => {
                for node in nodes {
                    self.stage.servers[*node].step_clock(0);
                }
            }
            Remedy::CatchUp => {
                for node in nodes {
                    self.stage.servers[*node].step_clock(0);
                }
                lasting.remedy = Remedy::Recover;
                return Ok(Some(quarantine(self.ttl)));
            }
            Remedy::ResumeClient => {
                if let Some(client) = lasting.client {
                    self.stage.crew.resume(client)?;
                }
            }
            Remedy::Mend(cuts) => {
                if let Some(network) = &self.stage.network {
                    for cut in cuts {
                        network.mend(*cut)?;
                    }
                }
            }
            Remedy::Recover => return Ok((!self.have_recovered(nodes)).then_some(AGAIN)),
            Remedy::Follow(_) if !self.stage.have_met(nodes)? => return Ok(Some(AGAIN)),
            Remedy::Follow(leaders) => {
                for (leader, node) in leaders.iter().zip(nodes) {
                    leader.lead(&self.stage.servers[*node])?;
                }
                lasting.remedy = Remedy::Lead(std::mem::take(leaders));
                // Long enough for clients to meet replicas.
                return Ok(Some(self.random.between(self.ttl / 4, self.ttl / 2)));
            }
            Remedy::Lead(leaders) => {
                if !self.fail_back(nodes, leaders)? {
                    return Ok(Some(AGAIN));
                }
                lasting.remedy = Remedy::Recover;
                return Ok(Some(quarantine(self.ttl)));
            }
            Remedy::RunShort { patience } => {
                if !self.stage.have_locks(nodes)? && SystemClock.now() < *patience {
                    return Ok(Some(Duration::ZERO));
                }
                for node in nodes {
                    eviction::allow(&self.stage.servers[*node], &mut self.random)?;
                }
                self.evict(nodes)?;
                lasting.remedy = Remedy::Evict;
                return Ok(Some(self.random.between(Duration::ZERO, self.ttl / 4)));
            }
            Remedy::Evict => {
                self.evict(nodes)?;
                lasting.remedy = Remedy::KeepKeys;
                return Ok(Some(away(self.ttl)));
            }
            Remedy::KeepKeys => {
                for node in nodes {
                    eviction::forbid(&self.stage.servers[*node])?;
                }
                lasting.remedy = Remedy::Recover;
                return Ok(Some(Duration::ZERO));
            }
            Remedy::Dismiss(operator) => {
                let Some(operation) = operator.end()? else {
                    return Ok(Some(AGAIN));
                };
                self.stage
                    .recorder
                    .note(|record| record.operations.push(operation));
                lasting.remedy = Remedy::Recover;
                return Ok(Some(Duration::ZERO));
            }
        }
        Ok(None)
    }

    fn evict(&self, nodes: &[usize]) -> Result<(), Box<dyn Error>> {
        let mut evicted = 0;
        for node in nodes {
            evicted += eviction::happen(&self.stage.servers[*node])?;
        }
        self.stage.recorder.note(|record| record.evicted += evicted);
        Ok(())
    }

    /// Makes masters of nodes that have taken over the data of these leaders. Whether they have.
    fn fail_back(&self, nodes: &[usize], leaders: &[Leader]) -> Result<bool, Box<dyn Error>> {
        let nodes = nodes.iter().map(|node| &self.stage.servers[*node]);
        for (node, leader) in nodes.clone().zip(leaders) {
            if !leader.is_followed_by(node)? {
                return Ok(false);
            }
        }
        let mut refused = 0;
        for node in nodes {
            if !self.stage.is_fenced() {
                // Before it is a master: who comes back sees a replica, or what has become of it.
                disconnect(node)?;
            }
            refused += Leader::leave(node)?;
        }
        self.stage
            .recorder
            .note(|record| record.read_only += refused);
        Ok(true)
    }

    /// Whether the votes of nodes count again. What they have forgotten is over.
    fn have_recovered(&self, nodes: &[usize]) -> bool {
        let is_vouched = |node: &usize| matches!(self.stage.servers[*node].is_vouched(), Ok(true));
        !self.stage.is_fenced() || nodes.iter().all(is_vouched)
    }

    /// The client to which something is to be done, and until when it holds the lock: mostly one that does.
    fn victim(&mut self) -> Result<(usize, Instant), Box<dyn Error>> {
        // Nobody may be able to hold it for as long as a majority is dead.
        let give_up_at = SystemClock.now().saturating_add(self.ttl * 5);
        let is_any = self.random.one_in(4);
        loop {
            let now = SystemClock.now();
            let able = self.undisturbed();
            if let Some((client, until)) = self.stage.recorder.holder(now)
                && able.contains(&client)
                && !is_any
            {
                return Ok((client, until));
            }
            if is_any || now >= give_up_at {
                return self.pick(&able).map(|client| (client, now));
            }
            self.stage.watch()?;
            self.undo_what_is_due()?;
        }
    }

    /// A client that is likely to acquire in the next moment, and that would hold the lock to the very end.
    fn acquirer(&mut self) -> Result<usize, Box<dyn Error>> {
        let give_up_at = SystemClock.now().saturating_add(self.ttl);
        loop {
            let now = SystemClock.now();
            if self.stage.recorder.holder(now).is_none() || now >= give_up_at {
                let mut able = self.undisturbed();
                if able
                    .iter()
                    .any(|client| self.stage.crew.is_lapsing(*client))
                {
                    able.retain(|client| self.stage.crew.is_lapsing(*client));
                }
                return self.pick(&able);
            }
            self.stage.watch()?;
            self.undo_what_is_due()?;
        }
    }

    fn undisturbed(&self) -> Vec<usize> {
        let mut clients = self.stage.crew.numbers();
        clients.retain(|client| {
            let mut lasting = self.lasting.iter();
            !lasting.any(|lasting| lasting.client == Some(*client))
        });
        clients
    }

    fn pick(&mut self, clients: &[usize]) -> Result<usize, Box<dyn Error>> {
        let client = self.random.pick(clients);
        client.ok_or_else(|| "no client is left to be disturbed".into())
    }

    /// Waits until somebody holds the lock for some time to come.
    fn wait_for_holder(&mut self) -> Result<(), Box<dyn Error>> {
        loop {
            let soon = SystemClock.now().saturating_add(self.ttl / 4);
            if self.stage.recorder.holder(soon).is_some() {
                return Ok(());
            }
            self.stage.watch()?;
        }
    }
}

/// Long enough for any machine. What takes longer does not come about by itself.
const LIMIT: Duration = Duration::from_secs(60);

fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}
