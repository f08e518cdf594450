//! Servers that start together on a database without tables.

use std::time::Duration;

use redlock_example_orders::schema::migrate;
use redlock_std::{MemoryNode, Options, Redlock};
use redlock_tests::Servers;
use tokio::task::JoinSet;

use crate::database::Database;

#[tokio::test]
async fn of_eight_servers_that_start_together_one_changes_the_tables_and_the_others_wait() {
    let servers = Servers::start(3);
    let database = Database::start().await;
    let mut deployment = JoinSet::new();
    for _ in 0..8 {
        let options = Options::new(Duration::from_secs(5)).unwrap();
        let options = options.wait(Duration::from_secs(60));
        let redlock = Redlock::connect(servers.urls(), options).unwrap();
        let mut client = database.connect().await;
        deployment.spawn(async move { migrate(&redlock, &mut client).await.unwrap() });
    }
    let mut steps = deployment.join_all().await;
    steps.sort_unstable();
    assert_eq!(steps, [0, 0, 0, 0, 0, 0, 0, 2]);
}

#[tokio::test]
async fn a_server_that_wakes_up_late_runs_no_step_that_another_one_has_run() {
    const WAITING: &str = "SELECT 1 FROM pg_locks WHERE NOT granted";
    let database = Database::start().await;
    let mut other = database.connect().await;
    let table = "CREATE TABLE schema_steps (number INT PRIMARY KEY)";
    other.batch_execute(table).await.unwrap();
    let done = other.transaction().await.unwrap();
    let lock = "LOCK TABLE schema_steps IN EXCLUSIVE MODE";
    done.batch_execute(lock).await.unwrap();

    let options = Options::new(Duration::from_secs(60)).unwrap();
    let redlock = Redlock::in_memory(&MemoryNode::array::<3>(), options).unwrap();
    let mut client = database.connect().await;
    let late = tokio::spawn(async move { migrate(&redlock, &mut client).await });
    let is_waiting = async || {
        let waiting = database.connect().await.query(WAITING, &[]).await;
        !waiting.unwrap().is_empty()
    };
    while !is_waiting().await {
        tokio::task::yield_now().await;
    }
    // Another server does the first step, and dies.
    let step = "INSERT INTO schema_steps (number) VALUES (0); CREATE TABLE orders (id BIGINT)";
    done.batch_execute(step).await.unwrap();
    done.commit().await.unwrap();
    assert_eq!(late.await.unwrap().unwrap(), 1);
}
