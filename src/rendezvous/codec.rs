//! The encoding of values in a frame, a snapshot or a record: fixed-size little-endian integers, counted strings,
//! lists, maps and sets, tagged enums.
//!
//! Decoding is total: any bytes give a value or a [`WireError`], and nothing is allocated that the bytes at hand could
//! not fill. A value has exactly one encoding: whatever decodes is encoded to the same bytes again.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use crate::mask::Mask;

/// Version of the bootstrap protocol. Both sides must have the same.
pub const PROTOCOL_VERSION: u16 = 11;

/// Why bytes are not a frame, or not whatever else they should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// The first bytes are not those of a frame.
    #[error("bytes that are not an epwire frame")]
    Magic,
    /// They begin with another version, so the rest cannot be interpreted.
    #[error("bytes of version {theirs} (this side: {ours})")]
    Version {
        /// The version that this side reads.
        ours: u16,
        /// The version found.
        theirs: u16,
    },
    /// The header announces a body longer than the limit.
    #[error("a frame of {bytes} bytes (limit {limit})")]
    TooLong {
        /// Bytes announced.
        bytes: usize,
        /// The limit that applies.
        limit: usize,
    },
    /// The bytes end before the value does.
    #[error("bytes that end early")]
    Truncated,
    /// The value ends before the bytes do.
    #[error("bytes after the end of a frame")]
    Trailing,
    /// A field has a value that it cannot have.
    #[error("bytes in which {what} is invalid")]
    Invalid {
        /// Which field.
        what: &'static str,
    },
}

/// Bytes not yet decoded.
#[derive(Debug)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    pub(crate) fn remaining(&self) -> usize {
        self.rest.len()
    }

    /// What is not decoded yet.
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Fails unless everything has been decoded.
    pub(crate) fn end(&self) -> Result<(), WireError> {
        if self.rest.is_empty() { Ok(()) } else { Err(WireError::Trailing) }
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], WireError> {
        let (head, rest) = self.rest.split_at_checked(count).ok_or(WireError::Truncated)?;
        self.rest = rest;
        Ok(head)
    }
}

/// A value within an encoding. `get` reads back exactly what `put` wrote.
pub(crate) trait Wire: Sized {
    /// Fewest bytes of an encoded value: bounds how many elements a list of a given length can claim.
    const LEAST: usize = 1;
    fn put(&self, out: &mut Vec<u8>);
    fn get(from: &mut Reader<'_>) -> Result<Self, WireError>;
}

macro_rules! integers {
    ($($type:ty),*) => {$(
        impl Wire for $type {
            const LEAST: usize = size_of::<$type>();
            fn put(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }
            fn get(from: &mut Reader<'_>) -> Result<Self, WireError> {
                let mut bytes = [0; size_of::<$type>()];
                bytes.copy_from_slice(from.take(size_of::<$type>())?);
                Ok(Self::from_le_bytes(bytes))
            }
        }
    )*};
}
integers!(u16, u32, u64, u128, i64);

impl Wire for bool {
    fn put(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }
    fn get(from: &mut Reader<'_>) -> Result<Self, WireError> {
        match from.take(1)? {
            [0] => Ok(false),
            [1] => Ok(true),
            _ => Err(WireError::Invalid { what: "a flag" }),
        }
    }
}

/// Whole nanoseconds; a duration beyond 584 years is encoded as 584 years.
impl Wire for Duration {
    const LEAST: usize = 8;
    fn put(&self, out: &mut Vec<u8>) {
        u64::try_from(self.as_nanos()).unwrap_or(u64::MAX).put(out);
    }
    fn get(from: &mut Reader<'_>) -> Result<Self, WireError> {
        u64::get(from).map(Duration::from_nanos)
    }
}

impl Wire for [u8; 32] {
    const LEAST: usize = 32;
    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self);
    }
    fn get(from: &mut Reader<'_>) -> Result<Self, WireError> {
        let mut bytes = [0; 32];
        bytes.copy_from_slice(from.take(32)?);
        Ok(bytes)
    }
}

impl Wire for Mask {
    const LEAST: usize = 128;
    fn put(&self, out: &mut Vec<u8>) {
        self.words().iter().for_each(|word| word.put(out));
    }
    fn get(from: &mut Reader<'_>) -> Result<Self, WireError> {
        let mut words = [0; 16];
        for word in &mut words {
            *word = u64::get(from)?;
        }
        Ok(Mask::from_words(words))
    }
}

/// Lengths have 32 bits; longer lists cannot occur, as no frame is that long.
fn put_count(count: usize, out: &mut Vec<u8>) {
    u32::try_from(count).unwrap_or(u32::MAX).put(out);
}

fn get_count(from: &mut Reader<'_>, least: usize) -> Result<usize, WireError> {
    let count = u32::get(from)? as usize;
    if count > from.remaining() / least.max(1) { Err(WireError::Truncated) } else { Ok(count) }
}

/// Opaque bytes with their length.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Blob(pub Vec<u8>);

impl Wire for Blob {
    const LEAST: usize = 4;
    fn put(&self, out: &mut Vec<u8>) {
        put_count(self.0.len(), out);
        out.extend_from_slice(&self.0);
    }
    fn get(from: &mut Reader<'_>) -> Result<Self, WireError> {
        let count = get_count(from, 1)?;
        Ok(Blob(from.take(count)?.to_vec()))
    }
}

impl Wire for String {
    const LEAST: usize = 4;
    fn put(&self, out: &mut Vec<u8>) {
        put_count(self.len(), out);
        out.extend_from_slice(self.as_bytes());
    }
    fn get(from: &mut Reader<'_>) -> Result<Self, WireError> {
        let count = get_count(from, 1)?;
        let text =
            std::str::from_utf8(from.take(count)?).map_err(|_| WireError::Invalid { what: "a text" })?;
        Ok(text.to_owned())
    }
}

impl<T: Wire> Wire for Vec<T> {
    const LEAST: usize = 4;
    fn put(&self, out: &mut Vec<u8>) {
        put_count(self.len(), out);
        self.iter().for_each(|item| item.put(out));
    }
    fn get(from: &mut Reader<'_>) -> Result<Self, WireError> {
        let count = get_count(from, T::LEAST)?;
        // The count is only a claim: beyond the first thousand, memory is allocated as elements really arrive.
        let mut items = Vec::with_capacity(count.min(1024));
        for _ in 0..count {
            items.push(T::get(from)?);
        }
        Ok(items)
    }
}

impl<T: Wire> Wire for VecDeque<T> {
    const LEAST: usize = 4;
    fn put(&self, out: &mut Vec<u8>) {
        put_count(self.len(), out);
        self.iter().for_each(|item| item.put(out));
    }
    fn get(from: &mut Reader<'_>) -> Result<Self, WireError> {
        Vec::get(from).map(Self::from)
    }
}

/// In ascending order of keys.
impl<K: Wire + Ord, V: Wire> Wire for BTreeMap<K, V> {
    const LEAST: usize = 4;
    fn put(&self, out: &mut Vec<u8>) {
        put_count(self.len(), out);
        for (key, value) in self {
            key.put(out);
            value.put(out);
        }
    }
    fn get(from: &mut Reader<'_>) -> Result<Self, WireError> {
        let mut map = Self::new();
        for _ in 0..get_count(from, K::LEAST + V::LEAST)? {
            let key = K::get(from)?;
            if map.last_key_value().is_some_and(|(last, _)| *last >= key) {
                return Err(WireError::Invalid { what: "the order of keys" });
            }
            map.insert(key, V::get(from)?);
        }
        Ok(map)
    }
}

/// In ascending order.
impl<T: Wire + Ord> Wire for BTreeSet<T> {
    const LEAST: usize = 4;
    fn put(&self, out: &mut Vec<u8>) {
        put_count(self.len(), out);
        self.iter().for_each(|item| item.put(out));
    }
    fn get(from: &mut Reader<'_>) -> Result<Self, WireError> {
        let mut set = Self::new();
        for _ in 0..get_count(from, T::LEAST)? {
            let item = T::get(from)?;
            if set.last().is_some_and(|last| *last >= item) {
                return Err(WireError::Invalid { what: "the order of a set" });
            }
            set.insert(item);
        }
        Ok(set)
    }
}

impl<T: Wire> Wire for Option<T> {
    fn put(&self, out: &mut Vec<u8>) {
        self.is_some().put(out);
        if let Some(value) = self {
            value.put(out);
        }
    }
    fn get(from: &mut Reader<'_>) -> Result<Self, WireError> {
        if bool::get(from)? { T::get(from).map(Some) } else { Ok(None) }
    }
}

impl<T: Wire, E: Wire> Wire for Result<T, E> {
    fn put(&self, out: &mut Vec<u8>) {
        self.is_ok().put(out);
        match self {
            Ok(value) => value.put(out),
            Err(error) => error.put(out),
        }
    }
    fn get(from: &mut Reader<'_>) -> Result<Self, WireError> {
        if bool::get(from)? { T::get(from).map(Ok) } else { E::get(from).map(Err) }
    }
}

impl<A: Wire, B: Wire> Wire for (A, B) {
    const LEAST: usize = A::LEAST + B::LEAST;
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
        self.1.put(out);
    }
    fn get(from: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok((A::get(from)?, B::get(from)?))
    }
}

impl<T: Wire> Wire for Box<T> {
    const LEAST: usize = T::LEAST;
    fn put(&self, out: &mut Vec<u8>) {
        T::put(self, out);
    }
    fn get(from: &mut Reader<'_>) -> Result<Self, WireError> {
        T::get(from).map(Box::new)
    }
}

impl<T: Wire> Wire for Arc<T> {
    const LEAST: usize = T::LEAST;
    fn put(&self, out: &mut Vec<u8>) {
        T::put(self, out);
    }
    fn get(from: &mut Reader<'_>) -> Result<Self, WireError> {
        T::get(from).map(Arc::new)
    }
}

/// Gives a struct, or an enum with numbered variants, its encoding. The compiler checks that every field and
/// variant is listed; a variant's number is part of the protocol and is never reused.
macro_rules! wire {
    (struct $name:ident { $($field:ident),* $(,)? }) => {
        impl $crate::rendezvous::codec::Wire for $name {
            fn put(&self, out: &mut Vec<u8>) {
                let Self { $($field),* } = self;
                $($crate::rendezvous::codec::Wire::put($field, out);)*
            }
            fn get(
                from: &mut $crate::rendezvous::codec::Reader<'_>,
            ) -> Result<Self, $crate::rendezvous::codec::WireError> {
                Ok(Self { $($field: $crate::rendezvous::codec::Wire::get(from)?),* })
            }
        }
    };
    (enum $name:ident { $($tag:literal => $variant:ident { $($field:ident),* $(,)? }),* $(,)? }) => {
        impl $crate::rendezvous::codec::Wire for $name {
            const LEAST: usize = 2;
            fn put(&self, out: &mut Vec<u8>) {
                $crate::rendezvous::codec::wire!(@put self out $($tag $variant { $($field)* })*);
            }
            fn get(
                from: &mut $crate::rendezvous::codec::Reader<'_>,
            ) -> Result<Self, $crate::rendezvous::codec::WireError> {
                match <u16 as $crate::rendezvous::codec::Wire>::get(from)? {
                    $($tag => Ok(Self::$variant {
                        $($field: $crate::rendezvous::codec::Wire::get(from)?),*
                    }),)*
                    _ => Err($crate::rendezvous::codec::WireError::Invalid { what: stringify!($name) }),
                }
            }
        }
    };
    (@put $self:ident $out:ident $($tag:literal $variant:ident { $($field:ident)* })*) => {
        match $self {
            $(Self::$variant { $($field),* } => {
                <u16 as $crate::rendezvous::codec::Wire>::put(&$tag, $out);
                $($crate::rendezvous::codec::Wire::put($field, $out);)*
            })*
        }
    };
}
pub(crate) use wire;

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(value: &impl Wire) -> Vec<u8> {
        let mut out = Vec::new();
        value.put(&mut out);
        out
    }

    fn decoded<T: Wire>(bytes: &[u8]) -> Result<T, WireError> {
        let mut from = Reader::new(bytes);
        let value = T::get(&mut from)?;
        from.end().map(|()| value)
    }

    #[test]
    fn maps_sets_and_queues_come_back_as_they_were() {
        let map: BTreeMap<String, u16> = [("b".to_owned(), 2), ("a".to_owned(), 1)].into();
        assert_eq!(decoded(&encoded(&map)), Ok(map));
        let set: BTreeSet<(u32, u32)> = [(2, 1), (1, 2)].into();
        assert_eq!(decoded(&encoded(&set)), Ok(set));
        let queue: VecDeque<u64> = [3, 1, 2].into();
        assert_eq!(decoded(&encoded(&queue)), Ok(queue));
    }

    #[test]
    fn maps_and_sets_have_one_encoding() {
        for keys in [[2u16, 1], [1, 1]] {
            let pairs: Vec<(u16, bool)> = keys.map(|key| (key, true)).to_vec();
            let what = "the order of keys";
            assert_eq!(decoded::<BTreeMap<u16, bool>>(&encoded(&pairs)), Err(WireError::Invalid { what }));
            let what = "the order of a set";
            assert_eq!(decoded::<BTreeSet<u16>>(&encoded(&keys.to_vec())), Err(WireError::Invalid { what }));
        }
    }

    #[test]
    fn counts_past_the_bytes_at_hand_are_not_believed() {
        let bytes = encoded(&u32::MAX);
        assert_eq!(decoded::<BTreeMap<u16, u16>>(&bytes), Err(WireError::Truncated));
        assert_eq!(decoded::<BTreeSet<u16>>(&bytes), Err(WireError::Truncated));
        assert_eq!(decoded::<VecDeque<u16>>(&bytes), Err(WireError::Truncated));
    }
}
