//! The model checker, on as much as a debug build can search; `redlock-proof model` searches the whole.

use redlock_proof::model::{Flaw, Outcome, Scene};

#[test]
fn coarse_clocks_break_no_promise_in_any_order_of_events() {
    breaks_nothing("tick");
}

#[test]
fn a_connection_that_breaks_brings_no_fenced_lease_back_in_any_order_of_events() {
    breaks_nothing("fence, break");
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

#[test]
fn nodes_that_accept_a_fence_twice_are_found() {
    is_found(Flaw::Strict);
}

#[test]
fn nodes_that_accept_fences_that_are_too_old_are_found() {
    is_found(Flaw::Floor);
}

#[test]
fn releases_that_leave_their_fence_acceptable_are_found() {
    is_found(Flaw::Burn);
}

#[test]
fn extends_that_make_a_key_again_where_another_was_are_found() {
    is_found(Flaw::Heal);
}

#[test]
fn leases_without_a_margin_for_clocks_that_jump_are_found() {
    is_found(Flaw::Margin);
}

#[test]
fn a_majority_of_clocks_that_jump_together_is_found() {
    is_found(Flaw::JumpTogether);
}

#[test]
fn a_node_that_has_lost_its_record_gets_its_vote_back_whichever_node_is_down() {
    breaks_nothing("recovery");
}

#[test]
fn a_client_that_takes_a_quorum_of_its_rules_for_the_only_proof_is_found() {
    is_found(Flaw::VouchesByQuorum);
}

#[test]
fn a_client_that_waits_for_a_node_without_a_record_to_answer_is_found() {
    is_found(Flaw::VouchesForHeard);
}

#[test]
fn a_failback_that_keeps_its_vote_is_found() {
    is_found(Flaw::Failback);
}

#[test]
fn an_eviction_that_clients_do_not_mind_is_found() {
    is_found(Flaw::Eviction);
}

#[test]
fn an_init_that_ends_a_quarantine_is_found() {
    is_found(Flaw::InitAnyway);
}

#[test]
fn a_quarantine_that_forgets_clocks_that_are_set_back_is_found() {
    is_found(Flaw::FlushStepBack);
}

#[test]
fn a_clock_that_is_set_back_by_more_than_is_agreed_is_found() {
    is_found(Flaw::StepBack);
}

#[test]
fn a_plain_client_with_a_longer_ttl_than_the_fleet_is_found() {
    is_found(Flaw::LongPlain);
}

#[test]
fn a_process_that_extends_a_lease_twice_is_found() {
    is_found(Flaw::TwiceExtended);
}

/// No order of events breaks a promise, and what the scene is about happens.
fn breaks_nothing(name: &str) {
    let scenes = Scene::all().into_iter().filter(|scene| scene.name == name);
    let found: Vec<_> = scenes
        .map(Scene::search)
        .map(|Outcome { broken, unseen, .. }| (broken, unseen))
        .collect();
    assert_eq!(found, [(None, None)]);
}

/// With the flaw, some order of events breaks the promise that it is about.
fn is_found(flaw: Flaw) {
    let broken = Scene::with(flaw).search().broken;
    let promise = broken.map(|(promise, _steps)| promise);
    assert_eq!(promise, Some(flaw.breaks()));
}
