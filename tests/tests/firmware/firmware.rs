//! The firmware, built once; one at a time.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use redlock_tests::{Emulator, Server, Servers, eventually, expect_no_secret};

/// A running firmware. It ends with its handle, and with this process.
#[derive(Debug)]
pub(crate) struct Firmware {
    emulator: Emulator,
    /// What it has written, by name; the last one where a name came again.
    results: BTreeMap<String, String>,
    ends_at: Instant,
    /// Emulators run one after the other: they are measured, and have timeouts.
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

        let image = &*IMAGE;
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let ports: Vec<_> = servers
            .iter()
            .map(|server| server.port().to_string())
            .collect();
        let mut all = vec![
            ("scenario", scenario.to_owned()),
            ("nodes", ports.join(":")),
            ("control", control.port().to_string()),
        ];
        all.extend_from_slice(arguments);
        Self {
            emulator: Emulator::boot(image, &all)
                .expect("setpriv is installed; ./test.sh installs it"),
            results: BTreeMap::new(),
            ends_at: Instant::now() + LIMIT,
            _turn: turn,
        }
    }

    /// Waits until the firmware has written `name=..`; what it wrote there. Nothing that it writes may be a secret.
    pub(crate) fn wait_for(&mut self, name: &str) -> String {
        loop {
            let left = self.ends_at.saturating_duration_since(Instant::now());
            let line = self.emulator.next_line(left).unwrap_or_else(|error| {
                panic!("no {name} from the firmware ({error}); until then: {self:#?}")
            });
            expect_no_secret(&line);
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
        while let Ok(line) = self.emulator.next_line(limit) {
            expect_no_secret(&line);
        }
        let status = self.emulator.end().unwrap();
        assert!(
            status.is_some_and(|status| status.success()),
            "{:?}",
            self.results
        );
    }

    fn has_ended(&mut self) -> bool {
        self.emulator.end().unwrap().is_some()
    }
}

/// Tells the firmware what to do next.
pub(crate) fn order(control: &Server, order: &str) {
    let _: u64 = control.query(&["RPUSH", "orders", order]).unwrap();
}

/// The firmware's image, built when the first test wants it.
static IMAGE: LazyLock<PathBuf> = LazyLock::new(|| {
    let is_installed = Emulator::is_installed().unwrap();
    assert!(
        is_installed,
        "qemu-system-arm is missing, in which the firmware runs; ./test.sh installs it"
    );
    Emulator::image().unwrap_or_else(|error| panic!("{error}"))
});
