//! Reading of the files that options name.

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

use crate::echo;

/// Reads the whole `file` that `option` names, `wanted`: a regular file of 1 to `most_bytes` bytes, or an open pipe, as in
/// `--tls-key <(COMMAND)`.
///
/// Opening a named pipe blocks until there is a writer, and a device may have no end. A file that the kernel generates has
/// a length of 0, and reading it may block, for example `/proc/kmsg`.
pub(crate) fn read(
    option: &str,
    file: &Path,
    wanted: &str,
    most_bytes: u64,
) -> Result<Vec<u8>, String> {
    let refused = |why: &str| format!("{option} {} {why}: name {wanted}", echo::file(file));
    if let Ok(found) = fs::metadata(file) {
        if !found.is_file() && !is_open_pipe(file, &found) {
            return Err(refused("is not a regular file"));
        }
        if found.is_file() && found.len() == 0 {
            return Err(refused("is empty"));
        }
    }
    let mut content = Vec::new();
    let read =
        File::open(file).and_then(|file| file.take(most_bytes + 1).read_to_end(&mut content));
    match read {
        Ok(count) if count as u64 > most_bytes => {
            let most = match most_bytes >> 20 {
                0 => format!("{} KiB", most_bytes >> 10),
                most => format!("{most} MiB"),
            };
            Err(refused(&format!("is longer than {most}")))
        }
        Ok(_) => Ok(content),
        Err(error) => Err(format!(
            "{option} {} cannot be read: {error}",
            echo::file(file)
        )),
    }
}

/// Whether the shell has opened this pipe for us.
#[cfg(unix)]
fn is_open_pipe(file: &Path, found: &fs::Metadata) -> bool {
    use std::os::unix::fs::FileTypeExt;

    let is_pipe = found.file_type().is_fifo();
    is_pipe
        && ["/dev/fd", "/dev/stdin", "/proc/self/fd"]
            .iter()
            .any(|fds| file.starts_with(fds))
}

#[cfg(not(unix))]
fn is_open_pipe(_: &Path, _: &fs::Metadata) -> bool {
    false
}
