//! What ranks of several hosts need: addresses, a token, ports.

use std::net::IpAddr;

use super::report::Check;
use super::sysfs::Tree;
use crate::env;
use crate::launch::InterfaceChoice;
use crate::rendezvous::auth::MIN_TOKEN_BYTES;

/// What a process knows apart from files.
#[derive(Debug, Clone)]
pub(super) struct Settings {
    /// Interfaces and their addresses, or why they are unknown.
    pub(super) interfaces: Result<Vec<(String, IpAddr)>, String>,
    /// `EPWIRE_IFNAME`
    pub(super) choice: Option<String>,
    /// Bytes of the token, if there is one, or why it could not be read.
    pub(super) token: Result<Option<usize>, String>,
    /// First and last of `EPWIRE_PORTS`, or why it is not a range.
    pub(super) ports: Result<Option<(u16, u16)>, String>,
}

impl Settings {
    /// The settings of this process.
    pub(super) fn of_process() -> Self {
        let listed = if_addrs::get_if_addrs().map_err(|error| error.to_string());
        let interfaces = listed.map(|all| all.into_iter().map(|one| (one.name.clone(), one.ip())).collect());
        let token = env::Token::from_env();
        Self {
            interfaces,
            choice: env::value(env::IFNAME),
            token: token
                .map(|token| token.map(|token| token.as_bytes().len()))
                .map_err(|error| error.to_string()),
            ports: env::ports().map_err(|error| error.to_string()),
        }
    }

    /// Those of a process that did not find them out, for this reason.
    pub(super) fn unknown(reason: String) -> Self {
        Self { interfaces: Err(reason.clone()), choice: None, token: Err(reason.clone()), ports: Err(reason) }
    }
}

/// The checks for queues over TCP.
pub(super) fn checks(tree: &Tree, settings: &Settings) -> Vec<Check> {
    let mut checks = interfaces(tree, settings);
    checks.push(token(&settings.token));
    checks.push(ports(&settings.ports));
    checks
}

fn interfaces(tree: &Tree, settings: &Settings) -> Vec<Check> {
    const NAME: &str = "interfaces";
    let all = match &settings.interfaces {
        Ok(all) => all,
        Err(reason) => return vec![Check::unknown(NAME, reason)],
    };
    let choice = settings.choice.as_deref().map(str::parse::<InterfaceChoice>);
    let Ok(choice) = choice.transpose() else {
        let text = settings.choice.as_deref().unwrap_or_default();
        return vec![
            Check::missing(NAME, format!("{}={text:?} is not a list of interface names", env::IFNAME))
                .remedy(format!("set {} to names such as eth0,ib or ^docker", env::IFNAME)),
        ];
    };
    let admits = |name: &str| choice.as_ref().is_none_or(|choice| choice.admits(name));
    let mut names: Vec<&str> = all.iter().map(|(name, _)| name.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    let usable: Vec<&str> = names
        .iter()
        .copied()
        .filter(|name| admits(name) && all.iter().any(|(of, ip)| of == name && reaches_others(ip)))
        .collect();
    let by = settings.choice.as_ref().map_or(String::new(), |text| format!(", by {}={text}", env::IFNAME));
    let mut checks = Vec::new();
    if usable.is_empty() {
        let found =
            if names.is_empty() { "none at all".to_owned() } else { format!("only {}", names.join(", ")) };
        checks.push(
            Check::warning(NAME, format!("no interface that other hosts reach{by}; there is {found}"))
                .remedy("ranks of this host alone can meet; else see ip address, and the network of the container"),
        );
    } else {
        checks.push(Check::ok(NAME, format!("{}{by}", usable.join(", "))));
    }
    checks.extend(usable.into_iter().map(|name| interface(tree, name, all)));
    checks
}

fn reaches_others(ip: &IpAddr) -> bool {
    !ip.is_loopback() && !matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local())
}

fn interface(tree: &Tree, name: &str, all: &[(String, IpAddr)]) -> Check {
    let addresses = all.iter().filter(|(of, ip)| of == name && reaches_others(ip));
    let mut facts: Vec<String> = addresses.map(|(_, ip)| ip.to_string()).collect();
    let fact = |file: &str| tree.text(&format!("/sys/class/net/{name}/{file}")).ok();
    let state = fact("operstate");
    facts.extend(fact("mtu").map(|mtu| format!("MTU {mtu}")));
    // The kernel reports -1, or nothing, for an interface without a speed of its own.
    let speed = fact("speed").and_then(|speed| speed.parse::<u32>().ok());
    facts.extend(speed.map(|speed| format!("{speed} Mb/s")));
    let label = format!("interface {name}");
    match state.as_deref() {
        Some(state @ ("down" | "lowerlayerdown" | "notpresent")) => {
            facts.push(state.to_owned());
            let remedy = format!("ip link set {name} up, or leave it out: {}=^={name}", env::IFNAME);
            Check::warning(label, facts.join(", ")).remedy(remedy)
        }
        _ => Check::ok(label, facts.join(", ")),
    }
}

fn token(length: &Result<Option<usize>, String>) -> Check {
    const NAME: &str = "token";
    const APART: &str = "ranks of several hosts neither meet nor reach each other";
    let remedy = format!(
        "set {} to a file with {MIN_TOKEN_BYTES} bytes or more, the same on all hosts",
        env::TOKEN_FILE
    );
    match length {
        Ok(Some(length)) if *length < MIN_TOKEN_BYTES => {
            Check::warning(NAME, format!("of {length} bytes, which serve one host only: {APART}"))
                .remedy(remedy)
        }
        Ok(Some(_)) => Check::ok(NAME, "there is one"),
        Ok(None) => Check::warning(NAME, format!("none: {APART}")).remedy(remedy),
        Err(reason) => Check::missing(NAME, reason),
    }
}

fn ports(ports: &Result<Option<(u16, u16)>, String>) -> Check {
    const NAME: &str = "ports";
    match ports {
        Ok(None) => Check::ok(NAME, "any: a firewall between the hosts must let all of them through")
            .remedy(format!("where there is one, bound them: {}=29800-29899", env::PORTS)),
        Ok(Some((first, last))) => Check::ok(NAME, format!("{first} to {last}")),
        Err(reason) => Check::missing(NAME, reason),
    }
}
