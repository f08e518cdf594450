//! The nodes of the command line, and the options to reach them.
#![expect(
    clippy::doc_markdown,
    reason = "--help prints these comments as they are"
)]

mod connection;
mod info;
#[cfg(feature = "tls")]
mod tls;

use core::fmt;
use core::time::Duration;
use std::future::Future;
use std::process::ExitCode;

use redlock_std::{Address, ConnectError, MAX_NODES};
#[cfg(unix)]
use redlock_std::{Options, Redlock};
use tokio::runtime::Builder;

use crate::{duration, exit};
pub(crate) use connection::{Connection, Node, in_words, text};
pub(crate) use info::Info;

/// The options that name the nodes.
#[derive(clap::Args)]
pub(crate) struct NodeArguments {
    /// The URL of a node: redis://HOST:PORT, redis://USER:PASSWORD@HOST:PORT/DB or redis+unix:///PATH; repeat
    /// this option for each node
    ///
    /// Every user of the machine can see arguments. So put URLs with passwords into REDLOCK_NODES instead,
    /// separated by commas. In the user and the password, write %23 for #, %2C for a comma, %2F for /, %3A for :, %3F
    /// for ?, %40 for @ and %25 for %.
    #[arg(
        short,
        long = "node",
        value_name = "URL",
        env = "REDLOCK_NODES",
        hide_env_values = true,
        value_delimiter = ',',
        required = true
    )]
    nodes: Vec<String>,

    #[cfg(feature = "tls")]
    #[command(flatten)]
    tls: tls::TlsArguments,
}

/// The URLs of the nodes, not parsed yet, and the TLS configuration.
pub(crate) struct Urls {
    urls: Vec<String>,
    #[cfg(feature = "tls")]
    tls: Option<std::sync::Arc<rustls::ClientConfig>>,
}

impl NodeArguments {
    pub(crate) fn urls(self) -> Result<Urls, String> {
        let urls: Vec<String> = self
            .nodes
            .into_iter()
            .filter(|url| !url.is_empty())
            .collect();
        if urls.is_empty() {
            return Err(
                "no node: name each node with --node, or all of them in REDLOCK_NODES".to_owned(),
            );
        }
        #[cfg(not(feature = "tls"))]
        if urls.iter().any(|url| crate::url::is_tls(url)) {
            return Err(
                "this redlock was built without TLS: install it with --features tls".to_owned(),
            );
        }
        Ok(Urls {
            urls,
            #[cfg(feature = "tls")]
            tls: self.tls.config()?,
        })
    }
}

impl Urls {
    /// A lock over these nodes.
    #[cfg(unix)]
    pub(crate) fn connect(&self, options: Options) -> Result<Redlock, ConnectError> {
        #[cfg(feature = "tls")]
        if let Some(tls) = &self.tls {
            return Redlock::connect_with_tls(&self.urls, options, tls);
        }
        Redlock::connect(&self.urls, options)
    }

    /// The nodes to read from, with this timeout. Refuses two nodes with one name, and too many nodes.
    pub(crate) fn nodes(&self, patience: Duration) -> Result<Vec<Node>, String> {
        let mut nodes: Vec<Node> = Vec::new();
        for url in &self.urls {
            let address = self.address(url).map_err(|error| error.to_string())?;
            let name = address.name();
            if nodes.iter().any(|node| node.name() == &**name) {
                let node = name.to_string();
                return Err(ConnectError::DuplicateNode { node }.to_string());
            }
            nodes.push(Node::new(address, patience));
        }
        if nodes.len() > MAX_NODES {
            return Err(format!("too many nodes: at most {MAX_NODES}"));
        }
        Ok(nodes)
    }

    fn address(&self, url: &str) -> Result<Address, ConnectError> {
        #[cfg(feature = "tls")]
        if let Some(tls) = &self.tls {
            return Address::parse_with_tls(url, tls);
        }
        Address::parse(url)
    }
}

/// Hides the URLs, because they may contain passwords.
impl fmt::Debug for Urls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} URLs", self.urls.len())
    }
}

impl fmt::Debug for NodeArguments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} URLs", self.nodes.len())
    }
}

/// The nodes to read from, and their timeout.
#[derive(Debug, clap::Args)]
pub(crate) struct FleetArguments {
    #[command(flatten)]
    nodes: NodeArguments,

    /// How long to wait for the connection to a node, and for each of its answers
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = duration::parse)]
    node_timeout: Duration,
}

impl FleetArguments {
    /// Returns the nodes. Refuses what `redlock run` refuses: two nodes with one name, and too many nodes.
    pub(crate) fn nodes(self) -> Result<Vec<Node>, String> {
        self.nodes.urls()?.nodes(self.node_timeout)
    }
}

/// Whether these are the words of a node that refuses a login.
pub(crate) fn is_login_failure(words: &str) -> bool {
    ["NOAUTH", "WRONGPASS", "uthentication"]
        .iter()
        .any(|part| words.contains(part))
}

/// How many of `nodes` are a quorum.
pub(crate) const fn quorum(nodes: usize) -> usize {
    nodes / 2 + 1
}

/// Asks all of `nodes` at once, so that a silent node does not delay the others.
pub(crate) async fn each<N, T, F>(
    nodes: impl IntoIterator<Item = N>,
    ask: impl Fn(N) -> F,
) -> Vec<T>
where
    T: Send + 'static,
    F: Future<Output = T> + Send + 'static,
{
    let tasks: Vec<_> = nodes
        .into_iter()
        .map(|node| tokio::spawn(ask(node)))
        .collect();
    let mut answers = Vec::new();
    for task in tasks {
        match task.await {
            Ok(answer) => answers.push(answer),
            // A panic in the task panics here.
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }
    answers
}

/// Runs `work` to its end, on a runtime of its own.
pub(crate) fn block_on(work: impl Future<Output = ExitCode>) -> ExitCode {
    let runtime = match Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return exit::internal(&format!("no runtime: {error}")),
    };
    let code = runtime.block_on(work);
    // A thread may still wait for a name server; its result is no longer needed.
    runtime.shutdown_background();
    code
}
