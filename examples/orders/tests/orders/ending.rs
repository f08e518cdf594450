//! How the service ends as a process.

use std::time::Duration;

use redlock_tests::{Servers, eventually};
use rustix::process::Signal;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use crate::database::Database;
use crate::process::{Provider, Service};

const SOON: Duration = Duration::from_secs(20);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_whose_database_has_ended_ends_with_an_error_so_that_it_is_started_anew() {
    let servers = Servers::start(3);
    let database = Database::start().await;
    let provider = Provider::start().await;
    let mut service = Service::start(&servers, database.port(), &provider);
    drop(database);
    let ended = || service.ended().is_some_and(|status| !status.success());
    eventually("the service ends", SOON, ended).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_is_never_sent_to_its_end_does_not_keep_a_service_from_ending() {
    let servers = Servers::start(3);
    let database = Database::start().await;
    let provider = Provider::start().await;
    let mut service = Service::start(&servers, database.port(), &provider);
    let address = service.url.strip_prefix("http://").unwrap();
    let mut request = TcpStream::connect(address).await.unwrap();
    request.write_all(b"POST /orders/1/pay HT").await.unwrap();
    // Its head has arrived.
    let unknown = service.pay(2).await;
    assert!(unknown.0.is_client_error(), "{unknown:?}");
    service.signal(Signal::TERM);
    let ended = || service.ended().is_some_and(|status| status.success());
    eventually("the service ends", SOON, ended).await;
}
