//! The clients, each a process of its own.

use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::client::Habit;
use super::lock::Lock;
use super::random::Random;
use super::record::Recorder;
use redlock_tests::child;

#[derive(Debug)]
pub(super) struct Crew {
    clients: Vec<Client>,
    place: Place,
    recorder: Recorder,
    random: Random,
}

/// Where the clients find what they need.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) ports: Vec<u16>,
    /// The address of the nodes for each client.
    pub(super) addresses: Vec<Ipv4Addr>,
    pub(super) resource: PathBuf,
    pub(super) lock: Lock,
    pub(super) ttl: Duration,
}

/// It ends with its handle, and with this process.
#[derive(Debug)]
struct Client {
    number: usize,
    habit: Habit,
    voice: usize,
    process: Child,
    listener: Option<JoinHandle<()>>,
}

impl Crew {
    /// As many clients as there are addresses, of all habits in turn.
    pub(super) fn start(
        place: Place,
        recorder: &Recorder,
        seed: u64,
    ) -> Result<Self, Box<dyn Error>> {
        let mut crew = Self {
            clients: Vec::new(),
            place,
            recorder: recorder.clone(),
            random: Random::new(seed),
        };
        let habits = Habit::ALL.into_iter().cycle();
        for (index, habit) in habits.take(crew.place.addresses.len()).enumerate() {
            let round = index / Habit::ALL.len() + 1;
            let number = recorder.add_client(format!("{} {round}", habit.name()));
            let client = crew.launch(number, habit)?;
            crew.clients.push(client);
        }
        Ok(crew)
    }

    pub(super) fn numbers(&self) -> Vec<usize> {
        self.clients.iter().map(|client| client.number).collect()
    }

    pub(super) fn is_lapsing(&self, number: usize) -> bool {
        let mut clients = self.clients.iter();
        clients.any(|client| client.number == number && client.habit == Habit::Lapsing)
    }

    /// Stops the process (SIGSTOP).
    pub(super) fn pause(&self, number: usize) -> Result<(), Box<dyn Error>> {
        self.signal(number, Signal::STOP)
    }

    /// Lets the process go on (SIGCONT).
    pub(super) fn resume(&self, number: usize) -> Result<(), Box<dyn Error>> {
        self.signal(number, Signal::CONT)
    }

    /// Ends the process (SIGKILL) and starts another one in its place.
    pub(super) fn replace(&mut self, number: usize) -> Result<(), Box<dyn Error>> {
        let Some(index) = self.clients.iter().position(|one| one.number == number) else {
            return Ok(());
        };
        let mut client = self.clients.swap_remove(index);
        let habit = client.habit;
        client.end();
        let client = self.launch(number, habit)?;
        self.clients.push(client);
        Ok(())
    }

    /// An error if a client has ended by itself.
    pub(super) fn check(&mut self) -> Result<(), Box<dyn Error>> {
        if let Some(line) = self.recorder.nonsense() {
            return Err(format!("a client wrote '{line}'").into());
        }
        for client in &mut self.clients {
            if let Some(status) = client.process.try_wait()? {
                let name = client.habit.name();
                return Err(format!("the client '{name}' ended by itself: {status}").into());
            }
        }
        Ok(())
    }

    /// Tells all to give back what they hold, and to begin nothing.
    pub(super) fn stop(&mut self) -> Result<(), Box<dyn Error>> {
        for client in &mut self.clients {
            if let Some(input) = &mut client.process.stdin {
                input.write_all(b"stop\n")?;
            }
        }
        Ok(())
    }

    pub(super) fn is_idle(&self) -> bool {
        let mut clients = self.clients.iter();
        clients.all(|client| self.recorder.is_idle(client.voice))
    }

    /// Lets all end; true when they have.
    pub(super) fn dismiss(&mut self) -> Result<bool, Box<dyn Error>> {
        for client in &mut self.clients {
            drop(client.process.stdin.take());
            match client.process.try_wait()? {
                Some(status) if status.success() => {}
                Some(status) => {
                    let name = client.habit.name();
                    return Err(format!("the client '{name}' failed: {status}").into());
                }
                None => return Ok(false),
            }
        }
        // Everything that they have said is taken down.
        self.clients.clear();
        Ok(true)
    }

    fn signal(&self, number: usize, signal: Signal) -> Result<(), Box<dyn Error>> {
        if let Some(client) = self.clients.iter().find(|one| one.number == number) {
            kill_process(Pid::from_child(&client.process), signal)?;
        }
        Ok(())
    }

    fn launch(&mut self, number: usize, habit: Habit) -> Result<Client, Box<dyn Error>> {
        let voice = self.recorder.add_voice(number);
        let address = self.place.addresses[number];
        let nodes = self.place.ports.iter();
        let mut command = child::bound(std::env::current_exe()?);
        command
            .args(["chaos", "client", "--habit", habit.name()])
            .args(["--ttl-ms", &self.place.ttl.as_millis().to_string()])
            .args(["--seed", &self.random.number().to_string()])
            .args(["--voice", &voice.to_string()])
            .args(self.place.lock.is_fenced().then_some("--fenced"))
            .arg("--resource")
            .arg(&self.place.resource)
            .args(nodes.map(|port| format!("redis://{address}:{port}")))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut process = child::spawn(command)?;
        let output = process.stdout.take();
        let recorder = self.recorder.clone();
        let listener = std::thread::spawn(move || {
            let lines = output.map(|output| BufReader::new(output).lines());
            for line in lines.into_iter().flatten().map_while(Result::ok) {
                match line.parse() {
                    Ok(said) => recorder.hear(voice, said),
                    Err(_) => recorder.hear_nonsense(&line),
                }
            }
        });
        Ok(Client {
            number,
            habit,
            voice,
            process,
            listener: Some(listener),
        })
    }
}

impl Client {
    fn end(&mut self) {
        child::end(&mut self.process);
        // What it has said last is in the pipe still.
        if let Some(listener) = self.listener.take() {
            drop(listener.join());
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.end();
    }
}
