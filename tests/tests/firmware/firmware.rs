//! The firmware, built once and run in an emulator.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, ErrorKind};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use redlock_tests::{Server, Servers, eventually};

/// A running firmware. It ends with its handle, and with this process.
#[derive(Debug)]
pub(crate) struct Firmware {
    emulator: Child,
    lines: Receiver<String>,
    /// What it has written, by name; the last one where a name came again.
    results: BTreeMap<String, String>,
    ends_at: Instant,
    /// Emulators run one after the other: they are measured, and have time-outs.
    _turn: MutexGuard<'static, ()>,
}

impl Firmware {
    /// Boots the firmware into `scenario`, with these arguments besides.
    pub(crate) fn start(
        scenario: &str,
        servers: &Servers,
        control: &Server,
        arguments: &[(&str, String)],
    ) -> Self {
        static TURN: Mutex<()> = Mutex::new(());
        /// For a whole run. A run takes seconds.
        const LIMIT: Duration = Duration::from_secs(180);

        expect_emulator();
        let image = &*IMAGE;
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let ports: Vec<_> = servers
            .iter()
            .map(|server| server.port().to_string())
            .collect();
        let mut semihosting = format!(
            "enable=on,target=native,arg=firmware,arg=scenario={scenario},arg=nodes={},arg=control={}",
            ports.join(":"),
            control.port(),
        );
        for (name, value) in arguments {
            semihosting.push_str(&format!(",arg={name}={value}"));
        }
        let mut emulator = emulator(image, &semihosting);
        let output = emulator.stdout.take().expect("it is piped");
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Self {
            emulator,
            lines,
            results: BTreeMap::new(),
            ends_at: Instant::now() + LIMIT,
            _turn: turn,
        }
    }

    /// Waits until the firmware has written `name=..`; what it wrote there.
    pub(crate) fn wait_for(&mut self, name: &str) -> String {
        loop {
            let left = self.ends_at.saturating_duration_since(Instant::now());
            let line = self.lines.recv_timeout(left).unwrap_or_else(|error| {
                panic!("no {name} from the firmware ({error}); until then: {self:#?}")
            });
            let Some((key, value)) = line.split_once('=') else {
                panic!("the firmware wrote '{line}'");
            };
            self.results.insert(key.to_owned(), value.to_owned());
            if key == name {
                return value.to_owned();
            }
        }
    }

    /// A number that the firmware has written.
    pub(crate) fn number(&self, name: &str) -> u64 {
        let value = self.results.get(name);
        value
            .and_then(|value| value.parse().ok())
            .unwrap_or_else(|| panic!("no number {name} from the firmware: {:?}", self.results))
    }

    /// Waits until the firmware has closed its nodes, sees that no server has a client any more, and lets
    /// the firmware end.
    pub(crate) async fn finish(&mut self, servers: &Servers, control: &Server) {
        self.wait_for("closed");
        // The firmware still runs: its end would close connections that it had forgotten.
        eventually(
            "no client is left on any server",
            Duration::from_secs(5),
            || servers.iter().all(|server| server.client_count() == 0),
        )
        .await;
        order(control, "exit");
        let limit = Duration::from_secs(10);
        eventually("the firmware ends", limit, || self.has_ended()).await;
        assert!(
            self.emulator.wait().unwrap().success(),
            "{:?}",
            self.results
        );
    }

    fn has_ended(&mut self) -> bool {
        self.emulator.try_wait().unwrap().is_some()
    }
}

impl Drop for Firmware {
    fn drop(&mut self) {
        // It may have ended already.
        drop(self.emulator.kill());
        drop(self.emulator.wait());
    }
}

/// Tells the firmware what to do next.
pub(crate) fn order(control: &Server, order: &str) {
    let _: u64 = control.query(&["RPUSH", "orders", order]).unwrap();
}

const EMULATOR: &str = "qemu-system-arm";

fn expect_emulator() {
    match Command::new(EMULATOR).arg("--version").output() {
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::NotFound => {
            panic!("{EMULATOR} is missing, in which the firmware runs; ./test.sh installs it")
        }
        Err(error) => panic!("{EMULATOR}: {error}"),
    }
}

fn emulator(image: &Path, semihosting: &str) -> Child {
    // The thread of a test lives as long as the test does.
    Command::new("setpriv")
        .args(["--pdeathsig", "KILL", EMULATOR])
        .args(["-machine", "mps2-an386", "-nodefaults", "-display", "none"])
        .args(["-monitor", "none", "-serial", "none"])
        .args(["-nic", "user,model=lan9118"])
        .args(["-semihosting-config", semihosting, "-kernel"])
        .arg(image)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .expect("setpriv is installed; ./test.sh installs it")
}

/// The firmware's image, built when the first test wants it.
static IMAGE: LazyLock<PathBuf> = LazyLock::new(|| {
    const TARGET: &str = "thumbv7em-none-eabihf";

    // This program is in debug/deps of the target directory.
    let program = std::env::current_exe().unwrap();
    let target_directory = program.ancestors().nth(3).unwrap().join("firmware");
    let status = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["build", "--release"])
        // The target and the profile of the firmware are found from its folder.
        .current_dir(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../examples/boards/mps2-an386"
        ))
        .env("CARGO_TARGET_DIR", &target_directory)
        // These are about the host's packages.
        .env_remove("CARGO_BUILD_TARGET")
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .env_remove("RUSTFLAGS")
        .status()
        .expect("cargo runs these tests");
    assert!(
        status.success(),
        "the firmware cannot be built; the target {TARGET} is installed by ./test.sh"
    );
    target_directory
        .join(TARGET)
        .join("release/redlock-mps2-an386")
});
