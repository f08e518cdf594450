//! Servers that start together on a database without tables.

use std::time::Duration;

use redlock_example_orders::schema::{MigrationError, migrate};
use redlock_std::{MemoryNode, Options, Redlock};
use redlock_tests::Servers;
use tokio::task::JoinSet;
use tokio_postgres::error::SqlState;

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
async fn a_server_that_wakes_up_late_finds_that_the_number_of_its_step_is_taken() {
    const WAITING: &str = "SELECT 1 FROM pg_locks WHERE NOT granted";
    let database = Database::start().await;
    let mut other = database.connect().await;
    let table = "CREATE TABLE schema_steps (number INT PRIMARY KEY)";
    other.batch_execute(table).await.unwrap();
    let done = other.transaction().await.unwrap();
    done.batch_execute("LOCK schema_steps IN EXCLUSIVE MODE")
        .await
        .unwrap();

    // It has chosen its step, and waits.
    let options = Options::new(Duration::from_secs(60)).unwrap();
    let redlock = Redlock::in_memory(&MemoryNode::array::<3>(), options).unwrap();
    let mut client = database.connect().await;
    let late = tokio::spawn(async move { migrate(&redlock, &mut client).await });
    while database
        .connect()
        .await
        .query(WAITING, &[])
        .await
        .unwrap()
        .is_empty()
    {
        tokio::task::yield_now().await;
    }
    // Another server has done all steps meanwhile. They have left nothing in which the late one would run twice.
    let steps = "INSERT INTO schema_steps (number) VALUES (0), (1)";
    done.batch_execute(steps).await.unwrap();
    done.commit().await.unwrap();
    let Err(MigrationError::Database(error)) = late.await.unwrap() else {
        panic!("it is not refused");
    };
    assert_eq!(error.code(), Some(&SqlState::UNIQUE_VIOLATION), "{error}");
}
