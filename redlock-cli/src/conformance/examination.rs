//! The trials of one server.

use core::time::Duration;

use tokio::time::timeout;

use super::capability::{ALL, Capability, FENCED, IDENTIFIED, Kind, LINE};
use super::keys::Keys;
use super::{fenced, identity, line, plain};
use crate::nodes::{Connection, Info, Node};
use crate::product::Product;

/// What the trials of a server have found.
#[derive(Debug)]
pub(super) struct Examination {
    pub(super) node: String,
    pub(super) product: Option<(Product, Option<String>)>,
    pub(super) capabilities: Vec<Capability>,
    /// Why there are no more capabilities.
    pub(super) error: Option<String>,
}

/// The connection over which most trials are made.
struct Trials<'a> {
    node: &'a Node,
    connection: Connection,
}

impl<'a> Trials<'a> {
    async fn new(node: &'a Node) -> Result<Self, String> {
        let connection = node.connect().await?;
        Ok(Self { node, connection })
    }
}

impl Examination {
    /// Tries everything within `limit`, then deletes the keys of the trials.
    pub(super) async fn of(node: Node, prefix: String, limit: Duration) -> Self {
        let keys = Keys::new(&prefix);
        let mut examination = Self {
            node: node.name().to_owned(),
            product: None,
            capabilities: Vec::new(),
            error: None,
        };
        let tried = timeout(limit, examination.tries(&node, &keys)).await;
        let tried = tried.unwrap_or_else(|_late| Err(format!("not done within {limit:?}")));
        examination.error = tried.err();
        // Over a new connection, because a trial may have broken the others. Without a result: the keys expire.
        if let Ok(mut connection) = node.connect().await {
            let mut deletes = redis::pipe();
            for key in keys.all() {
                deletes.cmd("DEL").arg(key);
            }
            let _deleted = connection.ask(&deletes).await;
        }
        examination
    }

    async fn tries(&mut self, node: &Node, keys: &Keys) -> Result<(), String> {
        let trials = &mut Trials::new(node).await?;
        self.product = product(&mut trials.connection).await?;

        let found = plain::sets(&mut trials.connection, keys).await;
        self.add(trials, "set", ALL, found).await?;
        let found = plain::expires(&mut trials.connection, keys).await;
        self.add(trials, "expiry", ALL, found).await?;
        let found = plain::releases(&mut trials.connection, keys).await;
        self.add(trials, "release", ALL, found).await?;
        let found = plain::extends(&mut trials.connection, keys).await;
        self.add(trials, "extend", ALL, found).await?;
        let found = plain::caches(&mut trials.connection, keys).await;
        self.add(trials, "cache", ALL, found).await?;
        let found = identity::is_master(&mut trials.connection, keys).await;
        self.add(trials, "role", ALL, found).await?;
        let found = identity::tells_identity(&mut trials.connection, keys).await;
        let is_identified = found.is_ok();
        self.add(trials, "identity", IDENTIFIED, found).await?;
        if is_identified {
            let found = identity::keeps_keys(&mut trials.connection, keys).await;
            self.add(trials, "noeviction", FENCED, found).await?;
            let found = fenced::fences(&mut trials.connection, keys).await;
            self.add(trials, "fences", FENCED, found).await?;
        }
        let found = line::calls(&mut trials.connection, node, keys).await;
        self.add(trials, "line", LINE, found).await?;
        let mut connections = [
            node.connect().await?,
            node.connect().await?,
            node.connect().await?,
            node.connect().await?,
        ];
        let found = plain::is_atomic(&mut connections, keys).await;
        self.add(trials, "atomic", ALL, found).await?;
        let found = plain::is_one_server(&mut connections, keys).await;
        self.add(trials, "server", ALL, found).await
    }

    /// Records what a trial has found.
    async fn add(
        &mut self,
        trials: &mut Trials<'_>,
        name: &'static str,
        needed_for: &'static [Kind],
        found: Result<String, String>,
    ) -> Result<(), String> {
        // What it says then is nothing about what it can serve.
        let is_silent = trials.connection.was_late().then_some("no answer in time");
        let why = found.as_ref().err().map(String::as_str);
        if let Some(why) = why.filter(|why| is_of_now(why)).or(is_silent) {
            return Err(format!("{name}: {why}"));
        }
        let has_failed = found.is_err();
        self.capabilities
            .push(Capability::new(name, needed_for, found));
        if has_failed {
            // The trial may have broken the connection, and the next trial must not suffer for it.
            trials.connection = trials.node.connect().await?;
        }
        Ok(())
    }

    /// Whether the server serves this kind of locks.
    pub(super) fn serves(&self, kind: Kind) -> bool {
        self.error.is_none() && self.missing(kind).next().is_none()
    }

    /// The names of the capabilities that this kind of locks lacks.
    pub(super) fn missing(&self, kind: Kind) -> impl Iterator<Item = &'static str> {
        let needed = self
            .capabilities
            .iter()
            .filter(move |capability| capability.needed_for.contains(&kind));
        let missing = needed.filter(|capability| !capability.is_there());
        missing.map(|capability| capability.name)
    }
}

/// Whether an error tells only that the server does not answer now, or wants a password.
fn is_of_now(error: &str) -> bool {
    let mut words = error.split(|letter: char| !letter.is_ascii_uppercase());
    words.any(|word| ["BUSY", "LOADING", "MASTERDOWN", "NOAUTH"].contains(&word))
}

/// `None` if the user may not ask.
async fn product(connection: &mut Connection) -> Result<Option<(Product, Option<String>)>, String> {
    let mut questions = redis::pipe();
    Info::ask(&mut questions);
    let replies = connection.ask(&questions).await?;
    let (info, _none) = Info::read(&replies).ok_or("no answer")?;
    Ok(info.ok().map(|info| {
        let (product, version) = Product::of(&info);
        (product, version.map(str::to_owned))
    }))
}
