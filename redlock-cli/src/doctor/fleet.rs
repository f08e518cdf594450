//! Checks of all nodes together.

use std::collections::BTreeSet;

use serde_json::json;

use super::examination::Examination;
use super::finding::{Finding, Judgement, bad, ok, warn};
use crate::nodes::{Info, quorum};

/// Whether a quorum of votes counts now. If fenced locks are in use, these are votes for fenced locks.
pub(crate) fn votes(voting: usize, all: &[Examination], fenced_in_use: bool) -> Finding {
    let nodes = all.len();
    let quorum = quorum(nodes);
    let answering = all.iter().filter(|node| node.seen.is_ok()).count();
    let told = format!("{voting} of {nodes} nodes vote, {quorum} are a quorum");
    let judgement = match voting.checked_sub(quorum) {
        None if answering < quorum => bad(format!("{told}: no client can take a lock")),
        None if fenced_in_use => bad(format!("{told}: no client can take a fenced lock")),
        None => bad(format!(
            "{told}: no client can take a lock, unless it has no restart guard"
        )),
        Some(spare) if voting < nodes => warn(format!("{told}: {spare} more may fail")),
        Some(spare) => ok(format!("{told}: {spare} may fail")),
    };
    let facts = json!({ "voting": voting, "nodes": nodes, "quorum": quorum });
    Finding::new("quorum", judgement, facts)
}

pub(crate) fn count(nodes: usize) -> Finding {
    let judgement = if nodes == 1 {
        warn("only one node: if it fails, no client can take a lock; use three or five")
    } else if nodes.is_multiple_of(2) {
        let fewer = nodes - 1;
        warn(format!(
            "{nodes} nodes tolerate no more failures than {fewer}: use an odd number"
        ))
    } else {
        ok(format!("{nodes} nodes, an odd number"))
    };
    Finding::new("nodes", judgement, json!({ "nodes": nodes }))
}

/// Finds servers with several names.
pub(crate) fn duplicates(all: &[Examination]) -> Finding {
    let groups = groups(all, |info| info.run_id().to_owned());
    let judgement = judge(
        &groups,
        if all_answer(all) {
            "all nodes are different servers"
        } else {
            "all nodes that answer are different servers"
        },
        "are one server, or claim to be: they have one vote, name each server once",
    );
    Finding::new("duplicates", judgement, json!({ "groups": groups }))
}

/// Finds nodes that replicate another node, or that have a common master.
pub(crate) fn replication(all: &[Examination]) -> Finding {
    // A replica has the replication ID of its master. One server with two names is no replica.
    let mut groups = groups(all, |info| {
        info.text("master_replid").unwrap_or_default().to_owned()
    });
    let runs = |names: &[&str]| {
        let mut runs: Vec<_> = infos(all)
            .filter(|(name, _)| names.contains(name))
            .map(|(_, info)| info.run_id())
            .collect();
        runs.sort_unstable();
        runs.dedup();
        runs.len()
    };
    groups.retain(|names| runs(names) > 1);
    let judgement = judge(
        &groups,
        if all_answer(all) {
            "no node is a replica of another"
        } else {
            "no node that answers is a replica of another"
        },
        "are copies of one master, so their votes are not independent: name only the master",
    );
    Finding::new("replication", judgement, json!({ "groups": groups }))
}

/// The number of different servers.
pub(crate) fn servers<'a>(nodes: impl Iterator<Item = &'a Examination>) -> usize {
    let runs = nodes.map(|node| {
        let info = node
            .seen
            .as_ref()
            .ok()
            .and_then(|seen| seen.info.as_ref().ok());
        info.map_or(node.node.as_str(), Info::run_id)
    });
    runs.collect::<BTreeSet<_>>().len()
}

/// An earlier node of `all` that is the same server as the one at `number`.
pub(crate) fn twin(all: &[Examination], number: usize) -> Option<&str> {
    let run_id = infos(all.get(number..=number)?).next()?.1.run_id();
    let mut earlier = infos(all.get(..number)?);
    earlier
        .find(|(_, info)| info.run_id() == run_id)
        .map(|(name, _)| name)
}

/// Groups the names of nodes with the same mark. Leaves out nodes with an empty mark, and groups of one.
fn groups(all: &[Examination], mark: impl Fn(&Info) -> String) -> Vec<Vec<&str>> {
    let mut groups: Vec<(String, Vec<&str>)> = Vec::new();
    for (name, info) in infos(all) {
        let mark = mark(info);
        match groups.iter_mut().find(|(other, _)| *other == mark) {
            Some((_, names)) => names.push(name),
            None if mark.is_empty() => {}
            None => groups.push((mark, vec![name])),
        }
    }
    let groups = groups.into_iter().map(|(_, names)| names);
    groups.filter(|names| names.len() > 1).collect()
}

/// Bad if there is a group; `fault` is what its nodes are.
fn judge(groups: &[Vec<&str>], without: &str, fault: &str) -> Judgement {
    if groups.is_empty() {
        return ok(without);
    }
    let groups: Vec<_> = groups.iter().map(|names| names.join(" and ")).collect();
    bad(format!("{} {fault}", groups.join("; ")))
}

fn all_answer(all: &[Examination]) -> bool {
    infos(all).count() == all.len()
}

fn infos(all: &[Examination]) -> impl Iterator<Item = (&str, &Info)> {
    all.iter().filter_map(|examination| {
        let info = examination.seen.as_ref().ok()?.info.as_ref().ok()?;
        Some((examination.node.as_str(), info))
    })
}
