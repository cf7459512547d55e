//! What operations of communicators read and write: a vector, or memory of the communicator's window.

use std::ops::{Deref, DerefMut};

use epwire::comm::{CommBuffer, Input, Number, Output};
use epwire::{Comm, Error};

pub(crate) enum Tensor<T: Number> {
    Own(Vec<T>),
    Window(CommBuffer<T>),
}

impl<T: Number> Tensor<T> {
    /// In the window if the communicator has a heap.
    pub(crate) fn new(comm: &Comm, elements: &[T]) -> Result<Self, Error> {
        if comm.config().heap_bytes == 0 {
            return Ok(Self::Own(elements.to_vec()));
        }
        let mut memory = comm.alloc(elements.len())?;
        memory.copy_from_slice(elements);
        Ok(Self::Window(memory))
    }
}

impl<T: Number> Deref for Tensor<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        match self {
            Self::Own(elements) => elements,
            Self::Window(memory) => memory,
        }
    }
}

impl<T: Number> DerefMut for Tensor<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        match self {
            Self::Own(elements) => elements,
            Self::Window(memory) => memory,
        }
    }
}

// SAFETY: it owns its elements, which stay where they are until it is dropped.
unsafe impl<T: Number> Input for Tensor<T> {
    type Item = T;
    fn input(&self) -> &[T] {
        self
    }
}

// SAFETY: as above.
unsafe impl<T: Number> Output for Tensor<T> {
    fn output(&mut self) -> &mut [T] {
        self
    }
}
