//! Network namespaces for a host and targets, joined by a bridge through links of a limited rate.

use std::cell::Cell;
use std::process::Command;

use anyhow::{Context, Result, bail};

const BRIDGE: &str = "twillfab";
const HOST_PORT: &str = "twfh";

/// The namespaces; they go when this is dropped.
pub struct Links {
    targets: usize,
    is_limited: bool,
    /// Racks that were set up over them.
    racks: Cell<u16>,
}

/// The bridge's end of a target's link.
fn bridge_port(target: usize) -> String {
    format!("twf{target}")
}

/// Where a target listens.
pub fn address(target: usize) -> String {
    format!("10.77.0.{}", 10 + target)
}

impl Links {
    /// A link for each target, and one for the host, of these rates in Mbit/s each way; 0 is no limit.
    pub fn new(targets: &[u32], host: u32) -> Result<Self> {
        if !rustix::process::geteuid().is_root() {
            bail!("network namespaces need root: run it with sudo");
        }
        let links = Links { targets: targets.len(), is_limited: host > 0, racks: Cell::new(0) };
        links.remove();
        ip(&["link", "add", BRIDGE, "type", "bridge"])?;
        ip(&["link", "set", BRIDGE, "up"])?;
        links.connect(&links.host(), "10.77.0.1", HOST_PORT, host)?;
        for (target, rate) in targets.iter().enumerate() {
            links.connect(&links.target(target), &address(target), &bridge_port(target), *rate)?;
        }
        Ok(links)
    }

    /// A port for the targets of a rack, for each rack another one: the kernel takes the ring of a killed server down in the
    /// background, and the port stays in use for as long.
    pub fn port(&self) -> u16 {
        const FIRST: u16 = 4420;
        const PORTS: u16 = 10_000;
        self.racks.set((self.racks.get() + 1) % PORTS);
        FIRST + self.racks.get()
    }

    /// Whether links are what is scarce; otherwise the processors are.
    pub fn are_limited(&self) -> bool {
        self.is_limited
    }

    pub fn host(&self) -> String {
        "twillfab-host".into()
    }

    pub fn target(&self, target: usize) -> String {
        format!("twillfab-{target}")
    }

    fn connect(&self, namespace: &str, address: &str, port: &str, rate: u32) -> Result<()> {
        ip(&["netns", "add", namespace])?;
        ip(&["link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", namespace])?;
        ip(&["link", "set", port, "master", BRIDGE, "up"])?;
        ip(&["-n", namespace, "address", "add", &format!("{address}/24"), "dev", "eth0"])?;
        ip(&["-n", namespace, "link", "set", "eth0", "up"])?;
        ip(&["-n", namespace, "link", "set", "lo", "up"])?;
        if rate == 0 {
            return Ok(());
        }
        let rate = format!("{rate}mbit");
        let shape = ["root", "tbf", "rate", &rate, "burst", "128kb", "latency", "200ms"];
        // What goes to the namespace, and what comes from it.
        run("tc", &[&["qdisc", "add", "dev", port], &shape[..]].concat())?;
        let inside = ["netns", "exec", namespace, "tc", "qdisc", "add", "dev", "eth0"];
        ip(&[&inside[..], &shape[..]].concat())
    }

    /// Bytes that the host's interface has sent and received.
    pub fn host_bytes(&self) -> Result<(u64, u64)> {
        // Of the other end: what that receives was sent by the host.
        let read = |what: &str| -> Result<u64> {
            let path = format!("/sys/class/net/{HOST_PORT}/statistics/{what}_bytes");
            let text = std::fs::read_to_string(&path).with_context(|| path.clone())?;
            text.trim().parse().context(path)
        };
        Ok((read("rx")?, read("tx")?))
    }

    fn remove(&self) {
        let quietly = |arguments: &[&str]| {
            let _there_or_not =
                Command::new("ip").args(arguments).stderr(std::process::Stdio::null()).status();
        };
        // The kernel takes a namespace down in the background; its link would stay for as long, and the next run needs its name.
        let remove_end = |namespace: &str, port: &str| {
            quietly(&["link", "del", port]);
            quietly(&["netns", "del", namespace]);
        };
        remove_end(&self.host(), HOST_PORT);
        (0..self.targets).for_each(|target| remove_end(&self.target(target), &bridge_port(target)));
        quietly(&["link", "del", BRIDGE]);
    }
}

impl Drop for Links {
    fn drop(&mut self) {
        self.remove();
    }
}

fn ip(arguments: &[&str]) -> Result<()> {
    run("ip", arguments)
}

fn run(program: &str, arguments: &[&str]) -> Result<()> {
    let output =
        Command::new(program).args(arguments).output().with_context(|| format!("{program}, of iproute2"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{program} {}: {}", arguments.join(" "), said.trim());
    }
    Ok(())
}
