//! The shared token, and how both sides show that they know it without sending it.
//!
//! Each side sends 32 random bytes; the client answers first, then the server, each with HMAC-SHA256 under the token's
//! hash over {its role, protocol version, run id, both challenges}. The role keeps an answer from being sent back as one's
//! own, the run id and version from being used for another run. What follows is neither encrypted nor authenticated:
//! the token keeps strangers and stray clients out of a trusted network, it does not replace one.

use std::fmt;
use std::net::SocketAddr;

use hmac::digest::KeyInit;
use hmac::{Hmac, Mac};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::error::BootstrapError;
use super::wire::PROTOCOL_VERSION;

/// Fewest bytes of a token: shorter ones can be guessed from one recorded handshake.
pub const MIN_TOKEN_BYTES: usize = 16;

/// The secret that the ranks of a run share. Printed as `Token(..)`.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(Vec<u8>);

impl Token {
    /// A token of at least [`MIN_TOKEN_BYTES`] bytes.
    ///
    /// Errors: [`BootstrapError::Limit`] if it is shorter.
    pub fn new(secret: impl Into<Vec<u8>>) -> Result<Self, BootstrapError> {
        let secret = secret.into();
        if secret.len() < MIN_TOKEN_BYTES {
            return Err(BootstrapError::Limit {
                op: "set the token".to_owned(),
                field: "bytes of the token (at least)".to_owned(),
                value: secret.len() as u64,
                limit: MIN_TOKEN_BYTES as u64,
            });
        }
        Ok(Self(secret))
    }

    /// The token of `EPWIRE_TOKEN`, or of the file that `EPWIRE_TOKEN_FILE` names (white space at its end does not
    /// count); `None` if neither is set.
    ///
    /// Errors: as [`Token::new`], and [`BootstrapError::System`] if the file can not be read.
    pub fn from_env() -> Result<Option<Self>, BootstrapError> {
        if let Some(token) = std::env::var_os("EPWIRE_TOKEN") {
            return Self::new(token.into_encoded_bytes()).map(Some);
        }
        let Some(path) = std::env::var_os("EPWIRE_TOKEN_FILE") else { return Ok(None) };
        let op = format!("read EPWIRE_TOKEN_FILE {}", path.display());
        let secret = std::fs::read(path).map_err(|error| BootstrapError::system(&op, &error))?;
        Self::new(secret.trim_ascii_end()).map(Some)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

/// Refuses an address off the loopback interface when there is no token.
pub fn require(op: &str, address: SocketAddr, token: Option<&Token>) -> Result<(), BootstrapError> {
    if token.is_some() || address.ip().to_canonical().is_loopback() {
        return Ok(());
    }
    Err(BootstrapError::TokenRequired {
        op: op.to_owned(),
        address: address.to_string(),
        least: MIN_TOKEN_BYTES as u64,
    })
}

/// Who answers a challenge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The side that connected.
    Client,
    /// The side that accepted.
    Server,
}

/// The two challenges of a connection and the run that it is for.
#[derive(Clone, Debug)]
pub struct Transcript {
    /// The run that the client named.
    pub run_id: String,
    /// The client's challenge.
    pub client_nonce: [u8; 32],
    /// The server's challenge.
    pub server_nonce: [u8; 32],
}

impl Transcript {
    /// The answer of `role`. Without a token it shows that this side has none either.
    pub fn proof(&self, role: Role, token: Option<&Token>) -> [u8; 32] {
        // A key of one SHA-256 block: the token's hash, padded as HMAC pads short keys.
        let mut key = [0; 64];
        key[..32].copy_from_slice(&Sha256::digest(token.map_or(&[][..], |token| &token.0)));
        let mut mac = <Hmac<Sha256> as KeyInit>::new(&key.into());
        mac.update(match role {
            Role::Client => b"epwire rendezvous client\0",
            Role::Server => b"epwire rendezvous server\0",
        });
        mac.update(&PROTOCOL_VERSION.to_le_bytes());
        mac.update(&(self.run_id.len() as u64).to_le_bytes());
        mac.update(self.run_id.as_bytes());
        mac.update(&self.client_nonce);
        mac.update(&self.server_nonce);
        mac.finalize().into_bytes().into()
    }

    /// Whether `proof` is the answer of `role`, compared in constant time.
    pub fn verify(&self, role: Role, token: Option<&Token>, proof: &[u8; 32]) -> bool {
        self.proof(role, token).ct_eq(proof).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn transcript() -> Transcript {
        Transcript { run_id: "run".to_owned(), client_nonce: [1; 32], server_nonce: [2; 32] }
    }

    #[test]
    fn a_proof_is_bound_to_token_role_run_and_challenges() {
        let token = Token::new("sixteen bytes at least").unwrap();
        let other = Token::new("sixteen bytes at leasT").unwrap();
        let proof = transcript().proof(Role::Client, Some(&token));
        assert!(transcript().verify(Role::Client, Some(&token), &proof));
        assert!(!transcript().verify(Role::Server, Some(&token), &proof), "a reflected proof");
        assert!(!transcript().verify(Role::Client, Some(&other), &proof));
        assert!(!transcript().verify(Role::Client, None, &proof));
        let another_run = Transcript { run_id: "ruN".to_owned(), ..transcript() };
        assert!(!another_run.verify(Role::Client, Some(&token), &proof));
        let replayed = Transcript { server_nonce: [3; 32], ..transcript() };
        assert!(!replayed.verify(Role::Client, Some(&token), &proof));
    }

    #[test]
    fn only_loopback_goes_without_a_token() {
        let token = Token::new([7; 16]).unwrap();
        for loopback in ["127.0.0.1:1", "[::1]:1", "[::ffff:127.0.0.1]:1"] {
            assert_eq!(require("bind", loopback.parse().unwrap(), None), Ok(()));
        }
        for outside in ["0.0.0.0:1", "10.0.0.1:1", "[::]:1"] {
            let refused = require("bind", outside.parse().unwrap(), None).unwrap_err();
            assert!(refused.to_string().contains("EPWIRE_TOKEN_FILE"), "{refused}");
            assert_eq!(require("bind", outside.parse().unwrap(), Some(&token)), Ok(()));
        }
    }

    #[test]
    fn a_short_token_is_refused_and_none_is_ever_printed() {
        assert!(matches!(Token::new("short"), Err(BootstrapError::Limit { value: 5, limit: 16, .. })));
        assert_eq!(format!("{:?}", Token::new([7; 16]).unwrap()), "Token(..)");
    }
}
