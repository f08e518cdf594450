//! With something broken on purpose the judge finds it: without that, its silence would mean nothing.

use std::num::NonZero;

use redlock_proof::simulation::{Assumption, Campaign, Promise};

/// What is found first, with `assumption` broken. Those that take many seeds are left to `simulate --breaks`.
fn found(assumption: Assumption) -> Promise {
    let campaign = Campaign::run(
        0..assumption.found_within(),
        Some(assumption),
        NonZero::<usize>::MIN,
    );
    let (_seed, promise) = campaign.found.unwrap();
    promise
}

#[test]
fn clocks_that_drift_beyond_the_option_let_two_hold_one_lock() {
    assert_eq!(found(Assumption::Drift), Promise::Exclusion);
}

#[test]
fn a_node_that_forgets_lets_two_hold_one_lock() {
    assert_eq!(found(Assumption::Forget), Promise::Exclusion);
}

#[test]
fn a_node_whose_clock_is_set_forward_lets_two_hold_one_lock() {
    assert_eq!(found(Assumption::Jump), Promise::Exclusion);
}

#[test]
fn a_clock_that_does_not_own_up_to_its_tick_lets_a_lease_outlive_its_keys() {
    assert_eq!(found(Assumption::Resolution), Promise::Quorum);
}

#[test]
fn a_connection_on_which_a_release_overtakes_its_acquire_leaves_keys() {
    assert_eq!(found(Assumption::Order), Promise::Cleanup);
}

#[test]
fn a_node_that_deletes_whosever_key_it_is_is_found() {
    found(Assumption::Compare);
}

#[test]
fn a_timer_that_forgets_to_wake_leaves_a_call_that_never_ends() {
    assert_eq!(found(Assumption::Wake), Promise::Time);
}

#[test]
fn clients_that_draw_the_same_tokens_are_found() {
    assert_eq!(found(Assumption::Entropy), Promise::Token);
}

#[test]
fn a_majority_of_clocks_that_jump_together_lets_two_hold_one_fenced_lock() {
    assert_eq!(found(Assumption::JumpTogether), Promise::Exclusion);
}

#[test]
fn a_clock_that_jumps_and_is_right_again_lets_two_hold_one_fenced_lock_where_nodes_forget_until_when()
 {
    assert_eq!(found(Assumption::HeldUntil), Promise::Exclusion);
}

#[test]
fn fences_that_nodes_count_are_not_unique() {
    assert_eq!(found(Assumption::Count), Promise::Fence);
}

#[test]
fn fences_that_are_written_back_whatever_was_there_are_not_unique() {
    assert_eq!(found(Assumption::WriteBack), Promise::Fence);
}

#[test]
fn fences_without_a_floor_go_back() {
    assert_eq!(found(Assumption::Floor), Promise::Fence);
}

#[test]
fn fences_go_back_where_the_quarantine_is_too_short() {
    assert_eq!(found(Assumption::Quarantine), Promise::Fence);
}

#[test]
fn fences_go_back_with_clocks_that_are_set_back_by_more_than_is_agreed() {
    assert_eq!(found(Assumption::StepBack), Promise::Fence);
}

#[test]
fn nodes_that_take_the_rules_of_the_first_client_are_captured_one_by_one() {
    assert_eq!(found(Assumption::AnyRules), Promise::Exclusion);
}

#[test]
fn a_failover_there_and_back_that_is_not_noticed_lets_two_hold_one_lock() {
    assert_eq!(found(Assumption::Failback), Promise::Exclusion);
}

#[test]
fn nodes_that_evict_and_do_not_say_so_let_two_hold_one_fenced_lock() {
    assert_eq!(found(Assumption::Eviction), Promise::Exclusion);
}

#[test]
fn an_operator_who_declares_a_used_fleet_new_lets_two_hold_one_lock() {
    assert_eq!(found(Assumption::Init), Promise::Exclusion);
}

#[test]
fn fences_go_back_where_the_quarantine_is_shorter_than_a_clock_may_be_set_back() {
    assert_eq!(found(Assumption::StepBackQuarantine), Promise::Fence);
}

#[test]
fn a_lease_that_says_that_it_is_valid_after_it_was_lost_is_found() {
    assert_eq!(found(Assumption::Lost), Promise::Over);
}

#[test]
fn a_server_that_is_named_twice_and_votes_twice_is_found() {
    assert_eq!(found(Assumption::Duplicates), Promise::Votes);
}

#[test]
fn a_client_that_follows_one_clock_of_five_is_found() {
    assert_eq!(found(Assumption::OneClock), Promise::NodesTime);
}

#[test]
fn a_replica_that_votes_is_found() {
    assert_eq!(found(Assumption::Replica), Promise::Replica);
}

#[test]
fn a_node_that_answers_a_device_twice_is_found() {
    assert_eq!(found(Assumption::Twice), Promise::Votes);
}

#[test]
fn a_device_that_is_told_the_identity_of_a_node_once_is_found() {
    assert_eq!(found(Assumption::OldIdentity), Promise::Restart);
}

#[test]
fn a_release_that_a_device_has_stored_and_that_is_never_done_is_found() {
    assert_eq!(found(Assumption::StoredRelease), Promise::Cleanup);
}

#[test]
fn a_release_that_counts_nodes_which_never_had_the_key_is_found() {
    assert_eq!(found(Assumption::EarlyRelease), Promise::Release);
}

#[test]
fn fences_go_back_where_other_rules_shorten_their_life() {
    assert_eq!(found(Assumption::ShorterFences), Promise::Fence);
}

#[test]
fn a_client_that_vouches_by_what_an_earlier_attempt_was_told_lets_two_hold_one_lock() {
    assert_eq!(found(Assumption::OldConfirmation), Promise::Exclusion);
}

#[test]
fn a_client_that_vouches_by_the_records_of_earlier_processes_lets_two_hold_one_lock() {
    assert_eq!(found(Assumption::OldRecords), Promise::Exclusion);
}

#[test]
fn a_plain_client_that_takes_longer_leases_than_the_guard_records_allow_is_found() {
    assert_eq!(found(Assumption::LongPlain), Promise::Ttl);
}

#[test]
fn a_client_that_does_not_come_and_keeps_its_place_leaves_the_lock_idle() {
    assert_eq!(found(Assumption::KeptHead), Promise::Idle);
}

#[test]
fn a_turn_that_does_not_end_leaves_the_lock_idle() {
    assert_eq!(found(Assumption::EndlessTurn), Promise::Idle);
}

#[test]
fn clients_that_sleep_for_long_after_a_split_vote_leave_the_lock_idle() {
    assert_eq!(found(Assumption::LongTimer), Promise::Idle);
}

#[test]
fn clients_that_draw_a_ticket_for_each_try_overtake_others() {
    assert_eq!(found(Assumption::TicketPerTry), Promise::Fairness);
}

#[test]
fn nodes_that_take_an_error_for_the_end_of_a_client_let_others_overtake_it() {
    assert_eq!(found(Assumption::ErrorIsDeath), Promise::Fairness);
}

#[test]
fn clients_that_try_when_the_first_node_calls_are_found() {
    assert_eq!(found(Assumption::FirstCall), Promise::Restraint);
}

#[test]
fn a_client_that_has_left_and_stays_in_the_line_is_found() {
    assert_eq!(found(Assumption::KeptPlace), Promise::Line);
}

#[test]
fn a_node_that_votes_before_the_min_hold_that_it_has_forgotten_is_over_is_found() {
    assert_eq!(found(Assumption::MinHoldGuard), Promise::MinHold);
}
