//! What goes to a node and comes back, in the words of Redis.

mod answer;
mod argument;
mod script;

pub use answer::Answer;
pub(crate) use argument::word;
pub use argument::{Argument, Arguments};
pub use script::{Script, ScriptCall};
