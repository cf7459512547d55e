//! The shared token, and how each side proves that it knows it without sending it.
//!
//! Each side sends 32 random bytes; the client answers first, then the server, each with HMAC-SHA256 under the token's
//! hash over {its role, protocol version, run id, both challenges}. The role keeps a side from being sent its own
//! answer back; the run id and version make the answer useless for another run. What follows is neither encrypted nor
//! authenticated: the token keeps strangers and stray clients out within a trusted network, it does not make an
//! untrusted network safe.

use std::net::SocketAddr;

use hmac::digest::KeyInit;
use hmac::{Hmac, Mac};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::error::BootstrapError;
use super::wire::PROTOCOL_VERSION;
use crate::env::Token;

/// Fewest bytes of a token on other interfaces than loopback: a shorter one could be guessed from one recorded
/// handshake.
pub const MIN_TOKEN_BYTES: usize = 16;

/// Refuses an address other than loopback if there is no token, or one that is too short to be secure.
///
/// Errors: [`BootstrapError::TokenRequired`], [`BootstrapError::Limit`].
pub fn require(op: &str, address: SocketAddr, token: Option<&Token>) -> Result<(), BootstrapError> {
    if address.ip().to_canonical().is_loopback() {
        return Ok(());
    }
    let least = MIN_TOKEN_BYTES as u64;
    match token.map(|token| token.as_bytes().len() as u64) {
        None => Err(BootstrapError::TokenRequired { op: op.to_owned(), address: address.to_string(), least }),
        Some(value) if value < least => {
            let field = "bytes of the token off loopback (at least)".to_owned();
            Err(BootstrapError::Limit { op: op.to_owned(), field, value, limit: least })
        }
        Some(_) => Ok(()),
    }
}

/// The side that answers a challenge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The side that connected.
    Client,
    /// The side that accepted.
    Server,
}

/// The two challenges of a connection, and its run.
#[derive(Clone, Debug)]
pub struct Transcript {
    /// The run that the client asked for.
    pub run_id: String,
    /// The client's challenge.
    pub client_nonce: [u8; 32],
    /// The server's challenge.
    pub server_nonce: [u8; 32],
}

impl Transcript {
    /// The answer of `role`. Without a token it proves that this side has none either.
    pub fn proof(&self, role: Role, token: Option<&Token>) -> [u8; 32] {
        let mut mac = keyed(token);
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

/// The key that authenticates the connections between the ranks' queues: derived from the token, for this run alone.
pub fn wire_key(token: &Token, run_id: &str) -> [u8; 32] {
    let mut mac = keyed(Some(token));
    mac.update(b"epwire wire\0");
    mac.update(&(run_id.len() as u64).to_le_bytes());
    mac.update(run_id.as_bytes());
    mac.finalize().into_bytes().into()
}

/// A key of one SHA-256 block: the token's hash, padded as HMAC pads short keys.
fn keyed(token: Option<&Token>) -> Hmac<Sha256> {
    let mut key = [0; 64];
    key[..32].copy_from_slice(&Sha256::digest(token.map_or(&[][..], Token::as_bytes)));
    <Hmac<Sha256> as KeyInit>::new(&key.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn transcript() -> Transcript {
        Transcript { run_id: "run".to_owned(), client_nonce: [1; 32], server_nonce: [2; 32] }
    }

    #[test]
    fn a_proof_is_bound_to_token_role_run_and_challenges() {
        let token = Token::new("sixteen bytes at least", "test").unwrap();
        let other = Token::new("sixteen bytes at leasT", "test").unwrap();
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
    fn a_wire_key_is_of_one_token_and_run_and_no_proof() {
        let token = Token::new("sixteen bytes at least", "test").unwrap();
        let other = Token::new("sixteen bytes at leasT", "test").unwrap();
        let key = wire_key(&token, "run");
        assert_eq!(key, wire_key(&token, "run"));
        assert_ne!(key, wire_key(&other, "run"));
        assert_ne!(key, wire_key(&token, "ruN"));
        assert_ne!(key, transcript().proof(Role::Client, Some(&token)));
    }

    #[test]
    fn only_loopback_goes_without_a_token() {
        let token = Token::new([7; 16], "test").unwrap();
        for loopback in ["127.0.0.1:1", "[::1]:1", "[::ffff:127.0.0.1]:1"] {
            assert_eq!(require("bind", loopback.parse().unwrap(), None), Ok(()));
        }
        for outside in ["0.0.0.0:1", "10.0.0.1:1", "[::]:1"] {
            let refused = require("bind", outside.parse().unwrap(), None).unwrap_err();
            assert!(refused.to_string().contains("EPWIRE_TOKEN_FILE"), "{refused}");
            assert_eq!(require("bind", outside.parse().unwrap(), Some(&token)), Ok(()));
            let short = Token::new("short", "test").unwrap();
            let refused = require("bind", outside.parse().unwrap(), Some(&short)).unwrap_err();
            assert!(matches!(refused, BootstrapError::Limit { value: 5, limit: 16, .. }), "{refused}");
        }
    }
}
