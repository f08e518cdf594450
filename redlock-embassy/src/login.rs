//! The login: the commands that the client sends on a new connection, before the commands of locks.

#[cfg(feature = "queue")]
use redlock_core::transport::LineWord;
use redlock_core::transport::{Argument, Arguments, NodeInfo};
#[cfg(feature = "scripts")]
use redlock_core::transport::{Command, Script, Verb};

#[cfg(feature = "client-name")]
use crate::client_name::ClientName;
use crate::mail::Mail;

/// The credentials and the database of the client.
#[derive(Clone, Copy, Default)]
pub(crate) struct Login<'a> {
    pub(crate) user: Option<&'a str>,
    pub(crate) password: Option<&'a str>,
    pub(crate) database: u16,
    #[cfg(feature = "client-name")]
    pub(crate) client_name: Option<ClientName<'a>>,
}

/// One step of the login: one command. It is sent when the step before it is answered, or at once if that step
/// [is pipelined](Step::is_pipelined).
#[derive(Debug, Clone, Copy)]
pub(crate) enum Step {
    Authenticate,
    Select,
    /// Names the connection. The server may reject it.
    #[cfg(feature = "client-name")]
    Name,
    /// Asks the node for its identity. The steps that load the scripts follow. No step of a new connection: the scripts are
    /// loaded only if the node answers that it lacks them.
    #[cfg(feature = "scripts")]
    NodeInfoAndScripts,
    /// Loads one script of fenced locks, or of locks with a line. These scripts are too long to be sent with each command.
    ///
    /// If the number is below [`Step::SCRIPT_COUNT`], the steps with the lower numbers follow. A number plus `Step::SCRIPT_COUNT`
    /// is the last step: no other script is loaded.
    #[cfg(feature = "scripts")]
    LoadScript(u8),
    /// Switches to RESP3, in which messages come between replies. The steps that subscribe follow. No step of a new connection:
    /// a client subscribes when it stands in a line for the first time.
    #[cfg(feature = "queue")]
    Hello,
    /// Subscribes to the mailbox of the client.
    #[cfg(feature = "queue")]
    Subscribe,
    /// Sends an empty message to the mailbox: it must arrive at one client.
    #[cfg(feature = "queue")]
    Publish,
    /// Asks the node for its identity.
    NodeInfo,
}

impl<'a> Login<'a> {
    /// The command of `step`. `None` if the step is not needed.
    #[cfg_attr(
        not(feature = "scripts"),
        expect(unused_variables, reason = "no other step needs it")
    )]
    pub(crate) fn arguments(&self, step: Step, mail: &Mail) -> Option<Arguments<'a>> {
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
            #[cfg(feature = "client-name")]
            (Step::Name, ..) => {
                let name = text(self.client_name?.as_str());
                Some(Arguments::of(&[text("CLIENT"), text("SETNAME"), name]))
            }
            #[cfg(feature = "scripts")]
            (Step::LoadScript(number), ..) => {
                let script = script(number % Step::SCRIPT_COUNT, mail)?;
                Some(Arguments::of(&[
                    text("SCRIPT"),
                    text("LOAD"),
                    text(script.text()),
                ]))
            }
            #[cfg(feature = "queue")]
            (Step::Hello, ..) => Some(Arguments::of(&[text("HELLO"), text("3")])),
            #[cfg(feature = "queue")]
            (Step::Subscribe, ..) => {
                let channel = Argument::Line(LineWord::Channel(mail.mailbox()?));
                Some(Arguments::of(&[text("SUBSCRIBE"), channel]))
            }
            #[cfg(feature = "queue")]
            (Step::Publish, ..) => {
                let channel = Argument::Line(LineWord::Channel(mail.mailbox()?));
                Some(Arguments::of(&[text("PUBLISH"), channel, text("")]))
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
    #[cfg(feature = "scripts")]
    pub(crate) const SCRIPTS: Self = Self::NodeInfoAndScripts;

    /// The first step that subscribes to the mailbox.
    #[cfg(feature = "queue")]
    pub(crate) const SUBSCRIPTION: Self = Self::Hello;

    /// The only step that loads the script with which plain locks are released if the node keeps a line.
    #[cfg(feature = "queue")]
    pub(crate) const RELEASE_SCRIPT: Self = Self::LoadScript(Self::SCRIPT_COUNT + QUEUED + 1);

    /// Whether the next step is sent before this one is answered: the answer must be `OK`, or does not count if the step
    /// [is optional](Self::is_optional). The first two steps are not pipelined without the feature `fence` or `queue`, because this
    /// takes 400 bytes of flash.
    pub(crate) const fn is_pipelined(self) -> bool {
        let is_before = matches!(self, Self::Authenticate | Self::Select);
        cfg!(feature = "scripts") && is_before || self.is_optional()
    }

    /// Whether the connection is used also if the server rejects this step.
    pub(crate) const fn is_optional(self) -> bool {
        match self {
            #[cfg(feature = "client-name")]
            Self::Name => true,
            _ => false,
        }
    }

    /// The number of scripts. Added to the number of a script, it means that only this script is loaded: see
    /// [`Step::LoadScript`].
    #[cfg(feature = "scripts")]
    const SCRIPT_COUNT: u8 = if cfg!(feature = "queue") { 7 } else { 3 };

    /// The only step that is repeated before `command`, an extension or a release, is sent again. Loading the other scripts as
    /// well would leave another client more time to flush this one again. `None` if `command` is an acquire.
    #[cfg(feature = "scripts")]
    pub(crate) const fn only_script_of(command: &Command<'_>) -> Option<Self> {
        let number = match (command.verb, command.is_fenced(), command.place.is_some()) {
            (Verb::Acquire { .. }, ..) => return None,
            (Verb::Extend { .. } | Verb::Keep { .. }, ..) => 1,
            (Verb::Release, true, false) => 2,
            (Verb::Release, true, true) => FENCED_QUEUED + 1,
            (Verb::Release, false, _) => QUEUED + 1,
        };
        Some(Self::LoadScript(Self::SCRIPT_COUNT + number))
    }

    /// If this step is one of those that load all scripts, where the next connection goes on if this one ends before the step does.
    #[cfg(feature = "scripts")]
    pub(crate) const fn scripts_left(self) -> Option<Self> {
        match self {
            Self::NodeInfoAndScripts => self.next(),
            Self::LoadScript(..Self::SCRIPT_COUNT) => Some(self),
            _ => None,
        }
    }

    /// Whether this step loads the script with which plain locks are released if the node keeps a line.
    #[cfg(feature = "queue")]
    pub(crate) const fn loads_release_of_lines(self) -> bool {
        const RELEASE: u8 = QUEUED + 1;
        matches!(self, Self::LoadScript(number) if number % Self::SCRIPT_COUNT == RELEASE)
    }

    /// Whether the client takes this step to stand in a line, and maybe for nothing else.
    #[cfg(feature = "queue")]
    pub(crate) const fn is_of_lines(self) -> bool {
        matches!(
            self,
            Self::LoadScript(_) | Self::Hello | Self::Subscribe | Self::Publish
        )
    }

    /// Whether this step asks the node for its identity.
    pub(crate) const fn is_node_info(self) -> bool {
        match self {
            #[cfg(feature = "scripts")]
            Self::NodeInfoAndScripts => true,
            step => matches!(step, Self::NodeInfo),
        }
    }

    /// The next step. `None` after the last.
    pub(crate) const fn next(self) -> Option<Self> {
        match self {
            Self::Authenticate => Some(Self::Select),
            #[cfg(feature = "client-name")]
            Self::Select => Some(Self::Name),
            #[cfg(feature = "client-name")]
            Self::Name => Some(Self::NodeInfo),
            #[cfg(not(feature = "client-name"))]
            Self::Select => Some(Self::NodeInfo),
            // In descending order: the script of an acquire is loaded last, just before an acquire is sent again.
            #[cfg(feature = "scripts")]
            Self::NodeInfoAndScripts => Some(Self::LoadScript(Self::SCRIPT_COUNT - 1)),
            #[cfg(feature = "scripts")]
            Self::LoadScript(number @ 1..Self::SCRIPT_COUNT) => Some(Self::LoadScript(number - 1)),
            #[cfg(feature = "scripts")]
            Self::LoadScript(_) => None,
            #[cfg(feature = "queue")]
            Self::Hello => Some(Self::Subscribe),
            #[cfg(feature = "queue")]
            Self::Subscribe => Some(Self::Publish),
            #[cfg(feature = "queue")]
            Self::Publish => None,
            Self::NodeInfo => None,
        }
    }
}

/// The script with this number. `None` if this client does not call it.
#[cfg(feature = "scripts")]
fn script(number: u8, mail: &Mail) -> Option<&'static Script> {
    let number = usize::from(number);
    let scripts: [&[&Script]; 3] = [
        if cfg!(feature = "fence") && mail.uses_fences() {
            &Script::FENCED
        } else {
            &[]
        },
        if cfg!(all(feature = "fence", feature = "queue")) && mail.uses_fenced_lines() {
            &Script::FENCED_QUEUED
        } else {
            &[]
        },
        if cfg!(feature = "queue") && mail.uses_plain_lines() {
            &Script::QUEUED
        } else {
            &[]
        },
    ];
    let first = [FENCED, FENCED_QUEUED, QUEUED];
    let mut kinds = first.into_iter().zip(scripts);
    kinds.find_map(|(first, scripts)| scripts.get(number.checked_sub(first.into())?).copied())
}

/// The numbers of the first script of each kind.
#[cfg(feature = "scripts")]
const FENCED: u8 = 0;
#[cfg(feature = "scripts")]
const FENCED_QUEUED: u8 = 3;
#[cfg(feature = "scripts")]
const QUEUED: u8 = 5;

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
