//! How much memory the parts of the lock take. Needs no server.

use semihosting::println;

use crate::lock::{Lock, Node};

pub(crate) fn print(lock: &mut Lock) {
    println!("redlock={}", size_of::<Lock>());
    println!("node={}", size_of::<Node>());
    println!("acquire={}", size_of_val(&lock.acquire("dock-7")));
}
