//! A scanner, as one for viruses: a file is opened or executed only after the scanner has looked at it.

use std::os::fd::AsFd;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

use nix::errno::Errno;
use nix::sys::fanotify::{
    EventFFlags, Fanotify, FanotifyResponse, InitFlags, MarkFlags, MaskFlags, Response,
};

/// Holds up those that open or execute the files that it watches, while it is slow. They go on at its end.
#[derive(Debug, Default)]
pub(crate) struct Scanner {
    pace: Arc<Pace>,
}

#[derive(Debug, Default)]
struct Pace {
    is_slow: Mutex<bool>,
    changed: Condvar,
}

impl Scanner {
    /// Watches who executes this file. `None` if this process may not watch: it takes rights of an administrator.
    pub(crate) fn of_program(program: &Path) -> Option<Self> {
        Self::start(program, MaskFlags::FAN_OPEN_EXEC_PERM)
    }

    /// Watches who opens a file in this folder. `None` as above.
    pub(crate) fn of_folder(folder: &Path) -> Option<Self> {
        let in_it = MaskFlags::FAN_OPEN_PERM | MaskFlags::FAN_EVENT_ON_CHILD;
        Self::start(folder, in_it)
    }

    fn start(path: &Path, what: MaskFlags) -> Option<Self> {
        let scanner = Self::default();
        let flags = InitFlags::FAN_CLASS_CONTENT | InitFlags::FAN_CLOEXEC;
        let events = match Fanotify::init(flags, EventFFlags::O_RDONLY | EventFFlags::O_CLOEXEC) {
            Ok(events) => events,
            Err(Errno::EPERM | Errno::ENOSYS) => {
                println!("not tested: this process may not watch files");
                return None;
            }
            Err(error) => panic!("{error}"),
        };
        let here = std::fs::File::open(".").unwrap();
        let marked = events.mark(MarkFlags::FAN_MARK_ADD, what, here.as_fd(), Some(path));
        marked.unwrap();
        let pace = Arc::clone(&scanner.pace);
        thread::spawn(move || {
            while let Ok(opened) = events.read_events() {
                for event in &opened {
                    let slow = pace.is_slow.lock().unwrap();
                    drop(pace.changed.wait_while(slow, |is_slow| *is_slow).unwrap());
                    let allowed = FanotifyResponse::new(event.fd().unwrap(), Response::FAN_ALLOW);
                    // The process that wanted it may have been killed.
                    let _gone = events.write_response(allowed);
                }
            }
        });
        Some(scanner)
    }

    pub(crate) fn slow_down(&self) {
        *self.pace.is_slow.lock().unwrap() = true;
    }

    pub(crate) fn go_on(&self) {
        *self.pace.is_slow.lock().unwrap() = false;
        self.pace.changed.notify_all();
    }
}

impl Drop for Scanner {
    fn drop(&mut self) {
        self.go_on();
    }
}
