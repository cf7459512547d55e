//! A choice of network interfaces, in the grammar of NCCL.

use std::{fmt, net::IpAddr, str::FromStr};

use super::error::LaunchError;
use crate::env;
use crate::names::ParseNameError;

/// A choice of interfaces in the grammar of `EPWIRE_IFNAME`: a comma-separated list of name prefixes (`eth,ib`), of
/// exact names after `=` (`=eth0,eth1`), or after `^` of either kind to exclude (`^docker` or `^=eth0`).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct InterfaceChoice {
    names: Vec<String>,
    exact: bool,
    exclude: bool,
}

/// Parses the grammar above; spaces are ignored. An error if no name is left, or if a name begins with `^` or `=`: these
/// are allowed only once, before the whole list.
impl FromStr for InterfaceChoice {
    type Err = ParseNameError;

    fn from_str(whole: &str) -> Result<Self, ParseNameError> {
        let text = whole.trim_start();
        let (exclude, rest) = text.strip_prefix('^').map_or((false, text), |rest| (true, rest.trim_start()));
        let (exact, rest) = rest.strip_prefix('=').map_or((false, rest), |rest| (true, rest));
        let names: Vec<String> =
            rest.split(',').map(str::trim).filter(|name| !name.is_empty()).map(String::from).collect();
        let plain = !names.is_empty() && !names.iter().any(|name| name.starts_with(['^', '=']));
        plain.then_some(Self { names, exact, exclude }).ok_or_else(|| ParseNameError::new(whole, EXPECTED))
    }
}

const EXPECTED: &str = "a list of interface names, such as eth0,ib or ^docker";

impl InterfaceChoice {
    /// Whether the interface of this name is chosen.
    pub fn admits(&self, name: &str) -> bool {
        let listed =
            self.names.iter().any(|n| if self.exact { name == n } else { name.starts_with(n.as_str()) });
        listed != self.exclude
    }
}

impl fmt::Display for InterfaceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (not, exact) = (if self.exclude { "^" } else { "" }, if self.exact { "=" } else { "" });
        write!(f, "{not}{exact}{}", self.names.join(","))
    }
}

/// The address of this host on the interfaces of `EPWIRE_IFNAME`; `None` if it is unset. Among several admitted
/// addresses, one that other hosts can reach is preferred to loopback, and IPv4 to IPv6; among equals the system's
/// order decides. Link-local IPv6 addresses are skipped, because they mean nothing without a scope.
///
/// For programs that let rank 0 listen at it ([`GroupOptions::bind`](crate::group::GroupOptions::bind)); epwire itself
/// does not: its rendezvous listens at the address that the launcher gives.
///
/// # Errors
///
/// [`LaunchError::Invalid`] for an empty list, [`LaunchError::NoInterface`] with the names of the existing interfaces,
/// [`LaunchError::Interfaces`] if the system does not list them.
pub fn advertised_address() -> Result<Option<IpAddr>, LaunchError> {
    let Some(text) = env::value(env::IFNAME) else { return Ok(None) };
    let choice: InterfaceChoice = text.parse().map_err(|_| LaunchError::Invalid {
        variable: env::IFNAME,
        value: text,
        expected: EXPECTED.into(),
    })?;
    let interfaces: Vec<(String, IpAddr)> = if_addrs::get_if_addrs()
        .map_err(LaunchError::Interfaces)?
        .into_iter()
        .map(|interface| (interface.name.clone(), interface.ip()))
        .collect();
    select(&choice, &interfaces).map(Some).ok_or_else(|| {
        let mut found: Vec<&str> = interfaces.iter().map(|(name, _)| name.as_str()).collect();
        found.sort_unstable();
        found.dedup();
        LaunchError::NoInterface { choice: choice.to_string(), found: found.join(", ") }
    })
}

/// The best admitted address, see [`advertised_address`].
fn select(choice: &InterfaceChoice, interfaces: &[(String, IpAddr)]) -> Option<IpAddr> {
    let usable = |ip: &IpAddr| match ip {
        IpAddr::V4(_) => true,
        IpAddr::V6(v6) => !v6.is_unicast_link_local(),
    };
    interfaces
        .iter()
        .filter(|(name, ip)| choice.admits(name) && usable(ip))
        .map(|(_, ip)| *ip)
        .min_by_key(|ip| (ip.is_loopback(), ip.is_ipv6()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choice(text: &str) -> InterfaceChoice {
        text.parse().unwrap()
    }

    fn host() -> Vec<(String, IpAddr)> {
        [
            ("lo", "127.0.0.1"),
            ("docker0", "172.17.0.1"),
            ("eth0", "fe80::1"),
            ("eth0", "fd00::10"),
            ("eth0", "10.0.0.10"),
            ("eth1", "10.1.0.10"),
            ("ib0", "fd00::20"),
        ]
        .map(|(name, ip)| (name.to_owned(), ip.parse().unwrap()))
        .to_vec()
    }

    #[test]
    fn the_grammar_has_prefixes_exact_names_and_exclusion() {
        for (text, admitted) in [
            ("eth", &["eth0", "eth1"][..]),
            ("eth1,ib", &["eth1", "ib0"]),
            ("=eth0,ib", &["eth0"]),
            ("^docker,lo", &["eth0", "eth1", "ib0"]),
            ("^=eth0,eth", &["lo", "docker0", "eth1", "ib0"]),
        ] {
            let names: Vec<_> = ["lo", "docker0", "eth0", "eth1", "ib0"]
                .into_iter()
                .filter(|n| choice(text).admits(n))
                .collect();
            assert_eq!(names, admitted, "{text}");
            assert_eq!(choice(text).to_string(), text);
        }
        for empty in ["", "^", "=", "^=", " , "] {
            assert!(empty.parse::<InterfaceChoice>().is_err(), "{empty:?}");
        }
        for inside in ["eth0,^docker", "eth0,=eth1", ",=eth0", "^eth0,^eth1", "=^eth0", "==eth0"] {
            assert!(inside.parse::<InterfaceChoice>().is_err(), "{inside:?}");
        }
        assert_eq!(choice(" ^ = eth0 , ib0 "), choice("^=eth0,ib0"));
    }

    #[test]
    fn reachable_ipv4_comes_first_and_loopback_last() {
        let pick = |text| select(&choice(text), &host()).map(|ip| ip.to_string());
        assert_eq!(pick("eth").as_deref(), Some("10.0.0.10"));
        assert_eq!(pick("^docker").as_deref(), Some("10.0.0.10"));
        assert_eq!(pick("ib").as_deref(), Some("fd00::20"));
        assert_eq!(pick("lo").as_deref(), Some("127.0.0.1"));
        assert_eq!(pick("wlan"), None);
    }
}
