//! Hosts that are network namespaces of this machine, joined by a switch, and faults of the network between them. Needs
//! root, iproute2 and nftables.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// The namespaces, which are deleted with this value.
pub(crate) struct Hosts {
    names: Vec<String>,
    switch: String,
}

/// A counter of this process, so that no two namespaces have the same name.
static MADE: AtomicU32 = AtomicU32::new(0);

/// Why this machine cannot have them; `None` if it can.
pub(crate) fn lacking() -> Option<String> {
    // SAFETY: a plain system call.
    if unsafe { libc::geteuid() } != 0 {
        return Some("needs root, for network namespaces".to_owned());
    }
    let missing = ["ip", "nft"].into_iter().find(|tool| Command::new(tool).arg("-V").output().is_err());
    if let Some(tool) = missing {
        return Some(format!("needs the program {tool}"));
    }
    let name = format!("epw{}-probe", std::process::id());
    let made = ip(&["netns", "add", &name]);
    let _ = ip(&["netns", "del", &name]);
    made.err().map(|error| format!("needs network namespaces: {error}"))
}

fn run(mut command: Command) -> Result<(), String> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    if output.status.success() { Ok(()) } else { Err(format!("{command:?}: {said}")) }
}

fn ip(arguments: &[&str]) -> Result<(), String> {
    let mut command = Command::new("ip");
    command.args(arguments);
    run(command)
}

impl Hosts {
    /// This many hosts, each with the interface `eth0` and its [`Hosts::address`].
    pub(crate) fn new(count: u32) -> Self {
        let serial = MADE.fetch_add(1, Ordering::Relaxed);
        let name = |what: &str| format!("epw{}-{serial}{what}", std::process::id());
        let hosts = Self { names: (0..count).map(|at| name(&format!("h{at}"))).collect(), switch: name("s") };
        hosts.make().unwrap_or_else(|error| panic!("making network namespaces: {error}"));
        hosts
    }

    fn make(&self) -> Result<(), String> {
        let switch = self.switch.as_str();
        ip(&["netns", "add", switch])?;
        ip(&["-n", switch, "link", "add", "switch", "type", "bridge"])?;
        ip(&["-n", switch, "link", "set", "switch", "up"])?;
        for (at, name) in (0..).zip(&self.names) {
            let (port, address) = (format!("port{at}"), format!("{}/24", Self::address(at)));
            ip(&["netns", "add", name])?;
            ip(&["-n", switch, "link", "add", &port, "type", "veth", "peer", "name", "eth0", "netns", name])?;
            ip(&["-n", switch, "link", "set", &port, "master", "switch", "up"])?;
            ip(&["-n", name, "addr", "add", &address, "dev", "eth0"])?;
            ip(&["-n", name, "link", "set", "lo", "up"])?;
            ip(&["-n", name, "link", "set", "eth0", "up"])?;
        }
        Ok(())
    }

    pub(crate) fn address(host: u32) -> String {
        format!("10.77.0.{}", host + 1)
    }

    /// Makes the program run on this host, under the host's own name.
    pub(crate) fn place(&self, host: u32, program: &mut Command) {
        let name = self.names[host as usize].clone();
        let namespace = File::open(format!("/run/netns/{name}")).expect("the namespace is there");
        let enter = move || {
            // SAFETY: plain system calls between fork and exec, on a descriptor and a name that live as long as this
            // closure.
            let entered = unsafe {
                libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) == 0
                    && libc::unshare(libc::CLONE_NEWUTS) == 0
                    && libc::sethostname(name.as_ptr().cast(), name.len()) == 0
            };
            if entered { Ok(()) } else { Err(std::io::Error::last_os_error()) }
        };
        // SAFETY: it only calls the kernel, and allocates nothing.
        unsafe { program.pre_exec(enter) };
    }

    /// Cuts this host off: nothing reaches it or leaves it any more.
    pub(crate) fn cut(&self, host: u32) {
        self.drop(host, "oifname eth0 drop", "iifname eth0 drop");
    }

    /// Drops this many percent of the packets that come to this host.
    pub(crate) fn lose(&self, host: u32, percent: u32) {
        let lost = format!("iifname eth0 numgen random mod 100 < {percent} drop");
        self.drop(host, "oifname eth0 accept", &lost);
    }

    fn drop(&self, host: u32, output: &str, input: &str) {
        let chain = |hook: &str, rule: &str| {
            format!(
                "add chain inet epwire {hook} {{ type filter hook {hook} priority 0; }}; add rule inet epwire {hook} {rule}"
            )
        };
        self.nft(
            host,
            &format!("add table inet epwire; {}; {}", chain("output", output), chain("input", input)),
        );
    }

    /// Ends all faults of this host's network.
    pub(crate) fn heal(&self, host: u32) {
        self.nft(host, "delete table inet epwire");
    }

    /// Not by `ip netns exec`, which also unmounts a file system: on a busy machine the kernel takes seconds for that.
    fn nft(&self, host: u32, rules: &str) {
        let mut command = Command::new("nft");
        command.arg(rules);
        self.place(host, &mut command);
        run(command).unwrap_or_else(|error| panic!("{error}"));
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for name in self.names.iter().chain([&self.switch]) {
            // A namespace that was never created cannot be deleted.
            let _ = ip(&["netns", "del", name]);
        }
    }
}
