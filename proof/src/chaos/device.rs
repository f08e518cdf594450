//! The firmware as a client: a device in an emulator, whose holdings are timed here.
//!
//! Each task of the device asks this host before it uses the resource and tells it afterwards. It does not
//! say until when its lease is valid, and the time on its clock is none of ours. So what is taken down is
//! less than what it holds:
//!
//! - It holds no earlier than its first question is *read* here.
//! - It holds no longer than until its last question is *answered* here, for it releases after that.
//! - It holds no longer than its lease, which was asked for after the answer that ended the use before: not
//!   earlier than that answer plus the validity. One use in eight has no lease of its own but an extension,
//!   so the answer before that one counts.
//!
//! A use after a long wait is claimed in part or not at all: an overlap at its edges may be missed. None is
//! ever made up.

use std::collections::BTreeMap;
use std::error::Error;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::time::Duration;

use redlock_core::{Clock, Instant, Options};
use redlock_std::SystemClock;

use super::client::KEY;
use super::lock::node_timeout;
use super::record::Recorder;
use super::resource::Resource;
use super::said::{Mark, Said};
use redlock_tests::Emulator;

/// It ends with its handle, and with this process.
#[derive(Debug)]
pub(super) struct Device {
    number: usize,
    settings: Settings,
    recorder: Recorder,
    /// None for the moment between two lives.
    emulator: Option<Emulator>,
}

#[derive(Debug, Clone)]
pub(super) struct Settings {
    pub(super) image: PathBuf,
    pub(super) ports: Vec<u16>,
    pub(super) resource: PathBuf,
    pub(super) ttl: Duration,
}

impl Device {
    pub(super) fn boot(settings: Settings, recorder: &Recorder) -> Result<Self, Box<dyn Error>> {
        let mut device = Self {
            number: recorder.add_client("firmware".into()),
            settings,
            recorder: recorder.clone(),
            emulator: None,
        };
        device.reset()?;
        Ok(device)
    }

    pub(super) const fn number(&self) -> usize {
        self.number
    }

    /// Cuts its power and boots it again.
    pub(super) fn reset(&mut self) -> Result<(), Box<dyn Error>> {
        self.emulator = None;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let ports: Vec<_> = self.settings.ports.iter().map(u16::to_string).collect();
        let ttl = self.settings.ttl;
        let arguments = [
            ("scenario", "contend".to_owned()),
            ("nodes", ports.join(":")),
            ("control", listener.local_addr()?.port().to_string()),
            ("key", KEY.to_owned()),
            ("ttl_ms", ttl.as_millis().to_string()),
            ("node_timeout_ms", node_timeout(ttl).as_millis().to_string()),
            ("refuse_eviction", "true".to_owned()),
            ("acquisitions", u32::MAX.to_string()),
        ];
        let mut desk = Desk {
            client: self.number,
            recorder: self.recorder.clone(),
            booted: SystemClock.now(),
            validity: validity(ttl)?,
            resource: self.settings.resource.clone(),
            tasks: BTreeMap::new(),
            user: String::new(),
        };
        std::thread::spawn(move || {
            // Ends with the device, which ends the connection.
            let stream = listener.accept().map(|(stream, _)| stream);
            drop(stream.and_then(|stream| desk.serve(&stream)));
        });
        self.emulator = Some(Emulator::boot(&self.settings.image, &arguments)?);
        Ok(())
    }

    /// An error when it has ended by itself.
    pub(super) fn check(&mut self) -> Result<(), Box<dyn Error>> {
        let Some(emulator) = &mut self.emulator else {
            return Ok(());
        };
        let Some(status) = emulator.end()? else {
            return Ok(());
        };
        let mut words = Vec::new();
        while let Ok(line) = emulator.next_line(Duration::from_millis(100)) {
            words.push(line);
        }
        Err(format!(
            "the firmware ended by itself: {status}; {}",
            words.join(", ")
        )
        .into())
    }
}

/// Less than the device may count on: its clock is coarser than this host's.
fn validity(ttl: Duration) -> Result<Duration, Box<dyn Error>> {
    const COARSENESS: Duration = Duration::from_millis(2);

    Ok(Options::new(ttl)?.validity().saturating_sub(COARSENESS))
}

/// Serves one life of the device: looks like a Redis server as far as the device looks.
struct Desk {
    client: usize,
    recorder: Recorder,
    booted: Instant,
    validity: Duration,
    resource: PathBuf,
    /// By name.
    tasks: BTreeMap<String, Task>,
    /// The name of the task that uses the resource.
    user: String,
}

struct Task {
    voice: usize,
    resource: Resource,
    found: Option<Mark>,
    valid_until: Instant,
    /// The answers that ended the use before the last one, and the last one.
    answered: [Instant; 2],
}

impl Desk {
    fn serve(&mut self, mut stream: &TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        let mut questions = BufReader::new(stream);
        while let Some(question) = read_question(&mut questions)? {
            let words: Vec<_> = question.iter().map(String::as_str).collect();
            let answer = self.answer(&words)?;
            stream.write_all(answer.as_bytes())?;
        }
        Ok(())
    }

    fn answer(&mut self, question: &[&str]) -> io::Result<String> {
        const OK: &str = "+OK\r\n";
        const ONE: &str = ":1\r\n";
        const NOTHING: &str = "$-1\r\n";

        match question {
            ["SET", "user", name, "NX"] => {
                let at = SystemClock.now();
                self.user = (*name).to_owned();
                self.add_task(name)?;
                if let Some(task) = self.tasks.get_mut(*name) {
                    let [before, last] = task.answered;
                    task.valid_until = before.saturating_add(self.validity);
                    let valid_until = task.valid_until;
                    self.recorder.hear(task.voice, Said::Wants { at: last });
                    self.recorder
                        .hear(task.voice, Said::Acquired { at, valid_until });
                }
                Ok(OK.into())
            }
            ["GET", "count"] => {
                if let Some(task) = self.tasks.get_mut(&self.user) {
                    task.found = task.resource.read()?;
                }
                Ok(NOTHING.into())
            }
            ["SET", "count", _] => {
                if let Some(task) = self.tasks.get_mut(&self.user) {
                    let used = task.resource.write(task.found)?;
                    let said = Said::Used {
                        at: SystemClock.now(),
                        valid_until: task.valid_until,
                        used,
                    };
                    self.recorder.hear(task.voice, said);
                }
                Ok(OK.into())
            }
            ["GET", "user"] => Ok(format!("${}\r\n{}\r\n", self.user.len(), self.user)),
            ["DEL", "user"] => {
                if let Some(task) = self.tasks.get_mut(&self.user) {
                    let at = SystemClock.now();
                    let valid_until = task.valid_until;
                    task.answered = [task.answered[1], at];
                    self.recorder
                        .hear(task.voice, Said::LetsGo { at, valid_until });
                }
                Ok(ONE.into())
            }
            ["GETSET", "side", side] => Ok(format!("${}\r\n{side}\r\n", side.len())),
            ["INCR", _] => Ok(ONE.into()),
            _ => Ok(NOTHING.into()),
        }
    }

    fn add_task(&mut self, name: &str) -> io::Result<()> {
        if !self.tasks.contains_key(name) {
            let voice = self.recorder.add_voice(self.client);
            let task = Task {
                voice,
                resource: Resource::open(&self.resource, voice)?,
                found: None,
                valid_until: self.booted,
                // It did not ask for any lease before.
                answered: [self.booted; 2],
            };
            self.tasks.insert(name.to_owned(), task);
        }
        Ok(())
    }
}

/// A command of the Redis protocol; none at the end of the connection.
fn read_question(input: &mut impl BufRead) -> io::Result<Option<Vec<String>>> {
    let Some(count) = read_length(input, '*')? else {
        return Ok(None);
    };
    let mut words = Vec::new();
    for _ in 0..count {
        let length = read_length(input, '$')?.ok_or(io::ErrorKind::UnexpectedEof)?;
        let mut word = vec![0; length + 2];
        input.read_exact(&mut word)?;
        word.truncate(length);
        words.push(String::from_utf8_lossy(&word).into_owned());
    }
    Ok(Some(words))
}

fn read_length(input: &mut impl BufRead, kind: char) -> io::Result<Option<usize>> {
    const LONGEST: u64 = 16;

    let mut line = String::new();
    if input.take(LONGEST).read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let digits = line.trim_end().strip_prefix(kind);
    let length = digits.and_then(|digits| digits.parse().ok());
    length
        .map(Some)
        .ok_or_else(|| io::ErrorKind::InvalidData.into())
}

#[cfg(test)]
mod tests {
    use super::super::history::{History, Lease};
    use super::*;

    struct Host {
        desk: Desk,
        recorder: Recorder,
        _directory: tempfile::TempDir,
    }

    impl Host {
        fn with_validity(validity: Duration) -> Self {
            let recorder = Recorder::default();
            let directory = tempfile::tempdir().unwrap();
            let resource = directory.path().join("resource");
            Resource::create(&resource).unwrap();
            let desk = Desk {
                client: recorder.add_client("firmware".into()),
                recorder: recorder.clone(),
                booted: SystemClock.now(),
                validity,
                resource,
                tasks: BTreeMap::new(),
                user: String::new(),
            };
            Self {
                desk,
                recorder,
                _directory: directory,
            }
        }

        /// What a task of the firmware asks to use the resource.
        fn use_once(&mut self, name: &str) {
            let questions: [&[&str]; 7] = [
                &["SET", "user", name, "NX"],
                &["GETSET", "side", "firmware"],
                &["GET", "count"],
                &["SET", "count", "1"],
                &["INCR", "uses"],
                &["GET", "user"],
                &["DEL", "user"],
            ];
            for question in questions {
                self.desk.answer(question).unwrap();
            }
        }

        fn leases(&self) -> Vec<Lease> {
            History::of(&self.recorder.record()).leases
        }
    }

    #[test]
    fn it_holds_from_the_first_question_to_the_last_answer() {
        let mut host = Host::with_validity(Duration::from_secs(100));
        let before = SystemClock.now();
        host.use_once("firmware-1");
        let after = SystemClock.now();
        let leases = host.leases();
        assert!(before <= leases[0].acquired && leases[0].until() <= after);
        assert!(leases[0].acquired < leases[0].until());
        assert_eq!(History::of(&host.recorder.record()).uses.len(), 1);
    }

    #[test]
    fn nothing_is_claimed_beyond_what_any_lease_can_last() {
        let mut host = Host::with_validity(Duration::ZERO);
        for _ in 0..3 {
            host.use_once("firmware-1");
            host.use_once("firmware-2");
        }
        let leases = host.leases();
        assert_eq!(leases.len(), 6);
        assert!(leases.iter().all(|lease| lease.until() <= lease.acquired));
    }

    #[test]
    fn a_lease_counts_from_the_answer_before_the_last_one() {
        let validity = Duration::from_secs(100);
        let mut host = Host::with_validity(validity);
        for _ in 0..4 {
            host.use_once("firmware-1");
        }
        let leases = host.leases();
        let booted = host.desk.booted;
        let answered = |number: usize| leases[number].let_go.unwrap();
        let from = [booted, booted, answered(0), answered(1)];
        let valid_until = leases.iter().map(|lease| lease.valid_until);
        assert!(valid_until.eq(from.map(|from| from.saturating_add(validity))));
    }

    #[test]
    fn a_question_is_read_whole() {
        let mut bytes: &[u8] = b"*2\r\n$3\r\nGET\r\n$5\r\ncount\r\n*1\r\n$4\r\nPING\r\n";
        let first = read_question(&mut bytes).unwrap();
        assert_eq!(first.unwrap(), ["GET", "count"]);
        let second = read_question(&mut bytes).unwrap();
        assert_eq!(second.unwrap(), ["PING"]);
        assert!(read_question(&mut bytes).unwrap().is_none());
        assert!(read_question(&mut &b"hello\r\n"[..]).is_err());
        assert!(read_question(&mut &b"*1\r\n$4\r\nPI"[..]).is_err());
    }
}
