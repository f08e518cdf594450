//! What is said to a node before the first command.

use redlock_core::{Argument, Arguments};

/// Who we are, and which database is ours.
#[derive(Clone, Copy, Default)]
pub(crate) struct Login<'a> {
    pub(crate) user: Option<&'a str>,
    pub(crate) password: Option<&'a str>,
    pub(crate) database: u16,
}

impl<'a> Login<'a> {
    /// The command after `done` of them; none after the last one. To each of them a node that lets us in
    /// answers `OK`.
    pub(crate) fn command(&self, done: u8) -> Option<Arguments<'a>> {
        let text = |text: &'a str| Some(Argument::Bytes(text.as_bytes()));
        let words = match (self.password, self.user, done) {
            (Some(password), Some(user), 0) => [text("AUTH"), text(user), text(password)],
            (Some(password), None, 0) => [text("AUTH"), text(password), None],
            (Some(_), _, 1) | (None, _, 0) if self.database > 0 => {
                let database = Argument::Integer(self.database.into());
                [text("SELECT"), Some(database), None]
            }
            _ => return None,
        };
        let [first, second, third] = words;
        Some(Arguments::new([first, second, third, None, None, None]))
    }
}

impl core::fmt::Debug for Login<'_> {
    /// Without the password.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Login")
            .field("user", &self.user)
            .field("has_password", &self.password.is_some())
            .field("database", &self.database)
            .finish()
    }
}
