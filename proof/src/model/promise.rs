//! The promises by name.

pub(super) const EXCLUSION: &str = "no two clients hold the lock at once";
pub(super) const QUORUM: &str = "a lease that is valid stands on a quorum of nodes";
pub(super) const CLEAN: &str = "what is over leaves no key on a node that is connected";
pub(super) const FENCE: &str = "fences are unique, and grow from lease to lease";
pub(super) const BURN: &str = "what was released does not come back";
pub(super) const AGAIN: &str = "a lock that no client holds can be acquired";
pub(super) const RECOVERY: &str = "whichever node is down, the others grant the lock again";
pub(super) const REWRITTEN: &str =
    "a node that has lost its record gets it back, however late it answers";

// What a search must come across, or it is not worth much.
pub(super) const ACQUIRED: &str = "a client acquires the lock";
pub(super) const HANDED_ON: &str = "a lock is acquired when the lease of another is over";
pub(super) const RESTORED: &str = "the guard record of a node is written again";
pub(super) const SIGHTS: [&str; 3] = [ACQUIRED, HANDED_ON, RESTORED];
