//! Servers that start together on a database without tables.

use std::time::Duration;

use redlock_example_orders::schema::migrate;
use redlock_std::{Options, Redlock};
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
