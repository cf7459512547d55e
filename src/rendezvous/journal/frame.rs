//! Pieces of a file that is only ever appended to; each was written to disk in one step.
//!
//! A piece is {length u64 | check of length and place u64 | check of body and place u64 | body}; a check is the first
//! bytes of a SHA-256. Each piece is on disk before the next is written, so only the last one can be torn: by a process
//! that died while it wrote, which leaves the beginning of the piece, or by the machine, which may leave zeros from some
//! byte on, in all of the header, or anywhere in the body. Nobody was told that a torn piece is on disk. Anything else
//! that is wrong is damage, and everything after it would be lost as well.

use std::io::{self, Read};

use sha2::{Digest, Sha256};

/// Bytes of a piece before its body.
const HEADER_BYTES: usize = 24;

/// What was found at an offset of a file.
#[derive(Debug, PartialEq)]
pub(super) enum Piece {
    /// A whole piece.
    Whole {
        /// Its contents.
        body: Vec<u8>,
        /// The offset of the next one.
        next: u64,
    },
    /// The end of the file, or the torn last piece.
    Last,
    /// Something that was never written here.
    Damaged,
}

/// The bytes of a piece at offset `at`.
pub(super) fn frame(at: u64, body: &[u8]) -> Vec<u8> {
    let length = (body.len() as u64).to_le_bytes();
    let mut out = Vec::with_capacity(HEADER_BYTES + body.len());
    out.extend_from_slice(&length);
    out.extend_from_slice(&check(at, &length));
    out.extend_from_slice(&check(at, body));
    out.extend_from_slice(body);
    out
}

/// Reads the piece at offset `at` from a file that is positioned there and ends at `end`.
pub(super) fn read(file: &mut impl Read, at: u64, end: u64) -> io::Result<Piece> {
    let there = end.saturating_sub(at);
    let mut header = [[0; 8]; HEADER_BYTES / 8];
    if there < HEADER_BYTES as u64 {
        return Ok(Piece::Last);
    }
    file.read_exact(header.as_flattened_mut())?;
    let [length, of_length, of_body] = header;
    if of_length != check(at, &length) {
        let nothing = header.as_flattened() == [0; HEADER_BYTES];
        let torn = nothing || (header.as_flattened().ends_with(&[0]) && ends_in_zeros(file)?);
        return Ok(if torn { Piece::Last } else { Piece::Damaged });
    }
    let length = u64::from_le_bytes(length);
    let left = there - HEADER_BYTES as u64;
    if length > left {
        return Ok(Piece::Last);
    }
    let Ok(size) = usize::try_from(length) else { return Ok(Piece::Damaged) };
    let mut body = vec![0; size]; // at most the bytes that the file has
    file.read_exact(&mut body)?;
    Ok(match of_body == check(at, &body) {
        true => Piece::Whole { body, next: at + HEADER_BYTES as u64 + length },
        false if length == left => Piece::Last,
        false => Piece::Damaged,
    })
}

/// Whether nothing but zeros is left in the file.
fn ends_in_zeros(file: &mut impl Read) -> io::Result<bool> {
    let mut part = [0; 4096];
    loop {
        match file.read(&mut part) {
            Ok(0) => return Ok(true),
            Ok(length) if part[..length].iter().all(|byte| *byte == 0) => {}
            Ok(_) => return Ok(false),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// A check that these bytes were written at this offset.
fn check(at: u64, bytes: &[u8]) -> [u8; 8] {
    let digest = Sha256::new().chain_update(at.to_le_bytes()).chain_update(bytes).finalize();
    let mut check = [0; 8];
    check.copy_from_slice(&digest[..8]);
    check
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_at(bytes: &[u8], at: u64) -> Piece {
        read(&mut &bytes[..], at, at + bytes.len() as u64).unwrap()
    }

    #[test]
    fn a_piece_is_read_at_its_place_alone() {
        let bytes = frame(7, b"abc");
        assert_eq!(read_at(&bytes, 7), Piece::Whole { body: b"abc".to_vec(), next: 34 });
        assert_eq!(read_at(&bytes, 8), Piece::Damaged);
    }

    #[test]
    fn the_last_piece_may_be_torn_and_no_other() {
        let bytes = frame(0, b"abc");
        for cut in 0..bytes.len() {
            assert_eq!(read_at(&bytes[..cut], 0), Piece::Last, "{cut}");
        }
        let mut zeros = bytes.clone();
        zeros[25..].fill(0);
        assert_eq!(read_at(&zeros, 0), Piece::Last);
        zeros.push(1);
        assert_eq!(read_at(&zeros, 0), Piece::Damaged, "another one follows");
        for cut in 0..bytes.len() {
            let mut torn = bytes.clone();
            torn[cut..].fill(0);
            assert_eq!(read_at(&torn, 0), Piece::Last, "zeros from {cut} on");
            torn.push(1);
            let follows = read_at(&torn, 0);
            assert!(matches!(follows, Piece::Damaged) || cut == 0, "{cut}: {follows:?}");
        }
        zeros.fill(0);
        assert_eq!(read_at(&zeros, 0), Piece::Last);
        for at in 0..24 {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            assert!(!matches!(read_at(&changed, 0), Piece::Whole { .. }), "{at}");
        }
    }
}
