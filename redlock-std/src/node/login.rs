//! The login on a new connection, and what a node says that ends the connection instead.

use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, ServerError, Value};
use tokio::io::AsyncWriteExt;
use tokio::time::timeout;

use super::address::Address;
use super::answer;
use super::error::TransportError;
use super::metered::Credit;
use super::printable::{printable, without_arguments};
use super::replies::Replies;
use super::socket::Stream;

/// A new connection on which the first commands are answered.
///
/// Not the redis crate logs in: it makes each error of AUTH one of the password, and loses its text.
pub(crate) struct Login<S> {
    stream: S,
    replies: Replies,
    credit: Arc<Credit>,
    last_words: LastWords,
}

/// The error that the node has answered last, if its last answer was one. If the connection ends then, this is why: a server that
/// has too many clients, or protects itself, says so unasked and closes the connection. It looks like the answer to the first command.
#[derive(Default)]
pub(crate) struct LastWords(Option<Arc<str>>);

impl<S: Stream> Login<S> {
    pub(crate) const fn new(stream: S, replies: Replies, credit: Arc<Credit>) -> Self {
        Self {
            stream,
            replies,
            credit,
            last_words: LastWords(None),
        }
    }

    /// Logs in. Sends `more` commands in the same write; [`reply`](Self::reply) returns its replies afterwards.
    ///
    /// CLIENT LIST shows the name of the library if the server supports it.
    pub(crate) async fn log_in(
        &mut self,
        address: &Address,
        more: &[u8],
    ) -> Result<(), TransportError> {
        const NAMES: [(&str, &str); 2] = [
            ("LIB-NAME", env!("CARGO_PKG_NAME")),
            ("LIB-VER", env!("CARGO_PKG_VERSION")),
        ];

        let mut commands = Vec::new();
        let auth = auth(address);
        if let Some(auth) = &auth {
            auth.write_packed_command(&mut commands);
        }
        for (name, value) in NAMES {
            command(&["CLIENT", "SETINFO", name, value]).write_packed_command(&mut commands);
        }
        commands.extend_from_slice(more);
        self.send(&commands).await?;
        if auth.is_some() {
            match self.reply().await? {
                Value::Okay => {}
                Value::ServerError(error) => return Err(refusal(&error)),
                _ => return Err(TransportError::Unexpected),
            }
        }
        for _name in NAMES {
            // An error does not matter: the server does not know this command, or the user may not call it.
            self.reply().await?;
        }
        Ok(())
    }

    /// Returns the reply to the next command.
    pub(crate) async fn reply(&mut self) -> Result<Value, TransportError> {
        let reply = self.replies.answer(&mut self.stream).await;
        let reply = reply.map_err(|kind| self.last_words.explain(kind))?;
        self.last_words = LastWords(match &reply {
            Value::ServerError(error) => Some(text(error)),
            _ => None,
        });
        Ok(reply)
    }

    /// The stream, for more commands. Fails if more has arrived than the replies.
    pub(crate) fn finish(self) -> Result<(S, Replies), TransportError> {
        if self.replies.unreturned() > 0 {
            return Err(TransportError::Flooded);
        }
        self.credit.settle(0, 0)?;
        Ok((self.stream, self.replies))
    }

    /// The stream, and what has arrived behind the replies.
    pub(crate) fn into_parts(self) -> (S, Replies) {
        (self.stream, self.replies)
    }

    async fn send(&mut self, commands: &[u8]) -> Result<(), TransportError> {
        /// What has arrived before the connection broke is there at once.
        const LAST_WORDS: Duration = Duration::from_millis(50);

        let written = async {
            self.stream.write_all(commands).await?;
            self.stream.flush().await
        };
        let Err(error) = written.await else {
            return Ok(());
        };
        let kind = match timeout(LAST_WORDS, self.reply()).await {
            Ok(Err(kind)) => kind,
            Ok(Ok(_)) => TransportError::Disconnected,
            Err(_elapsed) => self.credit.why(&error.into()),
        };
        Err(self.last_words.explain(kind))
    }
}

impl LastWords {
    /// Says why the connection has ended, if this error is only that it has.
    pub(crate) fn explain(&self, kind: TransportError) -> TransportError {
        if kind != TransportError::Disconnected {
            return kind;
        }
        TransportError::Unreachable(self.0.as_ref().map_or_else(
            || NO_ANSWER.into(),
            |words| format!("the server closed the connection: {words}").into(),
        ))
    }
}

const NO_ANSWER: &str = "the server closed the connection before it answered: the scheme of its URL does not fit the port \
                         (redis://, or rediss:// for TLS), or it is a proxy whose server is down";

/// Why a node has not accepted the user and the password, or has not looked at them.
fn refusal(error: &ServerError) -> TransportError {
    let is_login = match error.code() {
        // Servers before Redis 6 have no other code for a wrong password, and none has one for a user or a password too many.
        "ERR" => !is_full(error),
        code => answer::is_login(code),
    };
    if is_login {
        TransportError::LoginRefused(text(error))
    } else {
        TransportError::Unreachable(text(error))
    }
}

/// The text of an error, and what to do about it.
pub(crate) fn text(error: &ServerError) -> Arc<str> {
    let text = format!("{} {}", error.code(), error.details().unwrap_or_default());
    // The arguments of AUTH are a password.
    let text = printable(without_arguments(text.trim_end()));
    let advice = if is_full(error) {
        "; raise maxclients on this server, or let fewer clients connect"
    } else if has_no_users(error) {
        "; this server knows no users, so name none in its URL"
    } else {
        ""
    };
    format!("{text}{advice}").into()
}

/// Whether the server has as many clients as its `maxclients`: "max number of clients reached", and in a cluster "max number of
/// clients + cluster connections reached".
fn is_full(error: &ServerError) -> bool {
    let details = error.details().unwrap_or_default();
    error.code() == "ERR" && details.starts_with("max number of clients")
}

/// Whether AUTH with a user has too many arguments, as before Redis 6.
fn has_no_users(error: &ServerError) -> bool {
    let details = error.details().unwrap_or_default();
    details.contains("wrong number of arguments for 'auth' command")
}

fn auth(address: &Address) -> Option<Cmd> {
    let login = address.login();
    let password = login.password()?;
    let words = [Some("AUTH"), login.username(), Some(password)];
    let words: Vec<_> = words.into_iter().flatten().collect();
    Some(command(&words))
}

/// A command of these words.
pub(crate) fn command(words: &[&str]) -> Cmd {
    let mut cmd = Cmd::new();
    cmd.arg(words);
    cmd
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, DuplexStream, duplex};

    use super::super::metered::Metered;
    use super::*;

    const WITH_PASSWORD: &str = "redis://locker:hunter2@host";
    const WITHOUT: &str = "redis://host";

    const FULL: &str = "ERR max number of clients reached; raise maxclients on this server, or let fewer clients connect";

    /// What a login comes to on this stream, as of the connection of the locks.
    async fn log_in(stream: DuplexStream, url: &str) -> Result<(), TransportError> {
        let credit = Credit::new();
        let stream = Metered::new(stream, Arc::clone(&credit));
        let replies = Replies::of_commands(Arc::clone(&credit));
        let mut login = Login::new(stream, replies, credit);
        login.log_in(&Address::parse(url).unwrap(), &[]).await?;
        login.finish().map(drop)
    }

    /// What it comes to if the node sends this and then waits.
    async fn answered(url: &str, sent: &[u8]) -> Result<(), TransportError> {
        let (client, mut node) = duplex(1_000_000);
        node.write_all(sent).await.unwrap();
        log_in(client, url).await
    }

    /// What it comes to if the node sends this and closes the connection: once before the commands can be written, and once after.
    async fn closed(url: &str, sent: &[u8]) -> [TransportError; 2] {
        let (client, mut node) = duplex(1_000_000);
        node.write_all(sent).await.unwrap();
        drop(node);
        let before = log_in(client, url).await.err().unwrap();

        let (client, mut node) = duplex(1_000_000);
        let after = tokio::join!(log_in(client, url), async {
            assert!(node.read(&mut [0; 9_999]).await.unwrap() > 0);
            node.write_all(sent).await.unwrap();
            drop(node);
        });
        [before, after.0.err().unwrap()]
    }

    fn unreachable(words: &str) -> TransportError {
        TransportError::Unreachable(words.into())
    }

    #[tokio::test]
    async fn an_error_of_auth_is_one_of_the_login_only_if_the_user_or_the_password_is_wrong() {
        for (sent, words, is_login) in [
            (
                "-WRONGPASS invalid username-password pair or user is disabled.",
                "WRONGPASS invalid username-password pair or user is disabled.",
                true,
            ),
            (
                "-NOAUTH Authentication required.",
                "NOAUTH Authentication required.",
                true,
            ),
            ("-ERR invalid password", "ERR invalid password", true),
            (
                "-ERR Client sent AUTH, but no password is set",
                "ERR Client sent AUTH, but no password is set",
                true,
            ),
            (
                "-ERR unknown command 'AUTH', with args beginning with: 'locker' 'hunter2' ",
                "ERR unknown command 'AUTH'",
                true,
            ),
            (
                "-ERR wrong number of arguments for 'auth' command",
                "ERR wrong number of arguments for 'auth' command; this server knows no users, so name none in its URL",
                true,
            ),
            ("!20\r\nERR invalid password", "ERR invalid password", true),
            (
                "-ERR invalid \u{fc} \x1b[2J",
                "ERR invalid ?? \\u{1b}[2J",
                true,
            ),
            ("-ERR max number of clients reached", FULL, false),
            (
                "-ERR max number of clients + cluster connections reached",
                "ERR max number of clients + cluster connections reached; raise maxclients on this server, or let fewer clients connect",
                false,
            ),
            (
                "-LOADING Redis is loading the dataset in memory",
                "LOADING Redis is loading the dataset in memory",
                false,
            ),
            (
                "-READONLY You can't write against a read only replica.",
                "READONLY You can't write against a read only replica.",
                false,
            ),
            ("-NEW", "NEW", false),
            ("!7\r\nNEW one", "NEW one", false),
        ] {
            let error = answered(WITH_PASSWORD, format!("{sent}\r\n").as_bytes()).await;
            let expected = if is_login {
                TransportError::LoginRefused(words.into())
            } else {
                unreachable(words)
            };
            assert_eq!(error.err(), Some(expected), "{sent}");
        }
    }

    #[tokio::test]
    async fn what_is_no_answer_to_auth_is_not_taken_for_one() {
        for sent in [&b"+QUEUED\r\n"[..], b"$2\r\nOK\r\n", b":1\r\n", b"$-1\r\n"] {
            let error = answered(WITH_PASSWORD, sent).await.err();
            assert_eq!(error, Some(TransportError::Unexpected));
        }
    }

    #[tokio::test]
    async fn the_last_error_of_a_node_that_closes_the_connection_is_told() {
        for (sent, words) in [
            ("-ERR max number of clients reached\r\n", FULL),
            (
                "-DENIED Redis is running in protected mode\r\n",
                "DENIED Redis is running in protected mode",
            ),
        ] {
            let words = format!("the server closed the connection: {words}");
            let expected = unreachable(&words);
            assert_eq!(
                closed(WITHOUT, sent.as_bytes()).await,
                [expected.clone(), expected]
            );
        }
        let [before, after] =
            closed(WITH_PASSWORD, b"-ERR max number of clients reached\r\n").await;
        assert_eq!(
            [before, after],
            [
                unreachable(&format!("the server closed the connection: {FULL}")),
                unreachable(FULL)
            ]
        );
    }

    #[tokio::test]
    async fn of_a_node_that_closes_the_connection_without_an_error_this_is_told() {
        let expected = unreachable(NO_ANSWER);
        for sent in [&b""[..], b"+OK\r\n", b"-ERR not at its e"] {
            let errors = closed(WITHOUT, sent).await;
            assert_eq!(errors, [expected.clone(), expected.clone()]);
        }
    }

    #[tokio::test]
    async fn a_reply_without_end_and_one_too_many_end_the_login() {
        for (begin, more) in [
            (&b"-"[..], &b"no end "[..]),
            (b"$9000000000000000000\r\n", b"x"),
            (b"*1000000000\r\n", b"_\r\n"),
            (b"!900000\r\n", b"hunter2"),
            (b"+OK\r\n+OK\r\n+OK\r\n", b"+OK\r\n"),
        ] {
            let sent = [begin, &more.repeat(20_000)].concat();
            let error = answered(WITH_PASSWORD, &sent).await.err();
            assert_eq!(error, Some(TransportError::Flooded), "{begin:?}");
        }
    }

    #[tokio::test]
    async fn all_is_sent_in_one_write() {
        let (client, mut node) = duplex(1_000_000);
        let login = tokio::spawn(log_in(client, WITH_PASSWORD));
        let mut sent = vec![0; 9_999];
        let length = node.read(&mut sent).await.unwrap();
        let sent = String::from_utf8_lossy(&sent[..length]);
        let auth = "*3\r\n$4\r\nAUTH\r\n$6\r\nlocker\r\n$7\r\nhunter2\r\n";
        assert!(sent.starts_with(auth), "{sent}");
        assert_eq!(sent.matches("SETINFO").count(), 2, "{sent}");
        node.write_all(b"+OK\r\n+OK\r\n+OK\r\n").await.unwrap();
        assert!(login.await.unwrap().is_ok());
    }
}
