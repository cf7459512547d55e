//! `host:port`, and ports derived from the name of a run.

use std::{fmt, net::SocketAddr, ops::RangeInclusive, str::FromStr};

/// Where the ranks of a run meet: a host name or IP address, and a TCP port.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Address {
    host: String,
    port: u16,
}

/// The ports that [`derived_port`] gives: below the range from which Linux picks ports of outgoing connections (32768 up)
/// and below the node ports of Kubernetes (30000 up).
pub const DERIVED_PORTS: RangeInclusive<u16> = 20_000..=28_191;

/// The port used where every run has a network of its own (a Kubernetes pod).
pub const DEFAULT_PORT: u16 = 29_700;

/// Most addresses of a list.
pub(super) const MAX_ADDRESSES: usize = 16;

/// Parses addresses separated by commas, 1 to [`MAX_ADDRESSES`]. The error says what the list should be, and which
/// entry is wrong.
pub(super) fn addresses(text: &str) -> Result<Vec<Address>, String> {
    let count = text.split(',').count();
    if count > MAX_ADDRESSES {
        return Err(format!("at most {MAX_ADDRESSES} addresses between commas, not {count}"));
    }
    let read = |entry: &str| {
        let entry = entry.trim();
        entry.parse().map_err(|AddressError| format!("{EXPECTED} in each entry, not {entry:?}"))
    };
    text.split(',').map(read).collect()
}

/// A port in [`DERIVED_PORTS`] that follows from the run's name alone, so that all ranks agree on it without talking.
/// Two runs on one host meet on the same port once in 8192 times; the later one then fails to bind and needs
/// `EPWIRE_ADDR`.
pub fn derived_port(run_id: &str) -> u16 {
    // FNV-1a: defined byte for byte, unlike the hasher of the standard library.
    let hash = run_id
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3));
    DERIVED_PORTS.start() + ((hash >> 32) % DERIVED_PORTS.len() as u64) as u16
}

impl Address {
    /// An address of these parts; `None` if `host` is not a host name or IP address, or `port` is 0.
    pub fn new(host: &str, port: u16) -> Option<Self> {
        let name = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_');
        // Not link-local ones with a scope ("fe80::1%eth0"): ranks tell each other addresses, and a scope is a host's own.
        let ip = host.parse::<std::net::Ipv6Addr>().is_ok();
        let valid = !host.is_empty() && host.len() <= 255 && (host.bytes().all(name) || ip);
        (valid && port != 0).then(|| Self { host: host.to_owned(), port })
    }

    /// The address of a socket, whose port is not 0.
    pub(crate) fn of(socket: SocketAddr) -> Self {
        Self { host: socket.ip().to_string(), port: socket.port() }
    }

    /// Host name or IP address, without brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// TCP port, not 0.
    pub fn port(&self) -> u16 {
        self.port
    }
}

/// The text is neither `host:port` nor `[ipv6]:port` with a port of 1 to 65535.
#[derive(Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[error("expected {EXPECTED}")]
pub struct AddressError;

impl fmt::Debug for AddressError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The format of an address.
const EXPECTED: &str = "host:port or [ipv6]:port with a port of 1 to 65535";

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let (host, port) = text.rsplit_once(':').ok_or(AddressError)?;
        let bare = host.strip_prefix('[').and_then(|h| h.strip_suffix(']'));
        // Without brackets, a second colon would make the beginning of the port ambiguous.
        if bare.is_some() != host.contains(':') {
            return Err(AddressError);
        }
        let port = port.parse().map_err(|_| AddressError)?;
        Self::new(bare.unwrap_or(host), port).ok_or(AddressError)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// Serialised as it is printed.
#[cfg(feature = "serde")]
impl serde::Serialize for Address {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(feature = "serde")]
impl<'de> serde::Deserialize<'de> for Address {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_print_as_they_are_read() {
        for text in ["127.0.0.1:29700", "node-1.cluster_a:1", "[::1]:65535"] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn what_is_no_address_is_refused() {
        for text in [
            "",
            "host",
            "host:",
            ":80",
            "host:0",
            "host:65536",
            "::1:80",
            "[host]:80",
            "a b:80",
            "[::1:80",
            "h:+x",
            "[fe80::1%eth0]:80",
        ] {
            assert_eq!(text.parse::<Address>(), Err(AddressError), "{text:?}");
        }
    }

    #[test]
    fn a_list_has_an_address_in_each_entry() {
        let read =
            |text: &str| addresses(text).map(|list| list.iter().map(Address::to_string).collect::<Vec<_>>());
        assert_eq!(read("h:1"), Ok(vec!["h:1".to_owned()]));
        assert_eq!(
            read("h:1, [::1]:2,10.0.0.1:3"),
            Ok(["h:1", "[::1]:2", "10.0.0.1:3"].map(str::to_owned).into())
        );
        for (text, entry) in
            [("h:1,h", "\"h\""), ("h:1,", "\"\""), (",h:1", "\"\""), ("h:1,::1:2", "\"::1:2\"")]
        {
            let error = read(text).unwrap_err();
            assert!(error.contains(entry) && error.contains("host:port"), "{text}: {error}");
        }
        assert_eq!(read(&["h:1"; MAX_ADDRESSES].join(",")).map(|list| list.len()), Ok(MAX_ADDRESSES));
        assert!(read(&["h:1"; MAX_ADDRESSES + 1].join(",")).unwrap_err().contains("at most 16 addresses"));
    }

    #[test]
    fn derived_ports_are_fixed_and_in_range() {
        // Changing this value would separate old ranks from new ones.
        assert_eq!(derived_port("4711.0"), 21274);
        let mut seen = std::collections::HashSet::new();
        for job in 0..4096 {
            let port = derived_port(&format!("{job}.0"));
            assert!(DERIVED_PORTS.contains(&port));
            seen.insert(port);
        }
        // 4096 random choices of 8192 ports hit about 8192 * (1 - 1/sqrt(e)) = 3223 of them.
        assert!(seen.len() > 3000, "only {} ports for 4096 runs", seen.len());
    }
}
