//! The file of a lease that no process keeps: `redlock lock` writes it, and `redlock extend`, `unlock` and `run --adopt` use it.

use core::time::Duration;
use std::collections::hash_map::RandomState;
use std::fs::{File, OpenOptions, Permissions, hard_link, metadata, remove_file};
use std::hash::{BuildHasher, Hasher};
use std::io::{self, ErrorKind, Read, Seek, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use redlock_std::{Clock, Fence, Fencing, Handover, Options, SystemClock, Token};
use rustix::fs::{FlockOperation, OFlags, flock};
use serde_json::{Value, json};

use crate::lock_options::node_timeout;
use crate::nodes::{Node, Urls};
use crate::wall_clock::WrongClock;
use crate::{echo, json, wall_clock};

/// An open lease file.
#[derive(Debug)]
pub(crate) struct LeaseFile {
    path: PathBuf,
    file: File,
    is_writable: bool,
    is_used_elsewhere: bool,
    lease: Lease,
}

/// What the file holds. `Debug` of the handover shows only the first bytes of the token.
#[derive(Debug)]
struct Lease {
    handover: Handover,
    options: Options,
    /// The names of the nodes, and of their databases, sorted.
    nodes: Vec<String>,
    /// Who holds the lock, for operators. `None` if that is not told.
    owner: Option<String>,
}

/// A longer one was not written by `redlock`: the longest key has 64 KiB.
const MAX_BYTES: u64 = 1 << 20;

const VERSION: u64 = 1;

/// A place where a lease file can be made. Nothing is there until the lease is written, so a process that is killed while it waits
/// for the lock leaves nothing.
#[derive(Debug)]
pub(crate) struct Blank {
    path: PathBuf,
}

impl Blank {
    /// Looks at the place, before anything is locked. Refuses a file that exists, because it may hold a lease, a name that no file
    /// can have, and a folder in which no file can be made.
    pub(crate) fn look(path: &Path) -> Result<Self, String> {
        let blank = Self {
            path: path.to_owned(),
        };
        match path.symlink_metadata() {
            Ok(_) => return Err(blank.fault(&ErrorKind::AlreadyExists.into())),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(blank.fault(&error)),
        }
        if !is_name_of_file(path) {
            let path = echo::file(path);
            return Err(format!(
                "--lease-file {path}: it is the name of a folder: name a file"
            ));
        }
        blank.try_it().map_err(|error| blank.fault(&error))?;
        Ok(blank)
    }

    /// Writes the lease, which is valid for `valid`, and waits until it is on the disk. The file appears with its whole content, or
    /// not at all. If a file is there, the previous holder may be about to remove it, because it releases the lock first: waits up to
    /// a second, but at most a third of the validity.
    pub(crate) async fn write(
        &self,
        handover: &Handover,
        options: &Options,
        nodes: &Urls,
        owner: Option<&str>,
        valid: Duration,
    ) -> io::Result<()> {
        let lease = Lease {
            handover: handover.clone(),
            options: *options,
            nodes: names(nodes).map_err(io::Error::other)?,
            owner: owner.map(str::to_owned),
        };
        let document = lease.document(valid).map_err(io::Error::other)?;
        let draft = self.draft();
        let give_up_at = SystemClock.now().saturating_add(REMOVAL.min(valid / 3));
        let mut written = fill(&draft, &document);
        if written.is_ok() {
            written = self.link(&draft, &document);
            while is_taken(&written) && SystemClock.now() < give_up_at {
                tokio::time::sleep(REMOVAL_PAUSE).await;
                written = self.link(&draft, &document);
            }
        }
        let _gone = remove_file(draft);
        written
    }

    /// Removes the file that was written: the lease is over.
    pub(crate) fn remove(&self) -> io::Result<()> {
        remove_file(&self.path)
    }

    /// Gives the draft the name of the file. A link, because a rename would replace a lease file that another process has made
    /// meanwhile.
    fn link(&self, draft: &Path, document: &str) -> io::Result<()> {
        match hard_link(draft, &self.path) {
            Err(error)
                if [ErrorKind::PermissionDenied, ErrorKind::Unsupported]
                    .contains(&error.kind()) =>
            {
                // A file system without links, for example FAT.
                fill(&self.path, document)
            }
            linked => linked,
        }
    }

    /// Makes a file in the folder, if possible one without a name: it is gone even if this process is killed.
    fn try_it(&self) -> io::Result<()> {
        #[cfg(target_os = "linux")]
        {
            let mut options = OpenOptions::new();
            let flags = OFlags::TMPFILE.bits().cast_signed();
            let options = options.write(true).custom_flags(flags).mode(0o600);
            let folder = self
                .path
                .parent()
                .filter(|path| !path.as_os_str().is_empty());
            if options
                .open(folder.unwrap_or_else(|| Path::new(".")))
                .is_ok()
            {
                return Ok(());
            }
        }
        // Not every file system has files without a name. If no file can be made at all, this says why.
        let draft = self.draft();
        fill(&draft, "").and_then(|()| remove_file(draft))
    }

    /// A new name beside the place. Short, because that of the place may be as long as the file system allows.
    fn draft(&self) -> PathBuf {
        let random = RandomState::new().build_hasher().finish();
        self.path
            .with_file_name(format!(".redlock-{random:016x}.tmp"))
    }

    /// Why the file cannot be made, in words.
    pub(crate) fn fault(&self, error: &io::Error) -> String {
        let path = echo::file(&self.path);
        let why = match error.kind() {
            ErrorKind::AlreadyExists => found(&self.path),
            _ => error.to_string(),
        };
        format!("--lease-file {path}: {why}")
    }
}

/// What is in the place of a new lease file, and what to do about it.
fn found(path: &Path) -> String {
    const REMOVE: &str = "remove it if nothing needs it, or name another one";

    match metadata(path) {
        Ok(found) if found.is_file() => {}
        Ok(found) if found.is_dir() => return "it is a folder: name a file in it".to_owned(),
        Ok(_) => return "it exists, and is not a regular file: name another one".to_owned(),
        Err(error) if error.kind() != ErrorKind::NotFound => return error.to_string(),
        Err(_) if path.is_symlink() => {
            return "it is a symbolic link to a file that is not there: name that file, or remove the link".to_owned();
        }
        Err(_) => return "another process has just removed it: try again".to_owned(),
    }
    let mut text = String::new();
    let read = File::open(path).and_then(|file| file.take(MAX_BYTES).read_to_string(&mut text));
    match read {
        Ok(0) => return format!("it exists, and is empty: {REMOVE}"),
        Ok(_) if is_newer(&text) => {
            return "it exists, and a newer redlock has written it: use that one".to_owned();
        }
        Ok(_) if Lease::parse(&text).is_none() => {
            return format!(
                "it exists, and is cut off, or was not written by redlock lock: {REMOVE}"
            );
        }
        Err(error) if error.kind() == ErrorKind::InvalidData => {
            return format!("it exists, and was not written by redlock lock: {REMOVE}");
        }
        // Perhaps only its owner can read it.
        Ok(_) | Err(_) => {}
    }
    let command = match path.to_str().filter(|path| is_plain(path)) {
        Some(path) => format!("redlock unlock --lease-file {path}"),
        None => "redlock unlock with this --lease-file".to_owned(),
    };
    format!(
        "it exists: another process may use it now (see redlock inspect); only if not, run {command}"
    )
}

/// Whether a shell takes this word as it is.
fn is_plain(word: &str) -> bool {
    let is_plain = |letter: char| letter.is_alphanumeric() || "/._-+,@%:=".contains(letter);
    word.chars().all(is_plain) && !word.starts_with('-') && echo::file(word) == word
}

/// Whether a file can have this name: it does not end with a slash, and not with a part that is a folder.
fn is_name_of_file(path: &Path) -> bool {
    let name = path.as_os_str().as_bytes().rsplit(|byte| *byte == b'/');
    name.take(1).all(|name| !matches!(name, b"" | b"." | b".."))
}

/// For how long a previous holder that has released the lock may take to remove its file.
const REMOVAL: Duration = Duration::from_secs(1);

/// The time between two looks.
const REMOVAL_PAUSE: Duration = Duration::from_millis(5);

fn is_taken(written: &io::Result<()>) -> bool {
    matches!(written, Err(error) if error.kind() == ErrorKind::AlreadyExists)
}

/// Makes a new file with this text, which only its owner can read. A file that cannot be written is removed.
fn fill(path: &Path, text: &str) -> io::Result<()> {
    let mut options = OpenOptions::new();
    let options = options.write(true).create_new(true).mode(0o600);
    let mut file = options.open(path)?;
    // The umask may have taken away what the owner needs to read it.
    let written = file.set_permissions(Permissions::from_mode(0o600));
    let written = written.and_then(|()| file.write_all(text.as_bytes()));
    let written = written.and_then(|()| file.sync_all());
    if written.is_err() {
        let _gone = remove_file(path);
    }
    written
}

impl LeaseFile {
    /// Opens and reads the file. Changes nothing in it.
    pub(crate) fn open(path: &Path) -> Result<Self, String> {
        let fault = |why: &str| format!("the lease file {}: {why}", echo::file(path));
        let open = |is_writable| {
            // A pipe without a writer would be waited for.
            let flags = OFlags::NONBLOCK.bits().cast_signed();
            let mut options = OpenOptions::new();
            options.read(true).write(is_writable).custom_flags(flags);
            options.open(path).map(|file| (file, is_writable))
        };
        let file = open(true).or_else(|error| match error.kind() {
            // A lease can be extended and released without a word in the file.
            ErrorKind::ReadOnlyFilesystem | ErrorKind::PermissionDenied => open(false),
            _ => Err(error),
        });
        let (file, is_writable) = file.map_err(|error| match error.kind() {
            ErrorKind::NotFound => {
                fault("there is none: no lock was taken, or it was released or found lost since")
            }
            _ => fault(&error.to_string()),
        })?;
        let kind = file.metadata().map_err(|error| fault(&error.to_string()))?;
        if !kind.is_file() {
            return Err(fault("it is not a regular file"));
        }
        let is_used_elsewhere = flock(&file, FlockOperation::NonBlockingLockExclusive).is_err();
        // Another process may have removed it before it was ours, and the file of this name may be that of the next lease.
        if !is_at(&file, path).map_err(|error| fault(&error.to_string()))? {
            return Err(fault("another process has just removed it"));
        }
        let mut text = String::new();
        let read = (&file).take(MAX_BYTES).read_to_string(&mut text);
        read.map_err(|error| fault(&error.to_string()))?;
        let lease = Lease::parse(&text).ok_or_else(|| {
            fault(if is_newer(&text) {
                "a newer redlock has written it: use that one; the lock ends with its TTL, if it is held"
            } else {
                "it is cut off, or was not written by redlock lock; the lock ends with its TTL, if it is held"
            })
        })?;
        Ok(Self {
            path: path.to_owned(),
            file,
            is_writable,
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

    pub(crate) fn owner(&self) -> Option<&str> {
        self.lease.owner.as_deref()
    }

    pub(crate) const fn ttl(&self) -> Duration {
        self.lease.options.ttl()
    }

    /// The options of the lease, with as many extensions as its holder likes.
    pub(crate) const fn options(&self) -> Options {
        self.lease.options.unlimited_extensions()
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
            redlock_std::printable(&self.lease.nodes.join(", ")),
            given.join(", ")
        ))
    }

    /// Records a new end. Only its digits change, so a crash cuts nothing off.
    pub(crate) fn extended(&self, valid: Duration) -> Result<(), String> {
        let path = echo::file(&self.path);
        if !self.is_writable {
            return Err(format!("the lease file {path} is read-only"));
        }
        let document = self.lease.document(valid);
        let document = document.map_err(|error| format!("the lease file {path}: {error}"))?;
        let mut file = &self.file;
        let written = file.rewind();
        let written = written.and_then(|()| file.write_all(document.as_bytes()));
        // Another program may have reformatted it.
        let written = written.and_then(|()| file.set_len(document.len() as u64));
        written.map_err(|error| format!("the lease file {path}: {error}"))
    }

    /// Removes the file of a lease that is over, unless another process uses it, or the file of another lease has its name by now. The
    /// name may be a symbolic link to the file: then both are removed. A link to a link, as /dev/stdin is, stays.
    pub(crate) fn remove(&self) -> Result<(), String> {
        if self.is_used_elsewhere {
            return Ok(());
        }
        let is_link = is_link_to(&self.file, &self.path);
        let removed = match is_at(&self.file, &self.path) {
            Ok(true) => self.path.canonicalize().and_then(remove_file),
            Ok(false) => return Ok(()),
            Err(error) => Err(error),
        };
        match removed {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                let path = echo::file(&self.path);
                Err(format!("the lease file {path} is left: {error}; remove it"))
            }
            _ => {
                if is_link {
                    let _link = remove_file(&self.path);
                }
                Ok(())
            }
        }
    }
}

/// Whether `path` is a symbolic link to the open `file` itself, not to another link.
fn is_link_to(file: &File, path: &Path) -> bool {
    let directory = path.parent().unwrap_or(path);
    path.read_link().is_ok_and(|target| {
        let target = directory.join(target);
        !target.is_symlink() && is_at(file, &target).unwrap_or(false)
    })
}

/// Whether the open `file` is the one that has this name now.
fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    let (open, named) = (file.metadata()?, metadata(path)?);
    Ok((open.dev(), open.ino()) == (named.dev(), named.ino()))
}

/// Whether the version of the file is one that this program does not know.
fn is_newer(text: &str) -> bool {
    let document: Value = serde_json::from_str(text).unwrap_or_default();
    let version = document.get("version").and_then(Value::as_u64);
    version.is_some_and(|version| version > VERSION)
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
            None => {
                let options = match max_ttl {
                    Some(max_ttl) => options.max_ttl(max_ttl).ok()?,
                    None => options,
                };
                options.restart_guard(document["restart_guard"].as_bool().unwrap_or(true))
            }
        };
        // Files of earlier versions do not have it.
        let patience = number(&document["node_timeout_ms"]);
        let patience = patience.unwrap_or_else(|| node_timeout(&options));
        let options = options.node_timeout(patience).ok()?;
        let nodes = document["nodes"].as_array()?.iter();
        let nodes = nodes.map(|node| node.as_str().map(str::to_owned));
        Some(Self {
            handover: Handover::new(key, Token::from_bytes(token), fence, options.ttl()),
            options,
            nodes: nodes.collect::<Option<Vec<String>>>()?,
            owner: document["owner"].as_str().map(str::to_owned),
        })
    }

    fn document(&self, valid: Duration) -> Result<String, WrongClock> {
        let Self {
            handover,
            options,
            nodes,
            owner,
        } = self;
        let ms = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        let (fencing, conditions) = (options.fencing(), options.vote_conditions());
        let document = json!({
            "version": VERSION,
            "key": redlock_std::KeyName::new(handover.key()).to_string(),
            "key_hex": json::hex(handover.key()),
            "token": json::hex(handover.token().as_bytes()),
            "fence": handover.fence().map(Fence::as_u64),
            "ttl_ms": ms(options.ttl()),
            "node_timeout_ms": ms(options.round_time()),
            "max_ttl_ms": conditions.max_ttl_ms,
            "restart_guard": fencing.is_some() || conditions.restart_guard,
            "window_ms": fencing.map(|fencing| ms(fencing.window())),
            "step_back_ms": fencing.map(|fencing| ms(fencing.step_back())),
            "valid_until": wall_clock::text_after(valid)?,
            "nodes": nodes,
            "owner": owner,
        });
        Ok(json::document(&document) + "\n")
    }
}

/// The names of the nodes, and of their databases, sorted.
fn names(nodes: &Urls) -> Result<Vec<String>, String> {
    let nodes = nodes.nodes(Duration::ZERO)?;
    let name = |node: &Node| match node.database() {
        0 => node.name().to_owned(),
        database => format!("{}/{database}", node.name()),
    };
    let mut names: Vec<String> = nodes.iter().map(name).collect();
    names.sort_unstable();
    Ok(names)
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
        let options = options.node_timeout(Duration::from_secs(2)).unwrap();
        let token = Token::from_bytes([0xab; Token::LEN]);
        let handover = Handover::new(b"dock \xff", token, Some(Fence::from_u64(7)), options.ttl());
        let lease = Lease {
            handover,
            options,
            nodes: vec!["a:1".to_owned()],
            owner: Some("host:5".to_owned()),
        };
        lease.document(Duration::from_secs(9)).unwrap()
    }

    #[test]
    fn what_was_written_is_read() {
        let lease = Lease::parse(&text()).unwrap();
        assert_eq!(lease.handover.key(), b"dock \xff");
        assert_eq!(lease.handover.token().as_bytes(), &[0xab; Token::LEN]);
        assert_eq!(lease.handover.fence(), Some(Fence::from_u64(7)));
        assert_eq!(lease.options.ttl(), Duration::from_secs(30));
        assert_eq!(lease.options.fencing(), Some(Fencing::default()));
        assert_eq!(lease.options.round_time(), Duration::from_secs(2));
        assert_eq!(lease.owner.as_deref(), Some("host:5"));
        assert!(!format!("{lease:?}").contains(&"ab".repeat(Token::LEN)));
    }

    #[test]
    fn a_lease_keeps_what_a_node_must_meet_to_have_a_vote() {
        for (max_ttl, restart_guard) in [(30, true), (60, true), (60, false)] {
            let options = Options::new(Duration::from_secs(30)).unwrap();
            let options = options.max_ttl(Duration::from_secs(max_ttl)).unwrap();
            let options = options.restart_guard(restart_guard);
            let token = Token::from_bytes([0xab; Token::LEN]);
            let lease = Lease {
                handover: Handover::new(b"dock", token, None, options.ttl()),
                options,
                nodes: vec!["a:1".to_owned()],
                owner: None,
            };
            let read = Lease::parse(&lease.document(Duration::from_secs(9)).unwrap()).unwrap();
            let conditions = read.options.vote_conditions();
            assert_eq!(conditions, options.vote_conditions());
        }
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
