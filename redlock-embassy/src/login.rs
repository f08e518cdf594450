//! What is said to a node before the first command.

use redlock_core::Argument;

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
    pub(crate) fn command(
        &self,
        done: u8,
    ) -> Option<impl Iterator<Item = Argument<'a>> + Clone + use<'a>> {
        let text = |text: &'a str| Argument::Bytes(text.as_bytes());
        let authenticate = self.password.map(|password| {
            [
                Some(text("AUTH")),
                self.user.map(text),
                Some(text(password)),
            ]
        });
        let select = (self.database > 0).then(|| {
            let database = Argument::Integer(self.database.into());
            [Some(text("SELECT")), Some(database), None]
        });
        let commands = [authenticate, select];
        let words = commands.into_iter().flatten().nth(done.into())?;
        Some(words.into_iter().flatten())
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
