//! Reads the nodes from the environment, and passes the linker its scripts.

use std::collections::HashSet;
use std::net::SocketAddrV4;
use std::path::PathBuf;
use std::{env, fs};

fn main() {
    // The HAL brings memory.x.
    for argument in ["--nmagic", "-Tlink.x", "-Tdefmt.x"] {
        println!("cargo::rustc-link-arg-bins={argument}");
    }
    match nodes() {
        Ok(nodes) => write_nodes(&nodes),
        Err(error) => println!("cargo::error={error}"),
    }
}

/// The nodes, from `REDLOCK_NODES`, with commas between them; `redis://` and the port 6379 may be left out.
fn nodes() -> Result<Vec<SocketAddrV4>, String> {
    /// Addresses that are reserved for documentation: no server answers there.
    const EXAMPLE: &str = "192.0.2.1:6379,192.0.2.2:6379,192.0.2.3:6379";
    /// The largest number of nodes of the lock.
    const MAX: usize = 32;

    println!("cargo::rerun-if-env-changed=REDLOCK_NODES");
    let text = env::var("REDLOCK_NODES").unwrap_or_else(|_| {
        println!("cargo::warning=REDLOCK_NODES is not set: this firmware looks for {EXAMPLE}");
        EXAMPLE.into()
    });
    let nodes = text.split(',').map(node).collect::<Result<Vec<_>, _>>()?;
    let different = nodes.iter().collect::<HashSet<_>>().len();
    if different < nodes.len() {
        return Err(format!("REDLOCK_NODES: a node is named twice in '{text}'"));
    }
    if different > MAX {
        return Err(format!(
            "REDLOCK_NODES: {different} nodes, but {MAX} are the most"
        ));
    }
    // Four nodes tolerate the loss of one node, like three.
    if different % 2 == 0 {
        println!(
            "cargo::warning=REDLOCK_NODES: {different} nodes stand no more failures than one node less"
        );
    }
    Ok(nodes)
}

fn node(text: &str) -> Result<SocketAddrV4, String> {
    let text = text.trim();
    let address = text.strip_prefix("redis://").unwrap_or(text);
    let with_port = address.parse::<SocketAddrV4>();
    with_port
        .or_else(|_| address.parse().map(|ip| SocketAddrV4::new(ip, 6379)))
        .ok()
        .filter(|node| node.port() != 0)
        .ok_or_else(|| {
            format!(
                "REDLOCK_NODES: '{text}' is not an IPv4 address with a port, such as 10.0.0.1:6379"
            )
        })
}

fn write_nodes(nodes: &[SocketAddrV4]) {
    let list = nodes.iter().map(|node| {
        let [a, b, c, d] = node.ip().octets();
        format!(
            "    SocketAddrV4::new(Ipv4Addr::new({a}, {b}, {c}, {d}), {}),\n",
            node.port()
        )
    });
    let code = format!(
        "const NODES: [SocketAddrV4; {}] = [\n{}];\n",
        nodes.len(),
        list.collect::<String>()
    );
    fs::write(out_dir().join("nodes.rs"), code).expect("cargo made this folder");
}

fn out_dir() -> PathBuf {
    PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"))
}
