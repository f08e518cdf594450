//! All that a client can be, as a table: it is filled by running the shipping code, each entry once.

use std::collections::HashMap;
use std::sync::{Arc, RwLock};

use foldhash::fast::RandomState;

use super::client::{self, Cause, Effect, Few, Input, View};
use super::scene::{Kind, Scene};

/// The clients of a scene. What a client is, is a row of the table; what it is given leads to another row.
#[derive(Debug)]
pub(super) struct Automaton {
    scene: Scene,
    /// Reading takes no lock.
    rows: boxcar::Vec<Row>,
    by_past: RwLock<HashMap<Past, u32, RandomState>>,
    renumbered: RwLock<HashMap<(u32, Few<usize>), u32, RandomState>>,
}

#[derive(Debug)]
struct Row {
    past: Past,
    /// What it was given to get there.
    history: Vec<Input>,
    view: View,
    next: RwLock<HashMap<Input, Step, RandomState>>,
}

/// Where an input leads, and what the client does on it.
#[derive(Debug, Clone)]
pub(super) struct Step {
    pub(super) to: u32,
    pub(super) effects: Arc<[Effect]>,
}

/// What of a history decides about the future: between two operations what the client keeps, during one also what
/// it was given since the operation began.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct Past {
    kind: Kind,
    kept: View,
    given: Vec<Input>,
}

impl Past {
    fn then(&self, input: &Input, view: &View) -> Self {
        if !view.is_busy {
            return Self {
                kind: self.kind,
                kept: view.clone(),
                given: Vec::new(),
            };
        }
        let mut given = self.given.clone();
        given.push(input.clone());
        Self {
            kind: self.kind,
            kept: self.kept.clone(),
            given,
        }
    }
}

impl Automaton {
    pub(super) fn new(scene: &Scene) -> Self {
        let automaton = Self {
            scene: scene.clone(),
            rows: boxcar::Vec::new(),
            by_past: RwLock::default(),
            renumbered: RwLock::default(),
        };
        for role in scene.clients {
            let past = Past {
                kind: role.kind,
                ..Past::default()
            };
            automaton.number(past, || {
                let (_, view) = client::after(scene, role.kind, &[], &[]);
                (Vec::new(), view)
            });
        }
        automaton
    }

    /// The row of a client that has done nothing yet.
    pub(super) fn start(&self, kind: Kind) -> u32 {
        let past = Past {
            kind,
            ..Past::default()
        };
        self.by_past.read().expect(NO_PANIC)[&past]
    }

    pub(super) fn view(&self, row: u32) -> &View {
        &self.row(row).view
    }

    /// How many rows there are.
    pub(super) fn len(&self) -> usize {
        self.rows.count()
    }

    /// Gives `input` to a client.
    pub(super) fn step(&self, row: u32, input: &Input) -> Step {
        let Row {
            past,
            history,
            next,
            ..
        } = self.row(row);
        if let Some(step) = next.read().expect(NO_PANIC).get(input) {
            return step.clone();
        }
        let last = std::slice::from_ref(input);
        let (effects, view) = client::after(&self.scene, past.kind, history, last);
        self.replies_one_by_one(past.kind, history, input, &effects, &view);
        // Asked for, and not taken.
        let is_asked = matches!(input.cause, Cause::Wake(_) | Cause::Drop);
        let to = if effects.is_empty() && is_asked {
            row
        } else {
            let past = past.then(input, &view);
            self.number(past, || ([history, last].concat(), view))
        };
        let step = Step {
            to,
            effects: effects.into(),
        };
        let mut next = next.write().expect(NO_PANIC);
        next.insert(input.clone(), step.clone());
        step
    }

    /// The search gives a client only replies on which it does something, together with all that came before and
    /// changed nothing. Here it gets them one by one, in every order and as early as can be: it must come to the same.
    fn replies_one_by_one(
        &self,
        kind: Kind,
        history: &[Input],
        last: &Input,
        effects: &[Effect],
        view: &View,
    ) {
        let (Cause::Wake(answers), Some(before)) = (&last.cause, history.last()) else {
            return;
        };
        if answers.is_empty() {
            return;
        }
        for order in permutations(answers.len()) {
            let given: Vec<_> = order
                .iter()
                .enumerate()
                .map(|(place, answer)| Input {
                    // When a reply is read, a fenced lock takes for the time at which it came: see `Cause::Read`.
                    reading: if place + 1 == answers.len() || self.scene.fencing.is_some() {
                        last.reading
                    } else {
                        before.reading
                    },
                    cause: Cause::Wake(Few::from_iter([answers[*answer]])),
                })
                .collect();
            let (early, _) = client::after(
                &self.scene,
                kind,
                history,
                &given[..given.len().saturating_sub(1)],
            );
            if !early.is_empty() {
                continue;
            }
            let (other_effects, other_view) = client::after(&self.scene, kind, history, &given);
            assert_eq!(effects, other_effects, "{answers:?} after {history:?}");
            assert_eq!(*view, other_view, "{answers:?} after {history:?}");
        }
    }

    /// The row of a client to which the nodes have other numbers: node `i` is number `numbers[i]` there.
    pub(super) fn renumbered(&self, row: u32, numbers: &[usize]) -> u32 {
        if numbers.is_sorted() {
            return row;
        }
        let question = (row, numbers.iter().copied().collect());
        if let Some(&known) = self.renumbered.read().expect(NO_PANIC).get(&question) {
            return known;
        }
        let Row { past, history, .. } = self.row(row);
        let mut other = self.start(past.kind);
        for input in history {
            let mut input = input.clone();
            match &mut input.cause {
                Cause::Wake(answers) | Cause::Read(answers) => {
                    for (node, _) in answers.iter_mut() {
                        *node = numbers[*node];
                    }
                    answers.sort_unstable();
                }
                Cause::Met(node, _) => *node = numbers[*node],
                Cause::Begin(_) | Cause::Drop => {}
            }
            other = self.step(other, &input).to;
        }
        assert_eq!(
            self.view(row).renumbered(numbers),
            *self.view(other),
            "to a client the nodes are not alike"
        );
        let mut renumbered = self.renumbered.write().expect(NO_PANIC);
        renumbered.insert(question, other);
        other
    }

    fn row(&self, row: u32) -> &Row {
        &self.rows[row as usize]
    }

    /// The row of a client with this past: if it is new, one with the history and the view that `made` returns.
    fn number(&self, past: Past, made: impl FnOnce() -> (Vec<Input>, View)) -> u32 {
        let mut by_past = self.by_past.write().expect(NO_PANIC);
        *by_past.entry(past).or_insert_with_key(|past| {
            let (history, view) = made();
            let row = self.rows.push(Row {
                past: past.clone(),
                history,
                view,
                next: RwLock::default(),
            });
            u32::try_from(row).expect("fewer clients than memory")
        })
    }
}

const NO_PANIC: &str = "no thread has panicked";

/// Every order of `0..count`.
fn permutations(count: usize) -> Vec<Vec<usize>> {
    if count == 0 {
        return vec![Vec::new()];
    }
    let shorter = permutations(count - 1);
    let longer = shorter.iter().flat_map(|shorter| {
        (0..count).map(|place| {
            let mut longer = shorter.clone();
            longer.insert(place, count - 1);
            longer
        })
    });
    longer.collect()
}
