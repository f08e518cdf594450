//! What stands before a resource that a fenced lock protects: a client that shows a lower fence than one before
//! it is turned away, even if it believes that its lease is valid.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use redlock_core::{Fence, FenceGate};
use rustix::fs::{FlockOperation, flock};

/// What it has seen is in a file beside the resource, which one process at a time may look at.
#[derive(Debug)]
pub(super) struct Gate(File);

impl Gate {
    /// One that has seen no client.
    pub(super) fn create(resource: &Path) -> io::Result<()> {
        File::create(path(resource))?.write_all_at(&[0; 8], 0)
    }

    pub(super) fn open(resource: &Path) -> io::Result<Self> {
        let mut options = File::options();
        options
            .read(true)
            .write(true)
            .open(path(resource))
            .map(Self)
    }

    /// Does what is to be done at the resource, unless a client has shown a higher fence.
    pub(super) fn admit<T>(
        &self,
        fence: Fence,
        act: impl FnOnce() -> io::Result<T>,
    ) -> io::Result<Option<T>> {
        flock(&self.0, FlockOperation::LockExclusive)?;
        let result = self.act_if_admitted(fence, act);
        flock(&self.0, FlockOperation::Unlock)?;
        result
    }

    fn act_if_admitted<T>(
        &self,
        fence: Fence,
        act: impl FnOnce() -> io::Result<T>,
    ) -> io::Result<Option<T>> {
        let mut seen = [0; 8];
        self.0.read_exact_at(&mut seen, 0)?;
        let mut gate = FenceGate::above(Fence::from_u64(u64::from_ne_bytes(seen)));
        if !gate.admit(fence) {
            return Ok(None);
        }
        self.0
            .write_all_at(&gate.highest().as_u64().to_ne_bytes(), 0)?;
        act().map(Some)
    }
}

fn path(resource: &Path) -> PathBuf {
    resource.with_extension("gate")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_client_is_let_in_after_one_with_a_higher_fence() {
        let directory = tempfile::tempdir().unwrap();
        let resource = directory.path().join("resource");
        Gate::create(&resource).unwrap();
        let gates = [(); 2].map(|()| Gate::open(&resource).unwrap());
        let admitted = [7, 7, 9, 7, 9].iter().zip(gates.iter().cycle());
        let admitted = admitted.map(|(fence, gate)| {
            let act = gate.admit(Fence::from_u64(*fence), || Ok(()));
            act.unwrap().is_some()
        });
        assert!(admitted.eq([true, true, true, false, true]));
    }
}
