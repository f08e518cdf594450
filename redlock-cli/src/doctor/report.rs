//! The report, as text and as JSON.

use core::time::Duration;

use redlock_std::Options;
use serde_json::{Value, json};
use unicode_width::UnicodeWidthStr;

use super::examination::{Examination, Seen};
use super::finding::{Finding, Verdict, bad};
use super::guard::Records;
use super::line::Line;
use super::{clock, default_node_timeout, fleet, guard, lock, server, storage};
use crate::nodes::{is_error_reply, is_login_failure};

/// The findings for each node, and those for all nodes together.
#[derive(Debug)]
pub(crate) struct Report {
    nodes: Vec<(String, Vec<Finding>)>,
    fleet: Vec<Finding>,
}

/// A node that fails one of these checks has no vote now.
const NEEDED_TO_VOTE: [&str; 8] = [
    "reachable",
    "server",
    "role",
    "uptime",
    "persistence",
    "writes",
    "permissions",
    "guard",
];

impl Report {
    /// Judges the nodes, for locks of `redlock run` with `options`.
    pub(crate) fn new(all: &[Examination], options: &Options) -> Self {
        let records = Records::of(all);
        let nodes: Vec<(String, Vec<Finding>)> = all
            .iter()
            .enumerate()
            .map(|(number, examination)| {
                let findings = match &examination.seen {
                    Ok(seen) => findings(seen, all, fleet::twin(all, number), options, records),
                    Err(why) => vec![unreachable(why)],
                };
                (examination.node.clone(), findings)
            })
            .collect();
        // A server with several names has one vote, whichever of them the clients hear.
        let has_vote = |examination: &&Examination| {
            let seen = examination.seen.as_ref();
            seen.is_ok_and(|seen| {
                // Two clocks that are too far apart are bad, but each of these nodes has a vote as long as the other nodes are up.
                let is_outside = |settings| clock::is_outside(seen, all, settings);
                has_vote(&findings(seen, all, None, options, records), records)
                    && !records.in_use.is_some_and(is_outside)
            })
        };
        let voting = fleet::servers(all.iter().filter(has_vote));
        let fleet = vec![
            fleet::votes(voting, all, records.in_use.is_some()),
            fleet::count(all.len()),
            fleet::duplicates(all),
            fleet::replication(all),
            guard::agreement(all, records, longest_hold(options)),
        ];
        Self { nodes, fleet }
    }

    pub(crate) fn verdict(&self) -> Verdict {
        Verdict::worst_of(self.findings())
    }

    pub(crate) fn json(&self) -> Value {
        let nodes = self.nodes.iter().map(|(node, findings)| {
            json!({
                "node": node,
                "verdict": Verdict::worst_of(findings).name(),
                "checks": checks(findings),
            })
        });
        json!({
            "verdict": self.verdict().name(),
            "bad": self.count(Verdict::Bad),
            "warn": self.count(Verdict::Warn),
            "nodes": nodes.collect::<Vec<_>>(),
            "fleet": {
                "verdict": Verdict::worst_of(&self.fleet).name(),
                "checks": checks(&self.fleet),
            },
        })
    }

    fn count(&self, verdict: Verdict) -> usize {
        let same = |finding: &&Finding| finding.verdict == verdict;
        self.findings().filter(same).count()
    }

    fn findings(&self) -> impl Iterator<Item = &Finding> {
        let nodes = self.nodes.iter().flat_map(|(_, findings)| findings);
        nodes.chain(&self.fleet)
    }
}

/// What a guard record must allow: the longer of the TTL and the `min_hold`.
fn longest_hold(options: &Options) -> Duration {
    let min_hold = options.vote_conditions().min_hold_ms;
    options.ttl().max(Duration::from_millis(min_hold.into()))
}

/// The shorter default: that of the library, or that of `redlock run`.
fn shorter_default(options: &Options) -> Duration {
    let by_library = Options::new(options.ttl()).unwrap_or(*options).round_time();
    by_library.min(default_node_timeout(options))
}

fn findings(
    seen: &Seen,
    all: &[Examination],
    twin: Option<&str>,
    options: &Options,
    records: Records,
) -> Vec<Finding> {
    let round_trip = clock::round_trip(&seen.samples);
    let mut findings = vec![server::reachable(
        round_trip,
        options.ttl(),
        options.round_time(),
        shorter_default(options),
    )];
    match &seen.info {
        Ok(info) => findings.extend([
            server::server(info, twin),
            server::role(info, seen.repl_backlog_ttl.as_deref()),
            server::uptime(info, options, guard::max_ttl(seen)),
            storage::persistence(info, seen.appendfsync.as_deref(), seen.save.as_deref()),
            storage::memory(info, records.in_use),
            seen.writes.finding(info),
        ]),
        Err(why) => findings.push(Finding::new(
            "server",
            bad(format!(
                "unknown, as are its role, uptime, persistence, memory and writes: {why}"
            )),
            json!({}),
        )),
    }
    findings.push(seen.permissions.finding());
    findings.push(Line::finding(&seen.line));
    // If the user may not read it, the permissions tell.
    if let Some((key, Ok(state))) = &seen.lock {
        findings.push(lock::finding(key, state));
    }
    findings.push(guard::finding(seen, records, longest_hold(options)));
    findings.extend(clock::findings(seen, all, records.in_use));
    findings
}

fn unreachable(why: &str) -> Finding {
    let cure = if is_login_failure(why) {
        ": check the user and the password in its URL"
    } else if is_error_reply(why) {
        ""
    } else if why.contains("peer certificate") {
        ": check --tls-ca, and the date and the names in the certificate of the node"
    } else if why.contains("fatal alert") {
        ": check --tls-cert and --tls-key"
    } else {
        ": check whether it is up, and whether this machine can reach it"
    };
    let judgement = bad(format!("{why}{cure}"));
    Finding::new("reachable", judgement, json!({ "round_trip_us": null }))
}

fn has_vote(findings: &[Finding], records: Records) -> bool {
    // Clients of fenced locks give no vote to a node that may evict keys.
    let is_needed = |check: &str| {
        NEEDED_TO_VOTE.contains(&check) || check == "memory" && records.in_use.is_some()
    };
    findings
        .iter()
        .all(|finding| finding.verdict != Verdict::Bad || !is_needed(finding.check))
}

fn checks(findings: &[Finding]) -> Vec<Value> {
    let checks = findings.iter().map(|finding| {
        let mut check = json!({
            "check": finding.check,
            "verdict": finding.verdict.name(),
            "message": finding.message,
        });
        if let (Value::Object(check), Value::Object(facts)) = (&mut check, &finding.facts) {
            check.extend(facts.clone());
        }
        check
    });
    checks.collect()
}

impl Report {
    /// The report as text. Lines are broken if the number of columns is given.
    pub(crate) fn in_words(&self, columns: Option<usize>) -> String {
        let mut told = String::new();
        for (node, findings) in &self.nodes {
            told += &format!("{node}\n");
            findings
                .iter()
                .for_each(|finding| told += &line(finding, columns));
        }
        told += "all nodes\n";
        self.fleet
            .iter()
            .for_each(|finding| told += &line(finding, columns));
        let (bad, warn) = (self.count(Verdict::Bad), self.count(Verdict::Warn));
        told + &format!("{bad} bad, {warn} warn\n")
    }
}

/// The verdict, the name and the message, which is broken at blanks and indented.
fn line(finding: &Finding, columns: Option<usize>) -> String {
    /// A longer line is hard to read.
    const LONGEST: usize = 100;
    const INDENT: usize = 21;

    let columns = columns.map_or(usize::MAX, |columns| columns.min(LONGEST));
    let mut line = format!("  {:4}  {:<12}", finding.verdict, finding.check);
    let mut column = INDENT - 1;
    for word in finding.message.split(' ') {
        let width = word.width() + 1;
        if column + width > columns && column > INDENT {
            line += &format!("\n{:INDENT$}{word}", "");
            column = INDENT + width - 1;
        } else {
            line += &format!(" {word}");
            column += width;
        }
    }
    line + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_fits_the_terminal_and_is_whole_elsewhere() {
        let message =
            "倉庫 may evict locks when memory is short, and this is a long story: ".repeat(3);
        let finding = Finding::new("memory", bad(message.trim_end().to_owned()), json!({}));
        let whole = line(&finding, None);
        assert_eq!(whole.lines().count(), 1);
        for (columns, most) in [(40, 40), (80, 80), (100, 100), (250, 100)] {
            let broken = line(&finding, Some(columns));
            let longest = broken.lines().map(UnicodeWidthStr::width).max();
            assert!(longest.is_some_and(|longest| (most - 12..=most).contains(&longest)));
            let words = |text: &str| {
                text.split_whitespace()
                    .map(str::to_owned)
                    .collect::<Vec<_>>()
            };
            assert_eq!(words(&broken), words(&whole));
        }
    }
}
