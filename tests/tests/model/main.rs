//! The model checker, on as much as a debug build can search; `redlock-tests model` searches the whole.

use redlock_tests::model::{Flaw, Outcome, Scene};

#[test]
fn coarse_clocks_break_no_promise_in_any_order_of_events() {
    let mut scenes = Scene::all().into_iter();
    let scene = scenes.find(|scene| scene.name == "tick").unwrap();
    let Outcome { broken, unseen, .. } = scene.search();
    assert_eq!((broken, unseen), (None, None));
}

#[test]
fn half_of_the_nodes_as_a_quorum_is_found() {
    is_found(Flaw::HalfIsAQuorum);
}

#[test]
fn a_clock_that_is_not_read_after_the_last_vote_is_found() {
    is_found(Flaw::ClockNotReadAgain);
}

#[test]
fn a_validity_counted_from_the_end_is_found() {
    is_found(Flaw::ValidityFromTheEnd);
}

#[test]
fn a_margin_one_tick_too_small_is_found() {
    is_found(Flaw::TickNotTakenOff);
}

#[test]
fn releases_that_are_not_sent_are_found() {
    is_found(Flaw::NothingIsReleased);
}

/// With the flaw, some order of events breaks the promise that it is about.
fn is_found(flaw: Flaw) {
    let broken = Scene::with(flaw).search().broken;
    let promise = broken.map(|(promise, _steps)| promise);
    assert_eq!(promise, Some(flaw.breaks()));
}
