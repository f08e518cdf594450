//! What the lock protects: a file that is read and written by each client that thinks that it holds the lock. Nothing
//! else protects it.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::said::{Mark, Use};

#[derive(Debug)]
pub(super) struct Resource {
    file: File,
    /// What the next use leaves.
    next: Mark,
}

impl Resource {
    /// An unused one at `path`.
    pub(super) fn create(path: &Path) -> io::Result<()> {
        let unused = Mark { voice: 0, count: 0 };
        File::create(path)?.write_all_at(&written(unused), 0)
    }

    /// The one at `path`, to be used as `voice`.
    pub(super) fn open(path: &Path, voice: usize) -> io::Result<Self> {
        let file = File::options().read(true).write(true).open(path)?;
        let next = Mark { voice, count: 1 };
        Ok(Self { file, next })
    }

    /// The first half of a use.
    pub(super) fn read(&self) -> io::Result<Option<Mark>> {
        let mut bytes = [0; LENGTH];
        self.file.read_exact_at(&mut bytes, 0)?;
        Ok(str::from_utf8(&bytes)
            .ok()
            .and_then(|text| text.trim().parse().ok()))
    }

    /// The second half of a use.
    pub(super) fn write(&mut self, found: Option<Mark>) -> io::Result<Use> {
        let left = self.next;
        self.file.write_all_at(&written(left), 0)?;
        self.next.count += 1;
        Ok(Use { found, left })
    }
}

/// Always as long, so that one write replaces what was there.
fn written(mark: Mark) -> [u8; LENGTH] {
    let mut bytes = [b' '; LENGTH];
    for (to, from) in bytes.iter_mut().zip(mark.to_string().bytes()) {
        *to = from;
    }
    bytes
}

/// Two numbers of 64 bits and a dot.
const LENGTH: usize = 41;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_use_finds_what_the_last_one_left() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("resource");
        Resource::create(&path).unwrap();
        let mut one = Resource::open(&path, 10).unwrap();
        let mut other = Resource::open(&path, 9).unwrap();
        let mut found = Vec::new();
        for user in [&mut one, &mut other] {
            for _ in 0..2 {
                let read = user.read().unwrap();
                found.push(read.unwrap().to_string());
                user.write(read).unwrap();
            }
        }
        assert_eq!(found, ["0.0", "10.1", "10.2", "9.1"]);
    }
}
