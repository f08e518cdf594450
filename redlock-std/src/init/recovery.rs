//! How the guard records of a fleet are restored.
//!
//! A client writes the record of a node only if it knows that its settings are those of the fleet. It knows this in three
//! cases:
//!
//! - A quorum of nodes has a record with these settings, of their run and data set.
//! - At least one node has a record with these settings, of any run and data set, no node that answers has another value, and a
//!   quorum answers. The other nodes that answer have no record.
//! - All nodes answer that they have no record.

use super::guard_record::{Settings, Standing};

/// How many of `nodes` are a quorum.
pub const fn quorum(nodes: usize) -> usize {
    nodes / 2 + 1
}

/// The guard record of a node, as clients see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sight {
    /// The node does not answer, or has no vote whatever its record says.
    Unseen,
    Nothing,
    /// A value that is no record. Clients treat it as other settings.
    Foreign,
    Record(Settings),
    /// A record of another run or data set. It may be older than the settings of the fleet.
    Old(Settings),
}

/// Who writes the records that are missing, or of another run or data set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recovery {
    /// No node has a record: clients write them, or `redlock init`.
    FirstStart,
    /// Clients with these settings.
    Clients(Settings),
    /// It depends on nodes that do not answer.
    MoreNodes,
    /// No client, until an operator decides which settings are right.
    Operator,
}

/// What restores the record of one node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cure {
    /// A client writes the record. The vote counts one quarantine of these settings later.
    Wait(Settings),
    /// Other nodes must be back first.
    MoreNodes,
    /// `redlock init --repair`.
    Repair,
}

impl Sight {
    /// A record with these settings.
    pub const fn of_record(settings: Settings, standing: Standing) -> Self {
        match standing {
            Standing::Counts | Standing::Quarantined { .. } => Self::Record(settings),
            Standing::OtherRun | Standing::OtherData | Standing::Older => Self::Old(settings),
        }
    }
}

impl Recovery {
    /// What follows from the sights of all servers. `nodes` is the number of names: it is higher than that of the servers if a
    /// server has several names, and decides what a quorum is.
    pub fn of(sights: &[Sight], nodes: usize) -> Self {
        let count = |wanted: Sight| sights.iter().filter(|sight| **sight == wanted).count();
        let quorum = quorum(nodes);
        let seen = sights.len() - count(Sight::Unseen);
        if count(Sight::Nothing) == sights.len() {
            return Self::FirstStart;
        }
        if seen < quorum {
            return Self::MoreNodes;
        }
        let records = || {
            sights.iter().filter_map(|sight| match sight {
                Sight::Record(settings) | Sight::Old(settings) => Some(*settings),
                _ => None,
            })
        };
        let none = count(Sight::Nothing);
        let may_write = |settings: &Settings| {
            let current = count(Sight::Record(*settings));
            current >= quorum || current + count(Sight::Old(*settings)) + none == seen
        };
        records()
            .find(may_write)
            .map_or(Self::Operator, Self::Clients)
    }

    /// What restores a record that is missing or wrong.
    pub fn cure(self, sight: Sight) -> Cure {
        match (self, sight) {
            (Self::MoreNodes, _) => Cure::MoreNodes,
            (Self::Clients(settings), Sight::Nothing) => Cure::Wait(settings),
            (Self::Clients(settings), Sight::Record(record) | Sight::Old(record))
                if record == settings =>
            {
                Cure::Wait(settings)
            }
            _ => Cure::Repair,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Settings = settings(60_000);
    const B: Settings = settings(120_000);

    const fn settings(max_ttl_ms: u64) -> Settings {
        Settings {
            max_ttl_ms,
            window_ms: 250,
            step_back_ms: 60_000,
        }
    }

    /// `A` and `B` are records, `a` and `b` are records of another run, `.` is none, `x` is another value, `?` does not answer.
    fn sights(nodes: &str) -> Vec<Sight> {
        let sight = |node| match node {
            'A' => Sight::Record(A),
            'B' => Sight::Record(B),
            'a' => Sight::Old(A),
            'b' => Sight::Old(B),
            '.' => Sight::Nothing,
            'x' => Sight::Foreign,
            _ => Sight::Unseen,
        };
        nodes.chars().map(sight).collect()
    }

    #[test]
    fn clients_write_if_their_settings_are_certainly_those_of_the_fleet() {
        for (nodes, recovery) in [
            ("...", Recovery::FirstStart),
            ("AAA", Recovery::Clients(A)),
            ("AA.", Recovery::Clients(A)),
            ("AAB", Recovery::Clients(A)),
            ("A..", Recovery::Clients(A)),
            ("A.?", Recovery::Clients(A)),
            ("AAx", Recovery::Clients(A)),
            ("A.x", Recovery::Operator),
            ("AA?", Recovery::Clients(A)),
            ("AAb", Recovery::Clients(A)),
            ("aaa", Recovery::Clients(A)),
            ("aa?", Recovery::Clients(A)),
            ("Aa.", Recovery::Clients(A)),
            // Most nodes have gone back to the data from before a change of the settings.
            ("aaB", Recovery::Operator),
            ("AaB", Recovery::Operator),
            // Two sets of rules raced at the first start.
            ("AB.", Recovery::Operator),
            ("AB?", Recovery::Operator),
            ("AABB.", Recovery::Operator),
            // All nodes that answer were wiped.
            ("..?", Recovery::Operator),
            (".....", Recovery::FirstStart),
            ("...??", Recovery::Operator),
            ("..x", Recovery::Operator),
            ("A??", Recovery::MoreNodes),
            ("???", Recovery::MoreNodes),
        ] {
            let sights = sights(nodes);
            assert_eq!(Recovery::of(&sights, sights.len()), recovery, "{nodes}");
        }
    }

    #[test]
    fn a_quorum_is_that_of_the_names_although_a_server_has_several() {
        for (servers, nodes, recovery) in [
            ("..", 3, Recovery::FirstStart),
            ("A.", 3, Recovery::Clients(A)),
            ("A", 3, Recovery::MoreNodes),
            ("AAB", 5, Recovery::Operator),
        ] {
            assert_eq!(Recovery::of(&sights(servers), nodes), recovery, "{servers}");
        }
    }

    #[test]
    fn a_client_never_overwrites_other_settings_or_a_foreign_value() {
        let recovery = Recovery::Clients(A);
        assert_eq!(recovery.cure(Sight::Nothing), Cure::Wait(A));
        assert_eq!(recovery.cure(Sight::Record(A)), Cure::Wait(A));
        assert_eq!(recovery.cure(Sight::Record(B)), Cure::Repair);
        assert_eq!(recovery.cure(Sight::Foreign), Cure::Repair);
        assert_eq!(Recovery::Operator.cure(Sight::Nothing), Cure::Repair);
    }
}
