//! The login: the commands that the client sends on a new connection, before the commands of locks.

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

/// One step of the login: one command. It is sent when the step before it is answered, or at once if that step
/// [is pipelined](Step::is_pipelined).
#[derive(Debug, Clone, Copy)]
pub(crate) enum Step {
    Authenticate,
    Select,
    /// Asks the node for its identity. The steps that load the scripts follow. No step of a new connection: the scripts are
    /// loaded only if the node answers that it lacks them.
    #[cfg(feature = "fence")]
    NodeInfoAndScripts,
    /// Loads one script of fenced locks. The scripts are too long to be sent with each command.
    ///
    /// A number below [`Step::SCRIPT_COUNT`] is an index into `Script::FENCED`, and the steps with the lower indices follow.
    /// An index plus `Step::SCRIPT_COUNT` is the last step: no other script is loaded.
    #[cfg(feature = "fence")]
    LoadScript(u8),
    /// Asks the node for its identity.
    NodeInfo,
}

impl<'a> Login<'a> {
    /// The command of `step`. `None` if the step is not needed.
    pub(crate) fn arguments(&self, step: Step) -> Option<Arguments<'a>> {
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
                let script = Script::FENCED.get(usize::from(number % Step::SCRIPT_COUNT))?;
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

    /// The step that is repeated if the recorded identity or role of the node may be out of date.
    pub(crate) const IDENTITY: Self = Self::NodeInfo;

    /// The first step that is repeated if the node has lost its scripts.
    ///
    /// After that error, an acquire needs the identity of the node anyway. Asking for the identity before the scripts are
    /// loaded leaves another client less time to flush the scripts again before the acquire.
    #[cfg(feature = "fence")]
    pub(crate) const SCRIPTS: Self = Self::NodeInfoAndScripts;

    /// Whether the next step is sent before this one is answered: the answer must be `OK`. Never without the feature `fence`,
    /// because this takes 400 bytes of flash.
    pub(crate) const fn is_pipelined(self) -> bool {
        cfg!(feature = "fence") && matches!(self, Self::Authenticate | Self::Select)
    }

    /// The number of scripts. Added to the index of a script, it means that only this script is loaded: see
    /// [`Step::LoadScript`].
    #[cfg(feature = "fence")]
    const SCRIPT_COUNT: u8 = 3;

    /// The only step that is repeated before an extension is sent again. Loading the other scripts as well would leave
    /// another client more time to flush this one again.
    #[cfg(feature = "fence")]
    pub(crate) const EXTEND_SCRIPT: Self = Self::LoadScript(Self::SCRIPT_COUNT + 1);
    /// The only step that is repeated before a release is sent again.
    #[cfg(feature = "fence")]
    pub(crate) const RELEASE_SCRIPT: Self = Self::LoadScript(Self::SCRIPT_COUNT + 2);

    /// Whether this step asks the node for its identity.
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
            Self::Select => Some(Self::NodeInfo),
            // In descending order: the script of an acquire is loaded last, just before an acquire is sent again.
            #[cfg(feature = "fence")]
            Self::NodeInfoAndScripts => Some(Self::LoadScript(2)),
            #[cfg(feature = "fence")]
            Self::LoadScript(number @ 1..Self::SCRIPT_COUNT) => Some(Self::LoadScript(number - 1)),
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
