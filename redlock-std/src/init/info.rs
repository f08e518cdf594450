//! The reply of a server to INFO.

use core::str::FromStr;
use std::collections::BTreeMap;

use crate::node::printable;
use redis::{Pipeline, Value};

use super::connection::{in_words, raw_text};

/// The fields of INFO, escaped for printing.
#[derive(Debug)]
pub struct Info(BTreeMap<String, String>);

impl Info {
    /// Without a section, INFO also has a line for each kind of error that clients have made, and any client of the server can
    /// make thousands. Not all servers take several sections at once.
    const SECTIONS: [&str; 6] = [
        "server",
        "memory",
        "persistence",
        "stats",
        "replication",
        "keyspace",
    ];

    /// Adds the questions to `commands`.
    pub fn ask(commands: &mut Pipeline) {
        for section in Self::SECTIONS {
            commands.cmd("INFO").arg(section);
        }
    }

    /// Reads the replies to [`ask`](Self::ask) from the front of `replies`. Also returns the rest of them. `None` if there are
    /// too few.
    pub fn read(replies: &[Value]) -> Option<(Result<Self, String>, &[Value])> {
        let (sections, rest) = replies.split_at_checked(Self::SECTIONS.len())?;
        let mut text = String::new();
        for section in sections {
            match section {
                Value::ServerError(error) => return Some((Err(in_words(error)), rest)),
                section => match raw_text(section) {
                    Some(section) => text.push_str(&section),
                    None => return Some((Err("unexpected reply".to_owned()), rest)),
                },
            }
        }
        Some((Ok(Self::parse(&text)), rest))
    }

    pub fn parse(text: &str) -> Self {
        let fields = text.lines().filter_map(|line| line.split_once(':'));
        Self(
            fields
                .map(|(name, value)| (name.to_owned(), printable(value)))
                .collect(),
        )
    }

    pub fn text(&self, field: &str) -> Option<&str> {
        self.0.get(field).map(String::as_str)
    }

    pub fn number<T: FromStr>(&self, field: &str) -> Option<T> {
        self.text(field)?.parse().ok()
    }

    /// Identifies this run of the server: a restart changes it.
    pub fn run_id(&self) -> &str {
        self.text("run_id").unwrap_or_default()
    }

    /// Identifies the data set: a failover changes it, and so does the first replica.
    pub fn replication_id(&self) -> &str {
        self.text("master_replid").unwrap_or_default()
    }

    /// What the server runs as: `standalone`, `cluster` or `sentinel`. Valkey has another name for it, unless it is told to be
    /// compatible.
    pub fn mode(&self) -> Option<&str> {
        let valkey = self.text("server_mode");
        valkey.or_else(|| self.text("redis_mode"))
    }

    /// Whether the server may evict keys; `None` if the reply does not say.
    pub fn may_evict(&self) -> Option<bool> {
        Some(self.text("maxmemory_policy")? != "noeviction")
    }

    /// The number of keys with a TTL, in all databases.
    pub fn expiring_keys(&self) -> u64 {
        let databases = self.0.iter().filter(|(name, _)| {
            let number = name.strip_prefix("db");
            number.is_some_and(|number| number.parse::<u32>().is_ok())
        });
        let counts = databases.flat_map(|(_, fields)| fields.split(','));
        let expiring = counts.filter_map(|field| field.strip_prefix("expires=")?.parse().ok());
        expiring.fold(0, u64::saturating_add)
    }

    pub fn is_master(&self) -> bool {
        self.text("role") == Some("master")
    }

    /// The address of the master of a replica.
    pub fn master(&self) -> String {
        let part = |field| self.text(field).unwrap_or("?");
        format!("{}:{}", part("master_host"), part("master_port"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_keys_with_a_ttl_are_counted_in_all_databases() {
        let keyspace =
            "# Keyspace\r\ndb0:keys=3,expires=2,avg_ttl=7\r\ndb15:keys=9,expires=1,avg_ttl=0\r\n";
        assert_eq!(Info::parse(keyspace).expiring_keys(), 3);
        assert_eq!(Info::parse("dbsize:expires=1\r\n").expiring_keys(), 0);
    }
}
