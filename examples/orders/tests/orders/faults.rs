//! Faults of the nodes, in each world.

use axum::http::StatusCode;
use tokio::task::JoinSet;

use crate::world::World;

/// Each test in memory and on real servers.
macro_rules! in_both_worlds {
    ($($test:ident),* $(,)?) => {
        mod in_memory {
            $(#[tokio::test(start_paused = true)]
            async fn $test() {
                super::$test(super::World::in_memory()).await;
            })*
        }

        mod on_real_servers {
            $(#[tokio::test]
            async fn $test() {
                super::$test(super::World::on_real_servers().await).await;
            })*
        }
    };
}

in_both_worlds![
    an_order_is_charged_once_if_many_ask_for_it,
    an_order_is_paid_although_a_node_hangs_and_another_is_dead,
    an_order_is_not_paid_if_the_lock_is_lost_half_way,
    a_server_without_a_quorum_of_nodes_is_not_ready,
    an_order_that_does_not_exist_is_not_found,
];

async fn an_order_is_charged_once_if_many_ask_for_it(world: World) {
    let mut requests = JoinSet::new();
    for _ in 0..10 {
        requests.spawn(world.pay(1));
    }
    let answers = requests.join_all().await;
    for (status, text) in &answers {
        assert_eq!(*status, StatusCode::OK, "{text}");
    }
    let paid = answers.iter().filter(|(_, text)| text == "paid\n");
    assert_eq!(paid.count(), 1);
    assert_eq!(world.charge_count(), 1);
}

async fn an_order_is_paid_although_a_node_hangs_and_another_is_dead(world: World) {
    world.hang(0);
    world.kill(1);
    let (status, text) = world.pay(1).await;
    assert_eq!(status, StatusCode::OK, "{text}");
    assert!(world.is_paid(1).await);
}

async fn an_order_is_not_paid_if_the_lock_is_lost_half_way(world: World) {
    world.hold_charges();
    let request = tokio::spawn(world.pay(1));
    world.charge_has_begun().await;
    world.hang(0);
    world.kill(1);
    world.kill(2);
    let (status, text) = request.await.unwrap();
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{text}");
    assert!(text.starts_with("the work was stopped"), "{text}");
    assert!(!world.is_paid(1).await);
}

async fn a_server_without_a_quorum_of_nodes_is_not_ready(world: World) {
    // The status is what the nodes last said.
    world.pay(1).await;
    let (status, text) = world.get("/ready").await;
    assert_eq!(status, StatusCode::OK, "{text}");
    (0..3).for_each(|node| world.kill(node));
    world.pay(2).await;
    let (status, text) = world.get("/ready").await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{text}");
    assert_eq!(text.matches("not connected").count(), 3, "{text}");
}

async fn an_order_that_does_not_exist_is_not_found(world: World) {
    let (status, text) = world.pay(77).await;
    assert_eq!(status, StatusCode::NOT_FOUND, "{text}");
}
