//! Redis commands and answers.

mod answer;
mod argument;
mod script;

pub use answer::Answer;
pub(crate) use argument::word;
pub use argument::{Argument, Arguments};
pub use script::{Script, ScriptCall};
