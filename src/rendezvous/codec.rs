//! How values lie in a frame: fixed little-endian integers, counted strings and lists, tagged enums.
//!
//! Decoding is total: any bytes give a value or a [`WireError`], and nothing is allocated that the bytes at hand
//! could not fill.

use std::sync::Arc;
use std::time::Duration;

use crate::mask::Mask;

/// Version of the bootstrap protocol. Both sides must have the same.
pub const PROTOCOL_VERSION: u16 = 4;

/// Why bytes are no frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// The first bytes are not those of a frame.
    #[error("bytes that are no epwire frame")]
    Magic,
    /// The header has another version; what follows it may mean anything.
    #[error("a frame of version {theirs} (this side: {})", PROTOCOL_VERSION)]
    Version {
        /// The version found.
        theirs: u16,
    },
    /// The header announces a body past the cap.
    #[error("a frame of {bytes} bytes (limit {limit})")]
    TooLong {
        /// Bytes announced.
        bytes: usize,
        /// The cap that applies.
        limit: usize,
    },
    /// The bytes end before the value does.
    #[error("a frame that ends early")]
    Truncated,
    /// The value ends before the bytes do.
    #[error("a frame with bytes to spare")]
    Trailing,
    /// A field has a value that it cannot have.
    #[error("a frame in which {what} is invalid")]
    Invalid {
        /// Which field.
        what: &'static str,
    },
}

/// The bytes of a frame not yet decoded.
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

    fn take(&mut self, count: usize) -> Result<&'a [u8], WireError> {
        let (head, rest) = self.rest.split_at_checked(count).ok_or(WireError::Truncated)?;
        self.rest = rest;
        Ok(head)
    }
}

/// A value with a place in a frame. `get` reads back exactly what `put` wrote.
pub(crate) trait Wire: Sized {
    /// Fewest bytes that a value takes: bounds how many elements a list of a given length can claim.
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

/// Whole nanoseconds; a duration past 584 years is written as that.
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

/// Lengths are 32 bits; a longer list can not come up, as no frame is that long.
fn put_count(count: usize, out: &mut Vec<u8>) {
    u32::try_from(count).unwrap_or(u32::MAX).put(out);
}

fn get_count(from: &mut Reader<'_>, least: usize) -> Result<usize, WireError> {
    let count = u32::get(from)? as usize;
    if count > from.remaining() / least.max(1) { Err(WireError::Truncated) } else { Ok(count) }
}

/// Opaque bytes, counted.
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
        // The count is a claim; what it costs in memory is earned element by element past the first thousand.
        let mut items = Vec::with_capacity(count.min(1024));
        for _ in 0..count {
            items.push(T::get(from)?);
        }
        Ok(items)
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

/// Gives a struct, or an enum with numbered variants, its place in a frame. The compiler checks that every field and
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
