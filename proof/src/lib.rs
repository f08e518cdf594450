//! What shows that the lock keeps its promises: every order of events in a small world ([`model`]), worlds made up from a
//! seed ([`simulation`]), and real servers that are broken on purpose ([`chaos`]). [`exclusion`] is their judge. [`load`]
//! measures the lock under load and beside a hostile node.

pub mod chaos;
pub mod exclusion;
pub mod load;
pub mod model;
pub mod simulation;
