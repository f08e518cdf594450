//! The firmware of `examples/boards/mps2-an386`, built for the host's tests and run in an emulator.

use std::env;
use std::error::Error;
use std::io::{self, BufRead, BufReader, ErrorKind};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::Duration;

use crate::child;

/// A running firmware. It ends with its handle, and with this process.
#[derive(Debug)]
pub struct Emulator {
    process: Child,
    lines: Receiver<String>,
}

impl Emulator {
    /// Whether there is an emulator to be started.
    ///
    /// # Errors
    ///
    /// When there is one that does not run.
    pub fn is_installed() -> io::Result<bool> {
        match Command::new(EMULATOR).arg("--version").output() {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The image of the firmware, built if it is not up to date.
    ///
    /// # Errors
    ///
    /// When it cannot be built.
    pub fn image() -> Result<PathBuf, Box<dyn Error>> {
        const TARGET: &str = "thumbv7em-none-eabihf";

        // This program is in debug/ or release/ of the target directory, a test in deps/ there.
        let program = env::current_exe()?;
        let target_directory = program
            .ancestors()
            .skip(1)
            .find(|folder| !folder.ends_with("deps"))
            .and_then(Path::parent)
            .ok_or("this program is not where cargo puts programs")?
            .join("firmware");
        let status = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
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
            .map_err(|error| format!("cargo, which builds the firmware: {error}"))?;
        if !status.success() {
            let why = format!(
                "the firmware cannot be built; the target {TARGET} is installed by ./test.sh"
            );
            return Err(why.into());
        }
        Ok(target_directory
            .join(TARGET)
            .join("release/redlock-mps2-an386"))
    }

    /// Boots the firmware at `image` with these arguments.
    ///
    /// # Errors
    ///
    /// When the emulator cannot be started.
    pub fn boot(image: &Path, arguments: &[(&str, String)]) -> io::Result<Self> {
        let mut semihosting = "enable=on,target=native,arg=firmware".to_owned();
        for (name, value) in arguments {
            semihosting.push_str(&format!(",arg={name}={value}"));
        }
        let mut command = child::bound(EMULATOR);
        command
            .args(["-machine", "mps2-an386", "-nodefaults", "-display", "none"])
            .args(["-monitor", "none", "-serial", "none"])
            .args(["-nic", "user,model=lan9118"])
            .args(["-semihosting-config", &semihosting, "-kernel"])
            .arg(image)
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        let mut process = child::spawn(command)?;
        let (sender, lines) = mpsc::channel();
        if let Some(output) = process.stdout.take() {
            std::thread::spawn(move || {
                for line in BufReader::new(output).lines().map_while(Result::ok) {
                    if sender.send(line).is_err() {
                        break;
                    }
                }
            });
        }
        Ok(Self { process, lines })
    }

    /// The next line that the firmware writes.
    ///
    /// # Errors
    ///
    /// When it writes none within `limit`, or has ended.
    pub fn next_line(&self, limit: Duration) -> Result<String, RecvTimeoutError> {
        self.lines.recv_timeout(limit)
    }

    /// How it ended; none while it runs.
    ///
    /// # Errors
    ///
    /// When the operating system does not say.
    pub fn end(&mut self) -> io::Result<Option<ExitStatus>> {
        self.process.try_wait()
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        child::end(&mut self.process);
    }
}

const EMULATOR: &str = "qemu-system-arm";
