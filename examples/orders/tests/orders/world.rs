//! A service with its nodes, its database and its payment provider: in memory, or real.

use std::collections::HashMap;
use std::future::Future;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::http::{Method, Request, StatusCode};
use axum::{BoxError, Router};
use redlock_example_orders::ledger::{Claim, Ledger, Postgres};
use redlock_example_orders::payments::Payments;
use redlock_example_orders::schema::migrate;
use redlock_example_orders::service::{Shop, router};
use redlock_std::{Fence, Fencing, MemoryNode, Options, Redlock};
use redlock_tests::Servers;
use tokio::sync::{Semaphore, watch};
use tower::ServiceExt as _;

use crate::database::Database;

pub(crate) struct World {
    service: Router,
    nodes: Nodes,
    orders: Orders,
    provider: Provider,
}

enum Nodes {
    Memory([MemoryNode; 5]),
    Servers(Mutex<Servers>),
}

enum Orders {
    Memory(MemoryLedger),
    Postgres(Database),
}

impl World {
    pub(crate) fn in_memory() -> Self {
        let nodes: [MemoryNode; 5] = MemoryNode::array();
        let redlock = Redlock::in_memory(&nodes, options()).unwrap();
        let orders = MemoryLedger::default();
        let provider = Provider::default();
        let service = router(Shop {
            redlock,
            ledger: orders.clone(),
            payments: provider.clone(),
        });
        Self {
            service,
            nodes: Nodes::Memory(nodes),
            orders: Orders::Memory(orders),
            provider,
        }
    }

    pub(crate) async fn on_real_servers() -> Self {
        let servers = Servers::start(5);
        let database = Database::start().await;
        let provider = Provider::default();
        let redlock = Redlock::connect(servers.urls(), options()).unwrap();
        let mut client = database.connect().await;
        assert_eq!(migrate(&redlock, &mut client).await.unwrap(), 2);
        let service = router(Shop {
            redlock,
            ledger: Postgres::new(client).await.unwrap(),
            payments: provider.clone(),
        });
        let orders = "INSERT INTO orders (id) VALUES (1), (2)";
        database.query(orders).await;
        Self {
            service,
            nodes: Nodes::Servers(Mutex::new(servers)),
            orders: Orders::Postgres(database),
            provider,
        }
    }

    pub(crate) fn pay(
        &self,
        order: i64,
    ) -> impl Future<Output = (StatusCode, String)> + Send + use<> {
        self.ask(Method::POST, &format!("/orders/{order}/pay"))
    }

    pub(crate) fn get(
        &self,
        path: &str,
    ) -> impl Future<Output = (StatusCode, String)> + Send + use<> {
        self.ask(Method::GET, path)
    }

    fn ask(
        &self,
        method: Method,
        path: &str,
    ) -> impl Future<Output = (StatusCode, String)> + Send + use<> {
        let request = Request::builder().method(method).uri(path);
        let request = request.body(Body::empty()).unwrap();
        let service = self.service.clone();
        async move {
            let answer = service.oneshot(request).await.unwrap();
            let status = answer.status();
            let text = to_bytes(answer.into_body(), 65_536).await.unwrap();
            (status, String::from_utf8(text.to_vec()).unwrap())
        }
    }

    pub(crate) fn hang(&self, node: usize) {
        match &self.nodes {
            Nodes::Memory(nodes) => nodes[node].hang(),
            Nodes::Servers(servers) => servers.lock().unwrap()[node].pause(),
        }
    }

    pub(crate) fn kill(&self, node: usize) {
        match &self.nodes {
            Nodes::Memory(nodes) => nodes[node].kill(),
            Nodes::Servers(servers) => servers.lock().unwrap()[node].kill(),
        }
    }

    /// From now on, a charge does not end.
    pub(crate) fn hold_charges(&self) {
        self.provider.is_open.send_replace(false);
    }

    pub(crate) async fn charge_has_begun(&self) {
        self.provider.begun.acquire().await.unwrap().forget();
    }

    pub(crate) fn charge_count(&self) -> u32 {
        self.provider.count.load(Ordering::Relaxed)
    }

    pub(crate) async fn is_paid(&self, order: i64) -> bool {
        match &self.orders {
            Orders::Memory(orders) => orders.0.lock().unwrap()[&order].receipt.is_some(),
            Orders::Postgres(database) => database.receipt(order).await.is_some(),
        }
    }
}

fn options() -> Options {
    let options = Options::new(Duration::from_secs(2)).unwrap();
    let options = options.fenced(Fencing::default()).unwrap();
    let options = options.wait(Duration::from_secs(3));
    options.node_timeout(Duration::from_millis(200)).unwrap()
}

/// The table of the orders 1 and 2.
#[derive(Debug, Clone)]
struct MemoryLedger(Arc<Mutex<HashMap<i64, Row>>>);

#[derive(Debug, Default)]
struct Row {
    receipt: Option<String>,
    fence: Option<Fence>,
}

impl Default for MemoryLedger {
    fn default() -> Self {
        let rows = [1, 2].map(|id| (id, Row::default()));
        Self(Arc::new(Mutex::new(rows.into())))
    }
}

impl Ledger for MemoryLedger {
    async fn claim(&self, order: i64, fence: Fence) -> Result<Claim, BoxError> {
        let mut rows = self.0.lock().unwrap();
        let Some(row) = rows.get_mut(&order) else {
            return Ok(Claim::Unknown);
        };
        if row.fence > Some(fence) {
            return Ok(Claim::Superseded);
        }
        row.fence = Some(fence);
        Ok(match &row.receipt {
            Some(_) => Claim::Paid,
            None => Claim::Open,
        })
    }

    async fn settle(&self, order: i64, fence: Fence, receipt: &str) -> Result<bool, BoxError> {
        let mut rows = self.0.lock().unwrap();
        let row = rows.get_mut(&order);
        let row = row.filter(|row| row.fence == Some(fence));
        let is_done = row.is_some();
        if let Some(row) = row {
            row.receipt = Some(receipt.into());
        }
        Ok(is_done)
    }
}

#[derive(Debug, Clone)]
struct Provider {
    begun: Arc<Semaphore>,
    is_open: watch::Sender<bool>,
    count: Arc<AtomicU32>,
}

impl Default for Provider {
    fn default() -> Self {
        Self {
            begun: Arc::new(Semaphore::new(0)),
            is_open: watch::channel(true).0,
            count: Arc::default(),
        }
    }
}

impl Payments for Provider {
    async fn charge(&self, order: i64) -> Result<String, BoxError> {
        self.begun.add_permits(1);
        let mut is_open = self.is_open.subscribe();
        drop(is_open.wait_for(|is_open| *is_open).await?);
        let number = self.count.fetch_add(1, Ordering::Relaxed);
        Ok(format!("receipt {number} of order {order}"))
    }
}
