//! The login: what is sent to a node before the first command.

#[cfg(feature = "fence")]
use redlock_core::transport::Script;
use redlock_core::transport::{Argument, Arguments, NodeInfo};

/// The credentials and the database of the client.
#[derive(Clone, Copy, Default)]
pub(crate) struct Login<'a> {
    pub(crate) user: Option<&'a str>,
    pub(crate) password: Option<&'a str>,
    pub(crate) database: u16,
}

/// One step of the login. It is sent after the step before it is answered.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Step {
    Authenticate,
    Select,
    /// Asks the node for its identity, ahead of the scripts.
    #[cfg(feature = "fence")]
    NodeInfoAndScripts,
    /// Loads the script of fenced locks with this number, and those below it: they are too long to be sent with each
    /// command. From [`Step::ONLY`] on, only one script is loaded.
    #[cfg(feature = "fence")]
    LoadScript(u8),
    /// Asks the node for its identity.
    NodeInfo,
}

impl<'a> Login<'a> {
    /// The words of `step`. `None` if the step is not needed.
    pub(crate) fn words(&self, step: Step) -> Option<Arguments<'a>> {
        let text = |text: &'a str| Argument::Bytes(text.as_bytes());
        match (step, self.user, self.password) {
            (Step::Authenticate, Some(user), Some(password)) => {
                Some(Arguments::of(&[text("AUTH"), text(user), text(password)]))
            }
            (Step::Authenticate, None, Some(password)) => {
                Some(Arguments::of(&[text("AUTH"), text(password)]))
            }
            (Step::Authenticate, _, None) => None,
            (Step::Select, ..) if self.database == 0 => None,
            (Step::Select, ..) => {
                let database = Argument::Integer(self.database.into());
                Some(Arguments::of(&[text("SELECT"), database]))
            }
            #[cfg(feature = "fence")]
            (Step::LoadScript(number), ..) => {
                let script = Script::FENCED.get(usize::from(number % Step::ONLY))?;
                Some(Arguments::of(&[
                    text("SCRIPT"),
                    text("LOAD"),
                    text(script.text()),
                ]))
            }
            _ => Some(NodeInfo::question()),
        }
    }
}

impl Step {
    pub(crate) const FIRST: Self = Self::Authenticate;

    /// The step that is repeated if what is known of the node may be out of date.
    pub(crate) const LAST: Self = Self::NodeInfo;

    /// The first step that is repeated if the node has lost its scripts. After that error, an acquire would ask for the
    /// identity anyway; asked first, it leaves less time between the scripts and the acquire for losing them again.
    #[cfg(feature = "fence")]
    pub(crate) const SCRIPTS: Self = Self::NodeInfoAndScripts;

    /// See [`Step::LoadScript`].
    #[cfg(feature = "fence")]
    const ONLY: u8 = 3;

    /// The only step that is repeated if the node has lost the script of an extension or a release. If the other scripts
    /// were loaded after it, another client would have more time to flush it again.
    #[cfg(feature = "fence")]
    pub(crate) const EXTEND_SCRIPT: Self = Self::LoadScript(Self::ONLY + 1);
    #[cfg(feature = "fence")]
    pub(crate) const RELEASE_SCRIPT: Self = Self::LoadScript(Self::ONLY + 2);

    /// Whether it asks the node for its identity.
    pub(crate) const fn is_node_info(self) -> bool {
        match self {
            #[cfg(feature = "fence")]
            Self::NodeInfoAndScripts => true,
            step => matches!(step, Self::NodeInfo),
        }
    }

    /// The next step. `None` after the last.
    pub(crate) const fn next(self) -> Option<Self> {
        match self {
            Self::Authenticate => Some(Self::Select),
            #[cfg(not(feature = "fence"))]
            Self::Select => Some(Self::NodeInfo),
            #[cfg(feature = "fence")]
            Self::Select => Some(Self::SCRIPTS),
            // Downwards: the script of an acquire is loaded last, just before an acquire is sent again.
            #[cfg(feature = "fence")]
            Self::NodeInfoAndScripts => Some(Self::LoadScript(2)),
            #[cfg(feature = "fence")]
            Self::LoadScript(number @ 1..Self::ONLY) => Some(Self::LoadScript(number - 1)),
            #[cfg(feature = "fence")]
            Self::LoadScript(_) => None,
            Self::NodeInfo => None,
        }
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
