//! The wall clock of one process, which a test steps or stops while the process runs.
//!
//! A library of a few lines of C is compiled into a directory of the test and preloaded: it answers the
//! process's questions for the time with what stands in a small file. libfaketime would not do, under which
//! redis-server hangs at its start.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU8, Ordering};

/// It shows the machine's time until it is set.
#[derive(Debug)]
pub struct StepClock {
    library: PathBuf,
    path: PathBuf,
    file: File,
    /// Which of the two readings in the file counts.
    current: AtomicU8,
}

impl StepClock {
    /// A clock whose files are in `directory`.
    ///
    /// # Errors
    ///
    /// If there is no C compiler, or the files cannot be written.
    pub fn create(directory: &Path) -> io::Result<Self> {
        let library = directory.join("step_clock.so");
        compile(&directory.join("step_clock.c"), &library)?;
        let path = directory.join("step_clock");
        let mut options = File::options();
        let file = options
            .read(true)
            .write(true)
            .create_new(true)
            .open(&path)?;
        file.write_all_at(&[0; FILE_LEN], 0)?;
        Ok(Self {
            library,
            path,
            file,
            current: AtomicU8::new(0),
        })
    }

    /// What a process needs in its environment to live by this clock.
    #[must_use]
    pub fn environment(&self) -> [(&'static str, &Path); 2] {
        [("LD_PRELOAD", &self.library), ("STEP_CLOCK", &self.path)]
    }

    /// Goes on, `micros` ahead of the machine's clock.
    ///
    /// # Errors
    ///
    /// If the file cannot be written.
    pub fn step(&self, micros: i64) -> io::Result<()> {
        self.set(micros, false)
    }

    /// Stands still at `micros` since 1970.
    ///
    /// # Errors
    ///
    /// If the file cannot be written.
    pub fn stop(&self, micros: i64) -> io::Result<()> {
        self.set(micros, true)
    }

    /// A reading is not written where the process may be reading one.
    fn set(&self, micros: i64, is_stopped: bool) -> io::Result<()> {
        let next = 1 - self.current.load(Ordering::Relaxed);
        let mut reading = [0; READING_LEN];
        let (left, right) = reading.split_at_mut(READING_LEN / 2);
        left.copy_from_slice(&micros.to_ne_bytes());
        right.copy_from_slice(&i64::from(is_stopped).to_ne_bytes());
        self.file
            .write_all_at(&reading, u64::from(next) * READING_LEN as u64)?;
        self.file.write_all_at(&[next], 2 * READING_LEN as u64)?;
        self.current.store(next, Ordering::Relaxed);
        Ok(())
    }
}

fn compile(source: &Path, library: &Path) -> io::Result<()> {
    fs::write(source, include_str!("step_clock.c"))?;
    let output = Command::new("cc")
        .args([
            "-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-Werror", "-o",
        ])
        .args([library, source])
        .output()
        .map_err(|error| {
            let why =
                format!("cc: {error}; it comes with gcc and libc6-dev, which ./test.sh installs");
            io::Error::new(error.kind(), why)
        })?;
    if output.status.success() {
        return Ok(());
    }
    let why = String::from_utf8_lossy(&output.stderr);
    Err(io::Error::other(format!("cc: {}", why.trim())))
}

/// Two numbers of 64 bits, as the library has them.
const READING_LEN: usize = 16;

/// Two readings and which of them counts.
const FILE_LEN: usize = 2 * READING_LEN + 8;
