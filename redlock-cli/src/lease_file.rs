//! The file of a lease that no process keeps: `redlock lock` writes it, and `redlock extend`, `unlock` and `run --adopt` use it.

use core::time::Duration;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use redlock_std::{Fence, Fencing, Handover, Options, Token};
use rustix::fs::{FlockOperation, flock};
use serde_json::{Value, json};

use crate::lock_options::node_timeout;
use crate::nodes::Urls;
use crate::{echo, json};

/// An open lease file.
#[derive(Debug)]
pub(crate) struct LeaseFile {
    path: PathBuf,
    file: File,
    is_used_elsewhere: bool,
    lease: Lease,
}

/// What the file holds. `Debug` of the handover shows only the first bytes of the token.
#[derive(Debug)]
struct Lease {
    handover: Handover,
    options: Options,
    /// The names of the nodes, sorted.
    nodes: Vec<String>,
}

/// A longer one was not written by `redlock`: the longest key has 64 KiB.
const MAX_BYTES: u64 = 1 << 20;

const VERSION: u64 = 1;

/// A new, empty file, which only its owner can read. Dropped before it is written, it is removed.
#[derive(Debug)]
pub(crate) struct Blank {
    path: PathBuf,
    file: Option<File>,
}

impl Blank {
    /// Creates the file, before anything is locked. Refuses a file that exists: it may hold a lease.
    pub(crate) fn create(path: &Path) -> Result<Self, String> {
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create_new(true).mode(0o600);
        let file = file.open(path).map_err(|error| match error.kind() {
            ErrorKind::AlreadyExists => format!(
                "--lease-file {}: it exists, and may hold a lease: run redlock unlock, or remove it",
                echo::file(path)
            ),
            _ => format!("--lease-file {}: {error}", echo::file(path)),
        })?;
        Ok(Self {
            path: path.to_owned(),
            file: Some(file),
        })
    }

    /// Writes the lease, which is valid for `valid`, and waits until it is on the disk.
    pub(crate) fn write(
        mut self,
        handover: &Handover,
        options: &Options,
        nodes: &Urls,
        valid: Duration,
    ) -> Result<(), String> {
        let Some(mut file) = self.file.take() else {
            return Ok(());
        };
        let document = document(handover, options, &names(nodes)?, valid);
        let written = file.write_all(document.as_bytes());
        let written = written.and_then(|()| file.sync_all());
        written.map_err(|error| {
            // It may be cut off.
            let _gone = std::fs::remove_file(&self.path);
            format!("--lease-file {}: {error}", echo::file(&self.path))
        })
    }
}

impl Drop for Blank {
    fn drop(&mut self) {
        if self.file.is_some() {
            let _gone = std::fs::remove_file(&self.path);
        }
    }
}

impl LeaseFile {
    /// Opens and reads the file. Changes nothing in it.
    pub(crate) fn open(path: &Path) -> Result<Self, String> {
        let fault = |why: &str| format!("the lease file {}: {why}", echo::file(path));
        let file = OpenOptions::new().read(true).write(true).open(path);
        let file = file.map_err(|error| fault(&error.to_string()))?;
        let is_used_elsewhere = flock(&file, FlockOperation::NonBlockingLockExclusive).is_err();
        let mut text = String::new();
        let read = (&file).take(MAX_BYTES).read_to_string(&mut text);
        read.map_err(|error| fault(&error.to_string()))?;
        let lease = Lease::parse(&text).ok_or_else(|| {
            fault("it is cut off, or was not written by redlock lock; the lock ends with its TTL, if it is held")
        })?;
        Ok(Self {
            path: path.to_owned(),
            file,
            is_used_elsewhere,
            lease,
        })
    }

    /// Refuses a file that another process has open: one lease has one holder.
    pub(crate) fn expect_unused(&self) -> Result<(), String> {
        if self.is_used_elsewhere {
            let path = echo::file(&self.path);
            return Err(format!(
                "the lease file {path}: another process uses it now"
            ));
        }
        Ok(())
    }

    pub(crate) const fn handover(&self) -> &Handover {
        &self.lease.handover
    }

    pub(crate) fn key(&self) -> &[u8] {
        self.lease.handover.key()
    }

    pub(crate) const fn ttl(&self) -> Duration {
        self.lease.options.ttl()
    }

    /// The options of the lease, with as many extensions as its holder likes.
    pub(crate) fn options(&self) -> Result<Options, String> {
        let options = self.lease.options.unlimited_extensions();
        options
            .node_timeout(node_timeout(&options))
            .map_err(|error| error.to_string())
    }

    /// Refuses nodes other than those of the lease: they do not know it.
    pub(crate) fn expect_nodes(&self, nodes: &Urls) -> Result<(), String> {
        let given = names(nodes)?;
        if given == self.lease.nodes {
            return Ok(());
        }
        Err(format!(
            "the lease file {} is of other nodes: of {}, and not of {}; nothing was changed",
            echo::file(&self.path),
            self.lease.nodes.join(", "),
            given.join(", ")
        ))
    }

    /// Records a new end. Only its digits change, so a crash cuts nothing off.
    pub(crate) fn extended(&self, valid: Duration) -> Result<(), String> {
        let Lease {
            handover,
            options,
            nodes,
        } = &self.lease;
        let document = document(handover, options, nodes, valid);
        let mut file = &self.file;
        let written = file.rewind();
        let written = written.and_then(|()| file.write_all(document.as_bytes()));
        written.map_err(|error| format!("the lease file {}: {error}", echo::file(&self.path)))
    }

    /// Removes the file of a lease that is over.
    pub(crate) fn remove(&self) {
        let _gone = std::fs::remove_file(&self.path);
    }
}

impl Lease {
    fn parse(text: &str) -> Option<Self> {
        let document: Value = serde_json::from_str(text).ok()?;
        let number = |value: &Value| value.as_u64().map(Duration::from_millis);
        if document["version"].as_u64()? != VERSION {
            return None;
        }
        let key = bytes(document["key_hex"].as_str()?)?;
        let token: [u8; Token::LEN] = bytes(document["token"].as_str()?)?.try_into().ok()?;
        let options = Options::new(number(&document["ttl_ms"])?).ok()?;
        let max_ttl = number(&document["max_ttl_ms"]);
        let fence = match &document["fence"] {
            Value::Null => None,
            fence => Some(Fence::from_u64(fence.as_u64()?)),
        };
        let options = match fence {
            Some(_) => {
                let fencing = Fencing::new(number(&document["window_ms"])?).ok()?;
                let fencing = fencing
                    .with_step_back(number(&document["step_back_ms"])?)
                    .ok()?;
                options.fenced(fencing.with_max_ttl(max_ttl?).ok()?).ok()?
            }
            None => options,
        };
        let nodes = document["nodes"].as_array()?.iter();
        let nodes = nodes.map(|node| node.as_str().map(str::to_owned));
        Some(Self {
            handover: Handover::new(key, Token::from_bytes(token), fence, options.ttl()),
            options,
            nodes: nodes.collect::<Option<Vec<String>>>()?,
        })
    }
}

fn document(handover: &Handover, options: &Options, nodes: &[String], valid: Duration) -> String {
    let ms = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let fencing = options.fencing();
    let valid_until = humantime::format_rfc3339_millis(SystemTime::now() + valid);
    let document = json!({
        "version": VERSION,
        "key": redlock_std::KeyName::new(handover.key()).to_string(),
        "key_hex": hex(handover.key()),
        "token": hex(handover.token().as_bytes()),
        "fence": handover.fence().map(Fence::as_u64),
        "ttl_ms": ms(options.ttl()),
        "max_ttl_ms": fencing.map(|fencing| ms(fencing.max_ttl())),
        "window_ms": fencing.map(|fencing| ms(fencing.window())),
        "step_back_ms": fencing.map(|fencing| ms(fencing.step_back())),
        "valid_until": valid_until.to_string(),
        "nodes": nodes,
    });
    json::document(&document) + "\n"
}

/// The names of the nodes, sorted.
fn names(nodes: &Urls) -> Result<Vec<String>, String> {
    let nodes = nodes.nodes(Duration::ZERO)?;
    let mut names: Vec<String> = nodes.iter().map(|node| node.name().to_owned()).collect();
    names.sort_unstable();
    Ok(names)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn bytes(hex: &str) -> Option<Vec<u8>> {
    let digits = hex.as_bytes();
    if !digits.len().is_multiple_of(2) {
        return None;
    }
    let digit = |byte: u8| {
        char::from(byte)
            .to_digit(16)
            .and_then(|digit| u8::try_from(digit).ok())
    };
    digits
        .chunks(2)
        .map(|pair| match pair {
            [high, low] => Some(digit(*high)? << 4 | digit(*low)?),
            _ => None,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text() -> String {
        let options = Options::new(Duration::from_secs(30)).unwrap();
        let options = options.fenced(Fencing::default()).unwrap();
        let token = Token::from_bytes([0xab; Token::LEN]);
        let handover = Handover::new(b"dock \xff", token, Some(Fence::from_u64(7)), options.ttl());
        document(
            &handover,
            &options,
            &["a:1".to_owned()],
            Duration::from_secs(9),
        )
    }

    #[test]
    fn what_was_written_is_read() {
        let lease = Lease::parse(&text()).unwrap();
        assert_eq!(lease.handover.key(), b"dock \xff");
        assert_eq!(lease.handover.token().as_bytes(), &[0xab; Token::LEN]);
        assert_eq!(lease.handover.fence(), Some(Fence::from_u64(7)));
        assert_eq!(lease.options.ttl(), Duration::from_secs(30));
        assert_eq!(lease.options.fencing(), Some(Fencing::default()));
        assert!(!format!("{lease:?}").contains(&"ab".repeat(Token::LEN)));
    }

    #[test]
    fn a_file_that_is_cut_off_anywhere_is_no_lease() {
        let text = text();
        let last = text.rfind('}').unwrap();
        for end in 0..=last {
            let cut = text.get(..end).unwrap_or_default();
            assert!(Lease::parse(cut).is_none(), "{cut}");
        }
    }
}
