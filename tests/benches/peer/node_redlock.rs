//! `node-redlock`, a client in another language, under the same loads: `node_redlock/client.js` runs them, in a process of its own.

use std::fmt::Debug;
use std::path::Path;
use std::process::Stdio;
use std::str::FromStr;
use std::time::Duration;

use redlock_tests::Servers;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use crate::TTL;
use crate::load::{
    CONTENDERS, CONTENTION_RUN, CROWD, Contention, HOLD, LATENCY_RUN, Latency, PAUSE,
    THROUGHPUT_RUN, Throughput, commands,
};

pub(crate) struct NodeRedlock {
    loads: ChildStdin,
    figures: Lines<BufReader<ChildStdout>>,
    /// Ends with this value.
    _process: Child,
}

impl NodeRedlock {
    pub(crate) const NAME: &'static str = "node-redlock";

    /// Installs the packages with `npm`, and starts the process.
    pub(crate) async fn start(urls: &[String]) -> Self {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/peer/node_redlock");
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("node_redlock");
        std::fs::create_dir_all(&folder).unwrap();
        for file in ["client.js", "package.json", "package-lock.json"] {
            std::fs::copy(source.join(file), folder.join(file)).unwrap();
        }
        let install = ["ci", "--ignore-scripts", "--no-audit", "--no-fund"];
        let mut npm = Command::new("npm");
        npm.args(install).current_dir(&folder).stdout(Stdio::null());
        let installed = npm.status().await;
        let is_installed = installed.is_ok_and(|installed| installed.success());
        assert!(is_installed, "`--node-redlock` needs Node.js and npm");
        let mut process = Command::new("node")
            .arg("client.js")
            .arg(TTL.as_millis().to_string())
            .args(urls)
            .current_dir(&folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut node_redlock = Self {
            loads: process.stdin.take().unwrap(),
            figures: BufReader::new(process.stdout.take().unwrap()).lines(),
            _process: process,
        };
        node_redlock.run("warmUp", &[]).await;
        node_redlock
    }

    pub(crate) async fn latency(&mut self) -> Latency {
        let cycles = self.run("latency", &[millis(LATENCY_RUN)]).await;
        Latency {
            cycles: times(&cycles),
        }
    }

    pub(crate) async fn throughput(&mut self) -> Throughput {
        let load = [millis(THROUGHPUT_RUN), u128::from(CROWD)];
        let figures = self.run("throughput", &load).await;
        let [cycles, seconds, cpu_us]: [f64; 3] = parsed(&figures).try_into().unwrap();
        Throughput {
            cycles,
            per_second: cycles / seconds,
            cpu_us_per_cycle: cpu_us / cycles,
        }
    }

    pub(crate) async fn contention(&mut self, servers: &Servers) -> Contention {
        let [run, hold, pause] = [CONTENTION_RUN, HOLD, PAUSE].map(millis);
        let load = [run, CONTENDERS as u128, hold, pause];
        let commands_before = commands(servers);
        let figures = self.run("contention", &load).await;
        let (turns, handoffs) = figures.split_at(CONTENDERS);
        Contention::since(commands_before, servers, &parsed(turns), times(handoffs))
    }

    /// Returns the figures of `load`.
    async fn run(&mut self, load: &str, numbers: &[u128]) -> Vec<String> {
        let mut line = load.to_owned();
        for number in numbers {
            line += &format!(" {number}");
        }
        line += "\n";
        self.loads.write_all(line.as_bytes()).await.unwrap();
        let figures = self.figures.next_line().await.unwrap().unwrap();
        figures.split_whitespace().map(str::to_owned).collect()
    }
}

fn times(micros: &[String]) -> Vec<Duration> {
    let micros = parsed::<f64>(micros).into_iter();
    micros
        .map(|micros| Duration::from_secs_f64(micros / 1e6))
        .collect()
}

fn parsed<T: FromStr<Err: Debug>>(figures: &[String]) -> Vec<T> {
    figures
        .iter()
        .map(|figure| figure.parse().unwrap())
        .collect()
}

const fn millis(time: Duration) -> u128 {
    time.as_millis()
}
