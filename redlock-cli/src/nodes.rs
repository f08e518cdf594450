//! The nodes of the command line, and the options to reach them.
#![expect(
    clippy::doc_markdown,
    reason = "--help prints these comments as they are"
)]

#[cfg(feature = "tls")]
mod tls;

use core::fmt;
use core::time::Duration;
use std::env::{self, VarError};
use std::future::Future;
use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use redlock_std::{Address, ConnectError, printable};
#[cfg(unix)]
use redlock_std::{Options, Redlock};
use tokio::runtime::{Builder, Runtime};

use crate::{duration, echo, exit, file};
pub(crate) use redlock_std::init::connection::{Connection, Node, each, in_words, raw_text, text};
pub(crate) use redlock_std::init::info::Info;
pub(crate) use redlock_std::init::recovery::quorum;

/// The options that name the nodes.
#[derive(clap::Args)]
pub(crate) struct NodeArguments {
    /// The URL of a node: redis://HOST:PORT, redis://USER:PASSWORD@HOST:PORT/DB or redis+unix:///PATH; repeat
    /// this option for each node [env: REDLOCK_NODES=]
    ///
    /// Every user of the machine can see arguments. So put URLs with passwords into REDLOCK_NODES instead,
    /// separated by commas. In the user and the password, write %23 for #, %2C for a comma, %2F for /, %3A for :, %3F
    /// for ?, %40 for @ and %25 for %.
    #[arg(short, long = "node", value_name = "URL", value_delimiter = ',')]
    nodes: Vec<String>,

    /// A file with the URLs of the nodes, one on each line, for credentials of systemd or volumes of Kubernetes; lines that begin with # are
    /// comments; it has precedence over REDLOCK_NODES [env: REDLOCK_NODES_FILE=]
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    nodes_file: Option<PathBuf>,

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
        let given: Vec<(String, String)> = self.given()?;
        let given: Vec<_> = given
            .into_iter()
            .filter(|(_, url)| !url.is_empty())
            .collect();
        let (sources, urls): (Vec<String>, Vec<String>) = given.into_iter().unzip();
        if urls.is_empty() {
            let is_below_run = env::var_os("REDLOCK_TOKEN").is_some();
            return Err(if is_below_run && env::var_os("REDLOCK_NODES").is_none() {
                "no node: redlock run passes no --node on to its command, and REDLOCK_NODES only with --keep-env: name the nodes with --node, \
                 in a --nodes-file or in REDLOCK_NODES_FILE"
            } else {
                "no node: name each node with --node, or all of them in REDLOCK_NODES or in a --nodes-file"
            }
            .to_owned());
        }
        #[cfg(not(feature = "tls"))]
        if urls.iter().any(|url| crate::url::is_tls(url)) {
            return Err(
                "this redlock was built without TLS: install it with --features tls".to_owned(),
            );
        }
        let urls = Urls {
            urls,
            #[cfg(feature = "tls")]
            tls: self.tls.config()?,
        };
        for (source, url) in sources.iter().zip(&urls.urls) {
            if let Err(error) = urls.address(url) {
                let hint = echo::hint(env::args_os());
                let hint = hint.map_or_else(String::new, |hint| format!("\n{hint}"));
                return Err(format!("{source}: {error}{}{hint}", advice(url)));
            }
        }
        Ok(urls)
    }
}

/// What may be wrong in a list that was not written as one.
fn advice(url: &str) -> &'static str {
    if url.starts_with('#') {
        "; a comment needs a line of its own"
    } else if url.contains([' ', ';']) || url.matches("://").count() > 1 {
        "; separate URLs with commas"
    } else {
        ""
    }
}

impl NodeArguments {
    /// The URLs as they are given, each with its place. An argument has precedence over the environment, and a file over a list.
    fn given(&self) -> Result<Vec<(String, String)>, String> {
        match &self.nodes_file {
            Some(_) if !self.nodes.is_empty() => {
                return Err(
                    "--node cannot be used with --nodes-file: name all nodes in one of them"
                        .to_owned(),
                );
            }
            Some(file) => return urls_of_file(file),
            None if !self.nodes.is_empty() => {
                let urls = self.nodes.iter().cloned();
                return Ok(urls.map(|url| ("--node".to_owned(), url)).collect());
            }
            None => {}
        }
        if let Some(file) = env::var_os("REDLOCK_NODES_FILE").filter(|file| !file.is_empty()) {
            return urls_of_file(Path::new(&file));
        }
        match env::var("REDLOCK_NODES") {
            Ok(list) => Ok((1..)
                .zip(list.split(','))
                .map(|(number, url): (u32, _)| {
                    (format!("REDLOCK_NODES, URL {number}"), url.to_owned())
                })
                .collect()),
            Err(VarError::NotPresent) => Ok(Vec::new()),
            Err(VarError::NotUnicode(_)) => Err("REDLOCK_NODES: it is not UTF-8".to_owned()),
        }
    }
}

/// The largest file of URLs that is read.
const MAX_FILE: u64 = 64 * 1024;

/// Reads the URLs in `file`, each with its place. Errors show nothing of its content.
fn urls_of_file(file: &Path) -> Result<Vec<(String, String)>, String> {
    let text = file::read("--nodes-file", file, "a list of nodes", MAX_FILE)?;
    let name = format!("--nodes-file {}", echo::file(file));
    let text = String::from_utf8(text).map_err(|_| format!("{name}: it is not UTF-8"))?;
    // Some editors begin a file with a byte order mark.
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
    let lines = (1..).zip(text.lines().map(str::trim));
    let lines = lines.filter(|(_, line): &(u32, &str)| !line.starts_with('#'));
    let urls = lines.flat_map(|(number, line)| {
        let place = format!("{name}, line {number}");
        let urls = line.split([',', ' ', '\t']);
        urls.map(move |url| (place.clone(), url.to_owned()))
    });
    Ok(urls.filter(|(_, url)| !url.is_empty()).collect())
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
        let addresses = self.urls.iter().map(|url| self.address(url));
        Node::fleet(addresses, patience).map_err(|error| error.to_string())
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

    /// How long to wait for the connection to a node, and for each of its answers [default: 1s]
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    pub(crate) node_timeout: Option<Duration>,
}

impl FleetArguments {
    /// Returns the nodes. Refuses what `redlock run` refuses: two nodes with one name, and too many nodes.
    pub(crate) fn nodes(self) -> Result<Vec<Node>, String> {
        let patience = self.node_timeout.unwrap_or(Duration::from_secs(1));
        self.nodes.urls()?.nodes(patience)
    }
}

/// Whether these are the words of a node that refuses a login.
pub(crate) fn is_login_failure(words: &str) -> bool {
    let mut parts = words.split(' ');
    match parts.next() {
        Some("NOAUTH" | "WRONGPASS") => true,
        // As in "ERR invalid password" of Redis 5, or "ERR unknown command 'AUTH'".
        Some("ERR") => parts.any(|part| {
            let part = part.trim_matches(|character: char| !character.is_alphabetic());
            part.eq_ignore_ascii_case("auth") || part == "password"
        }),
        _ => false,
    }
}

/// Whether these words begin with the code of an error reply. So the node is up, and says itself what is wrong.
pub(crate) fn is_error_reply(words: &str) -> bool {
    let words = words
        .strip_prefix("the server closed the connection: ")
        .unwrap_or(words);
    let code = words.split(' ').next().unwrap_or_default();
    code.len() > 2 && code.bytes().all(|byte| byte.is_ascii_uppercase())
}

/// A runtime for the work of a command.
pub(crate) fn runtime() -> io::Result<Runtime> {
    // Tokio panics if too few more files may be open for its signals. These are as many as it opens.
    drop([
        UnixStream::pair()?,
        UnixStream::pair()?,
        UnixStream::pair()?,
    ]);
    Builder::new_current_thread().enable_all().build()
}

/// Runs `work` to its end, on a runtime of its own.
pub(crate) fn block_on(work: impl Future<Output = ExitCode>) -> ExitCode {
    let runtime = match runtime() {
        Ok(runtime) => runtime,
        Err(error) => return exit::internal(&format!("no runtime: {error}")),
    };
    let code = runtime.block_on(work);
    // A thread may still wait for a name server; its result is no longer needed.
    runtime.shutdown_background();
    code
}

/// The name of a user in a command that an operator copies. `..` if it is not known, or is more than a name for a shell or for Redis:
/// a node can answer anything.
pub(crate) fn user_to_grant(user: Option<&str>) -> &str {
    let is_plain = |user: &&str| {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:@".contains(&byte);
        !user.is_empty() && user.bytes().all(is_plain)
    };
    user.filter(is_plain).unwrap_or("..")
}

/// The pattern of a key in a rule of an ACL, which matches this key and no other, in a command that an operator copies into redis-cli.
/// `?`, which matches any byte, stands for each byte that a rule cannot hold, for example a space, for quotes, and for what a terminal
/// does not show. `..` if the key is too long to be shown.
pub(crate) fn key_to_grant(key: &str) -> String {
    const MOST: usize = 1_024;

    let mut pattern = String::new();
    for character in key.chars() {
        let is_shown = printable(character.encode_utf8(&mut [0; 4])).starts_with(character);
        match character {
            '*' | '?' | '[' | ']' | '\\' => pattern.extend(['\\', character]),
            // At the end of a rule, it would end a selector.
            ')' => pattern.push_str("[)]"),
            '"' | '\'' => pattern.push('?'),
            _ if is_shown && !character.is_whitespace() => pattern.push(character),
            _ => pattern.extend(core::iter::repeat_n('?', character.len_utf8())),
        }
    }
    if pattern.len() > MOST {
        return "..".to_owned();
    }
    pattern
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_a_node_makes_up_is_no_part_of_a_command() {
        for (user, shown) in [
            (Some("default"), "default"),
            (Some("team:billing_2"), "team:billing_2"),
            (None, ".."),
            (Some(""), ".."),
            (Some("locker on nopass +@all"), ".."),
            (Some("x;reboot"), ".."),
            (Some("$(reboot)"), ".."),
        ] {
            assert_eq!(user_to_grant(user), shown);
        }
    }

    #[test]
    fn the_pattern_of_a_key_is_one_word_that_matches_this_key() {
        let long = "k".repeat(2_000);
        for (key, pattern) in [
            ("lock:dock-7", "lock:dock-7"),
            ("Z\u{fc}rich", "Z\u{fc}rich"),
            ("+@all", "+@all"),
            ("a*?[b]\\", "a\\*\\?\\[b\\]\\\\"),
            ("f(x)", "f(x[)]"),
            ("a b\tc", "a?b?c"),
            ("a\"b'", "a?b?"),
            ("a\u{1b}[2J", "a?\\[2J"),
            ("\u{202e}", "???"),
            ("\u{a0}", "??"),
            (&long, ".."),
        ] {
            assert_eq!(key_to_grant(key), pattern);
        }
    }
}
