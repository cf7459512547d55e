//! The kinds of memory for outputs. Each output is declared once, for all of them.

use std::fmt::Debug;

use crate::tensor::{DType, Element, TensorMut};

/// The kind of memory that the outputs of an operation are in: that of the host, [`Host`], or of a GPU,
/// [`cuda::Gpu`](crate::cuda::Gpu). Other types cannot implement it.
pub trait Memory: Debug + Default + sealed::Memory {
    /// Writable elements of any type.
    type Tensor<'a>: Place<Self::Site> + Debug;
    /// A writable list of `T`.
    type List<'a, T: Item>: Place<Self::Site> + Debug;
}

/// Memory for elements of any type.
pub(crate) type Tensor<'a, M> = <M as Memory>::Tensor<'a>;
/// Memory for a list of `T`.
pub(crate) type List<'a, M, T> = <M as Memory>::List<'a, T>;

/// Host memory, written by host threads.
#[derive(Debug, Clone, Copy, Default)]
pub struct Host;

/// The items of lists: elements, or pairs of them.
pub trait Item: Debug + Send + 'static {
    /// Type of its elements.
    const DTYPE: DType;
    /// The number of elements in an item.
    const COUNT: usize;
}

impl<T: Element + Debug> Item for T {
    const DTYPE: DType = T::DTYPE;
    const COUNT: usize = 1;
}

impl<T: Element + Debug> Item for [T; 2] {
    const DTYPE: DType = T::DTYPE;
    const COUNT: usize = 2;
}

/// The room that an output must have.
#[derive(Debug, Clone, Copy)]
pub enum Need {
    /// This many bytes, of any type.
    Bytes(usize),
    /// This many elements of a type.
    Elements(DType, usize),
    /// It is not to be given: only this layout fills it.
    Absent(&'static str),
}

impl Need {
    pub(crate) fn of<T: Element>(count: usize) -> Self {
        Self::Elements(T::DTYPE, count)
    }

    /// The same if the layout `only`, in words, fills the output, and this is it.
    pub(crate) fn only(self, only: &'static str, is: bool) -> Self {
        if is { self } else { Self::Absent(only) }
    }

    /// Why memory for `have` elements of `dtype` does not fit the output of that name.
    pub(crate) fn check(self, name: &str, dtype: DType, have: usize) -> Result<(), String> {
        match self {
            Self::Absent(only) => Err(format!("{name} is given, which only {only} fills: leave it out")),
            Self::Bytes(need) => match have.saturating_mul(dtype.bytes()) {
                bytes if bytes < need => Err(format!("{name} has {bytes} bytes, this call needs {need}")),
                _ => Ok(()),
            },
            Self::Elements(want, need) if dtype != want || have < need => {
                Err(format!("{name} has {have} of {dtype:?}, must have {need} of {want:?}"))
            }
            Self::Elements(..) => Ok(()),
        }
    }
}

/// Memory to which an output may be written.
pub trait Place<S> {
    /// Its address for C, if it is large enough and may be used at `site`; `name` is that of the output.
    fn place(&mut self, name: &str, need: Need, site: &S) -> Result<*mut u8, String>;
}

/// Sets the fields of a C output to the places of the given outputs with the same names, after checking the size of
/// each.
macro_rules! place {
    ($output:ident of $from:expr, at $site:expr; $($field:ident: $need:expr),* $(,)?) => {
        $(if let Some(place) = $from.$field.as_mut() {
            $output.$field = place.place(concat!("output.", stringify!($field)), $need, $site)?.cast();
        })*
    };
}
pub(crate) use place;

pub(crate) mod sealed {
    pub trait Memory {
        /// Where an operation runs, which the outputs' memory must match.
        type Site;
    }
}

impl Memory for Host {
    type Tensor<'a> = TensorMut<'a>;
    type List<'a, T: Item> = &'a mut [T];
}

impl sealed::Memory for Host {
    type Site = ();
}

impl Place<()> for TensorMut<'_> {
    fn place(&mut self, name: &str, need: Need, (): &()) -> Result<*mut u8, String> {
        need.check(name, self.dtype, self.len)?;
        Ok(self.ptr.as_ptr())
    }
}

impl<T: Item> Place<()> for &mut [T] {
    fn place(&mut self, name: &str, need: Need, (): &()) -> Result<*mut u8, String> {
        match need {
            // In words of the caller, whose items are not single elements.
            Need::Elements(_, need) if T::COUNT == 2 && self.len() < need.div_ceil(2) => {
                let (have, need) = (self.len(), need.div_ceil(2));
                return Err(format!("{name} has {have} pairs of {:?}, must have {need}", T::DTYPE));
            }
            need => need.check(name, T::DTYPE, self.len() * T::COUNT)?,
        }
        Ok(self.as_mut_ptr().cast())
    }
}
