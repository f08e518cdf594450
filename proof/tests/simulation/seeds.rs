//! Seeds: nothing is found in them, and each is the same whenever it is run.

use std::num::NonZero;

use redlock_proof::simulation::{Campaign, Run};

const ONE: NonZero<usize> = NonZero::<usize>::MIN;
const TWO: NonZero<usize> = ONE.saturating_add(1);
const SEEDS: u64 = 2_000;

/// So many that the rarest of what can go wrong, a late holder at a gate, happens several times. `./test.sh simulate`
/// runs more.
#[test]
fn no_promise_is_broken_and_everything_that_can_go_wrong_does() {
    let campaign = Campaign::run(0..SEEDS, None, TWO);
    assert_eq!(campaign.found, None);
    assert_eq!(campaign.summary.seeds(), SEEDS);
    let missing: Vec<_> = campaign.summary.missing(false).collect();
    assert!(missing.is_empty(), "never happened: {missing:?}");
}

#[test]
fn a_seed_gives_the_same_run_each_time_to_the_last_byte() {
    for seed in 0..20 {
        let trace = Run::of(seed, None).to_string();
        assert!(trace.lines().count() > 50, "{trace}");
        assert_eq!(trace, Run::of(seed, None).to_string());
    }
}

#[test]
fn a_seed_gives_the_same_run_on_any_number_of_threads() {
    let [alone, together] = [ONE, TWO].map(|threads| Campaign::run(0..60, None, threads));
    assert_eq!(alone.summary, together.summary);
}

#[test]
fn two_seeds_give_two_runs() {
    assert_ne!(Run::of(1, None).to_string(), Run::of(2, None).to_string());
}
