//! What a rank gives to dispatch: its tokens, in the type that the case asks for.

use epwire::{Dispatch, HostBuffer, TensorRef};

use crate::Error;
use crate::args::{Payload, Shape};
use crate::expected::Expected;
use crate::pattern;

/// On the host. Of `x` and `fp8` one is empty.
#[derive(Debug)]
pub struct Tokens {
    /// `[tokens, hidden]` of 16 bits.
    pub x: HostBuffer<u16>,
    /// `[tokens, hidden]` of 8 bits, and `[tokens, hidden / 128]`.
    pub fp8: HostBuffer<u8>,
    pub scales: HostBuffer<f32>,
}

impl Tokens {
    pub fn zeroed(shape: &Shape) -> Self {
        let (bytes, blocks) = shape.payload.row(shape.hidden);
        let (tokens, given) = (shape.tokens as usize, shape.payload == Payload::Fp8Given);
        let when = |wanted: bool, length: usize| if wanted { tokens * length } else { 0 };
        Self {
            x: HostBuffer::zeroed(when(!given, shape.hidden as usize)),
            fp8: HostBuffer::zeroed(when(given, bytes)),
            scales: HostBuffer::zeroed(when(given, blocks)),
        }
    }

    /// Those of the iteration.
    pub fn make(&mut self, expected: &Expected) -> Result<(), Error> {
        match expected.shape.payload {
            Payload::Fp8Given => expected.make_fp8_tokens(&mut self.fp8, &mut self.scales),
            Payload::Bf16 | Payload::F16 | Payload::Fp8 => {
                expected.make_tokens(&mut self.x);
                Ok(())
            }
        }
    }

    pub fn input<'a>(&'a self, expected: &'a Expected) -> Dispatch<'a> {
        let Expected { shape, dtype, .. } = expected;
        let (routing, (cols, blocks)) = (expected.routing(), shape.payload.row(shape.hidden));
        let ids = TensorRef::new(&routing.experts, routing.topk);
        let input = match shape.payload {
            Payload::Fp8Given => Dispatch::new(TensorRef::new(&self.fp8, cols), ids)
                .scales(TensorRef::new(&self.scales, blocks)),
            Payload::Bf16 | Payload::F16 | Payload::Fp8 => {
                Dispatch::new(pattern::tensor(*dtype, &self.x, shape.hidden), ids)
            }
        };
        input.weights(TensorRef::new(&routing.weights, routing.topk)).payload(shape.payload()).lane(0)
    }
}
