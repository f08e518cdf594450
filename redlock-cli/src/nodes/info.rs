//! What a server says of itself.

use core::str::FromStr;
use std::collections::BTreeMap;

/// The fields of INFO.
#[derive(Debug)]
pub(crate) struct Info(BTreeMap<String, String>);

impl Info {
    pub(crate) fn parse(text: &str) -> Self {
        let fields = text.lines().filter_map(|line| line.split_once(':'));
        Self(
            fields
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .collect(),
        )
    }

    pub(crate) fn text(&self, field: &str) -> Option<&str> {
        self.0.get(field).map(String::as_str)
    }

    pub(crate) fn number<T: FromStr>(&self, field: &str) -> Option<T> {
        self.text(field)?.parse().ok()
    }

    /// What names this run of the server: a restart changes it.
    pub(crate) fn run_id(&self) -> &str {
        self.text("run_id").unwrap_or_default()
    }

    pub(crate) fn is_master(&self) -> bool {
        self.text("role") == Some("master")
    }

    /// Where the master of a replica is.
    pub(crate) fn master(&self) -> String {
        let part = |field| self.text(field).unwrap_or("?");
        format!("{}:{}", part("master_host"), part("master_port"))
    }
}
