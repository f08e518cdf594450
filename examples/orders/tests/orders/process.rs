//! The service as a process, and a payment provider that it calls.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use axum::Router;
use axum::http::StatusCode;
use axum::routing::post;
use redlock_tests::{Servers, child};
use rustix::process::{Pid, Signal, kill_process};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

/// The service as a process.
pub(crate) struct Service {
    child: Child,
    pub(crate) url: String,
}

impl Service {
    pub(crate) fn start(servers: &Servers, database: u16, provider: &Provider) -> Self {
        let mut command = child::bound(env!("CARGO_BIN_EXE_orders"));
        let database = format!("postgres://shop@127.0.0.1:{database}/postgres");
        command.env("REDLOCK_NODES", servers.urls().join(","));
        command.env("DATABASE_URL", database);
        command.env("PAYMENTS_URL", &provider.url);
        command.env("LISTEN", "127.0.0.1:0").stdout(Stdio::piped());
        let mut child = child::spawn(command).unwrap();
        let mut line = String::new();
        let output = child.stdout.take().unwrap();
        BufReader::new(output).read_line(&mut line).unwrap();
        let url = line.trim().strip_prefix("listening on ").unwrap().into();
        Self { child, url }
    }

    pub(crate) fn pay(
        &self,
        order: i64,
    ) -> impl Future<Output = (StatusCode, String)> + Send + use<> {
        let url = format!("{}/orders/{order}/pay", self.url);
        async move {
            let answer = reqwest::Client::new().post(url).send().await.unwrap();
            (answer.status(), answer.text().await.unwrap())
        }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// How it has ended, if it has.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        child::end(&mut self.child);
    }
}

/// A payment provider, over HTTP, that answers when it is told to.
pub(crate) struct Provider {
    url: String,
    pub(crate) asked: Arc<Semaphore>,
    pub(crate) answers: Arc<Semaphore>,
}

impl Provider {
    pub(crate) async fn start() -> Self {
        let [asked, answers] = [0, 0].map(|permits| Arc::new(Semaphore::new(permits)));
        let charge = {
            let (asked, answers) = (Arc::clone(&asked), Arc::clone(&answers));
            let count = Arc::new(AtomicU32::new(0));
            async move || {
                let number = count.fetch_add(1, Ordering::Relaxed);
                asked.add_permits(1);
                answers.acquire().await.unwrap().forget();
                format!("receipt {number}")
            }
        };
        let service = Router::new().route("/charges/{order}", post(charge));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, service).await });
        Self {
            url,
            asked,
            answers,
        }
    }
}
