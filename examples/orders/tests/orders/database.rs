//! A real Postgres on a free loopback port. It ends with its handle, and with the test process.

use std::net::TcpListener;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use std::{env, fs};

use redlock_tests::child;
use tempfile::TempDir;
use tokio_postgres::{Client, NoTls, SimpleQueryMessage};

pub(crate) struct Database {
    port: u16,
    child: Child,
    _directory: TempDir,
}

impl Database {
    pub(crate) async fn start() -> Self {
        let directory = TempDir::new().unwrap();
        let data = directory.path().join("data");
        fs::create_dir(&data).unwrap();
        let mut initdb = Command::new(program("initdb"));
        // A database that is gone after the test need not be on the disk.
        initdb.args(["--auth=trust", "--username=shop", "--no-sync", "-D"]);
        initdb.arg(&data).stdout(Stdio::null());
        own(&mut initdb, directory.path(), &data);
        assert!(initdb.status().unwrap().success(), "initdb failed");

        // The port is free until another process takes it: then the server ends, and the next port is tried.
        for _ in 0..10 {
            let port = free_port();
            let mut postgres = child::bound(program("postgres"));
            let settings = format!("-F -h 127.0.0.1 -p {port} -c logging_collector=off");
            postgres.args(settings.split(' ')).arg("-k");
            postgres.arg(&data).arg("-D").arg(&data);
            postgres.stdout(Stdio::null()).stderr(Stdio::null());
            own(&mut postgres, directory.path(), &data);
            let mut child = child::spawn(postgres).unwrap();
            while child.try_wait().unwrap().is_none() {
                if connect(port).await.is_ok() {
                    return Self {
                        port,
                        child,
                        _directory: directory,
                    };
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
        unreachable!("ten ports that were free were taken")
    }

    pub(crate) const fn port(&self) -> u16 {
        self.port
    }

    pub(crate) async fn connect(&self) -> Client {
        connect(self.port).await.unwrap()
    }

    pub(crate) async fn query(&self, sql: &str) -> Vec<SimpleQueryMessage> {
        self.connect().await.simple_query(sql).await.unwrap()
    }

    pub(crate) async fn receipt(&self, order: i64) -> Option<String> {
        let sql = "SELECT receipt FROM orders WHERE id = $1";
        let row = self.connect().await.query_one(sql, &[&order]).await;
        row.unwrap().get("receipt")
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        child::end(&mut self.child);
    }
}

async fn connect(port: u16) -> Result<Client, tokio_postgres::Error> {
    let url = format!("postgres://shop@127.0.0.1:{port}/postgres");
    let (client, connection) = tokio_postgres::connect(&url, NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

/// Debian keeps the programs of each version in a directory of its own, outside of PATH.
fn program(name: &str) -> PathBuf {
    let paths = env::var_os("PATH").unwrap_or_default();
    let mut directories: Vec<PathBuf> = env::split_paths(&paths).collect();
    let versions = fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .flatten();
    directories.extend(versions.map(|version| version.path().join("bin")));
    let found = directories
        .into_iter()
        .map(|directory| directory.join(name));
    found
        .into_iter()
        .find(|path| path.is_file())
        .expect("a Postgres; ./test.sh installs it")
}

/// Postgres does not run as root: then it runs as the user that Debian's package makes for it.
fn own(command: &mut Command, directory: &Path, data: &Path) {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let users = fs::read_to_string("/etc/passwd").unwrap();
    let user = users.lines().find_map(|line| {
        let mut fields = line.strip_prefix("postgres:")?.split(':').skip(1);
        let id = fields.next()?.parse().ok()?;
        Some((id, fields.next()?.parse().ok()?))
    });
    let (user, group): (u32, u32) = user.expect("the user postgres; ./test.sh installs it");
    for path in [directory, data] {
        chown(path, Some(user), Some(group)).unwrap();
    }
    command.uid(user).gid(group).current_dir(directory);
}
