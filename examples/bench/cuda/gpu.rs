//! A rank's GPU: its stream, bounded waits, graphs, copies, and the kernels of probe.ptx.

use std::ffi::{CString, c_void};
use std::sync::Arc;
use std::time::{Duration, Instant};

use epwire::Group;
use epwire::cuda::StreamRef;
use epwire::cudarc::driver::{
    CudaContext, CudaEvent, CudaGraph, CudaSlice, CudaStream, DevicePtr, DriverError, result, sys,
};

use crate::Error;
use crate::samples::taken;

/// No wait on a GPU is longer. What the bench enqueues at once takes seconds at most, deadlines of lost peers included.
const LIMIT: Duration = Duration::from_secs(120);

/// Threads of a block of the probes.
const THREADS: u32 = 1024;
/// Bytes that a block reads or copies at a time.
pub const CHUNK: u64 = 64 << 10;

/// All of it is used only by the thread that created it.
#[derive(Debug)]
pub struct Gpu {
    pub ordinal: u32,
    pub stream: Arc<CudaStream>,
    pub context: Arc<CudaContext>,
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    // Loaded for the life of the process, as the primary context is.
    empty: sys::CUfunction,
    pause: sys::CUfunction,
    stamp: sys::CUfunction,
    store: sys::CUfunction,
    read: sys::CUfunction,
    copy: sys::CUfunction,
    ping: sys::CUfunction,
}

impl Gpu {
    /// The GPU of the rank that is number `local_rank` of its host: ranks take the visible GPUs in turn.
    pub fn of_rank(local_rank: u32) -> Result<Self, Error> {
        let unusable = |error: DriverError| format!("the CUDA driver gives no GPU: {error}");
        let visible = CudaContext::device_count().map_err(unusable)?;
        let visible = u32::try_from(visible).ok().filter(|count| *count > 0);
        let ordinal = local_rank % visible.ok_or("no GPU is visible: see CUDA_VISIBLE_DEVICES")?;
        let context = CudaContext::new(ordinal as usize).map_err(unusable)?;
        // SAFETY: the bench orders all uses of its memory by one stream, and waits for it before memory is freed.
        unsafe { context.disable_event_tracking() };
        let multiprocessors =
            context.attribute(sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
        let source = CString::new(include_str!("probe.ptx"))?;
        // SAFETY: a text that ends with a zero; the context is current on this thread since it was made.
        let module = unsafe { result::module::load_data(source.as_ptr().cast()) }?;
        let kernel = |name: &str| -> Result<_, Error> {
            let name = CString::new(name)?;
            // SAFETY: the module was loaded above and is never unloaded.
            Ok(unsafe { result::module::get_function(module, name) }?)
        };
        Ok(Self {
            ordinal,
            stream: context.new_stream()?,
            multiprocessors: u32::try_from(multiprocessors)?,
            empty: kernel("empty")?,
            pause: kernel("pause")?,
            stamp: kernel("stamp")?,
            store: kernel("store")?,
            read: kernel("read")?,
            copy: kernel("copy")?,
            ping: kernel("ping")?,
            context,
        })
    }

    pub fn event(&self) -> Result<CudaEvent, Error> {
        Ok(self.context.new_event(Some(sys::CUevent_flags::CU_EVENT_DEFAULT))?)
    }

    /// An event that has been enqueued.
    pub fn mark(&self) -> Result<CudaEvent, Error> {
        let event = self.event()?;
        event.record(&self.stream)?;
        Ok(event)
    }

    /// Returns when the GPU has passed `event`.
    pub fn wait(&self, event: &CudaEvent) -> Result<(), Error> {
        let until = Instant::now() + LIMIT;
        while !event.try_is_complete()? {
            if Instant::now() > until {
                let ordinal = self.ordinal;
                return Err(format!("GPU {ordinal} has not run within {LIMIT:?} what was enqueued").into());
            }
            std::thread::yield_now();
        }
        Ok(())
    }

    /// Returns when the GPU has run everything enqueued.
    pub fn finish(&self) -> Result<(), Error> {
        self.wait(&self.mark()?)
    }

    /// The stream, for calls that may be captured.
    pub fn capturing(&self) -> StreamRef<'_> {
        // SAFETY: the bench waits for what it launches, and launches no graph after what was captured is gone.
        unsafe { StreamRef::capturing(&self.stream) }
    }

    /// What `enqueue` enqueues, as a graph.
    pub fn capture(&self, enqueue: impl FnOnce() -> Result<(), Error>) -> Result<CudaGraph, Error> {
        self.stream.begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
        let enqueued = enqueue();
        let graph = self.stream.end_capture(sys::CUgraphInstantiate_flags(0));
        enqueued?;
        let graph = graph?.ok_or("a capture has given no graph")?;
        graph.upload()?;
        Ok(graph)
    }

    /// Zeroed memory.
    pub fn zeroed(&self, bytes: usize) -> Result<CudaSlice<u8>, Error> {
        Ok(self.stream.alloc_zeros(bytes.max(1))?)
    }

    pub fn address(&self, memory: &CudaSlice<u8>) -> u64 {
        memory.device_ptr(&self.stream).0
    }

    /// Copies to `to`, in the order of the stream.
    ///
    /// # Safety
    /// There are as many bytes of this GPU's memory at `to`.
    pub unsafe fn upload<T: Copy>(&self, to: u64, from: &[T]) -> Result<(), Error> {
        if !from.is_empty() {
            self.context.bind_to_thread()?;
            // SAFETY: by this function's contract. Pageable memory has been read when the call returns.
            unsafe { result::memcpy_htod_async(to, from, self.stream.cu_stream()) }?;
        }
        Ok(())
    }

    /// Copies from `from`, in the order of the stream, and waits for it.
    ///
    /// # Safety
    /// There are as many bytes of this GPU's memory at `from`, and all bits are values of `T`.
    pub unsafe fn download<T: Copy>(&self, to: &mut [T], from: u64) -> Result<(), Error> {
        if !to.is_empty() {
            self.finish()?; // bounded, unlike the copy
            // SAFETY: by this function's contract; a copy to pageable memory is over when the call returns.
            unsafe { result::memcpy_dtoh_sync(to, from) }?;
        }
        Ok(())
    }

    /// Enqueues a kernel that does nothing.
    pub fn launch_empty(&self) -> Result<(), Error> {
        // SAFETY: it takes no arguments.
        unsafe { self.launch(self.empty, 1, 32, &mut []) }
    }

    /// Enqueues a pause.
    pub fn launch_pause(&self, time: Duration) -> Result<(), Error> {
        let mut nanoseconds = u64::try_from(time.as_nanos())?;
        // SAFETY: arguments of the types that the kernel declares.
        unsafe { self.launch(self.pause, 1, 1, &mut [argument(&mut nanoseconds)]) }
    }

    /// Enqueues a kernel that writes the time in nanoseconds to `to`, by programmatic serialization as epwire's kernels are.
    ///
    /// # Safety
    /// `to` is a word of 8 bytes of this GPU.
    pub unsafe fn launch_stamp(&self, to: u64) -> Result<(), Error> {
        let mut to = to;
        let mut attribute = sys::CUlaunchAttribute {
            id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            pad: [0; 4],
            value: sys::CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
        };
        let config = sys::CUlaunchConfig {
            gridDimX: 1,
            gridDimY: 1,
            gridDimZ: 1,
            blockDimX: 1,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: 0,
            hStream: self.stream.cu_stream(),
            attrs: &raw mut attribute,
            numAttrs: 1,
        };
        self.context.bind_to_thread()?;
        let (mut arguments, none) = ([argument(&mut to)], std::ptr::null_mut());
        // SAFETY: arguments of the types that the kernel declares, which the driver copies before it returns, as the attribute;
        // the rest by this function's contract.
        unsafe { sys::cuLaunchKernelEx(&raw const config, self.stamp, arguments.as_mut_ptr(), none) }
            .result()?;
        Ok(())
    }

    /// Enqueues stores of `bytes` to each of `count` addresses, with so many SMs.
    ///
    /// # Safety
    /// `table` holds `count` addresses of memory, of this GPU or mapped from another, with `bytes` bytes each.
    pub unsafe fn launch_store(&self, table: u64, count: u32, bytes: u64, sms: u32) -> Result<(), Error> {
        let (mut table, mut number, mut bytes) = (table, count, bytes);
        let mut arguments = [argument(&mut table), argument(&mut number), argument(&mut bytes)];
        // SAFETY: arguments of the types that the kernel declares; the rest by this function's contract.
        unsafe { self.launch(self.store, sms, THREADS, &mut arguments) }
    }

    /// Enqueues a reading of `bytes`, a multiple of [`CHUNK`], with so many SMs.
    ///
    /// # Safety
    /// As many bytes of zeros of this GPU's memory lie at `from`.
    pub unsafe fn launch_read(&self, from: u64, bytes: u64, sms: u32) -> Result<(), Error> {
        let (mut from, mut to, mut chunks) = (from, from, u32::try_from(bytes / CHUNK)?);
        let mut arguments = [argument(&mut from), argument(&mut chunks), argument(&mut to)];
        // SAFETY: arguments of the types that the kernel declares; the rest by this function's contract.
        unsafe { self.launch(self.read, sms, THREADS, &mut arguments) }
    }

    /// Enqueues a copy of `bytes`, a multiple of [`CHUNK`], with so many SMs.
    ///
    /// # Safety
    /// As many bytes of this GPU's memory lie at `from` and at `to`.
    pub unsafe fn launch_copy(&self, from: u64, to: u64, bytes: u64, sms: u32) -> Result<(), Error> {
        let (mut from, mut to, mut chunks) = (from, to, u32::try_from(bytes / CHUNK)?);
        let mut arguments = [argument(&mut from), argument(&mut to), argument(&mut chunks)];
        // SAFETY: arguments of the types that the kernel declares; the rest by this function's contract.
        unsafe { self.launch(self.copy, sms, THREADS, &mut arguments) }
    }

    /// Enqueues one side of an exchange of numbers, which ends within `limit` for each number.
    ///
    /// # Safety
    /// `own` and `peer` are words of 4 bytes, `result` two of 8, of this GPU or mapped from another.
    pub unsafe fn launch_ping(
        &self,
        [own, peer, result]: [u64; 3],
        first: bool,
        rounds: u32,
        limit: Duration,
    ) -> Result<(), Error> {
        let (mut own, mut peer, mut result) = (own, peer, result);
        let (mut first, mut rounds) = (u32::from(first), rounds);
        let mut limit = u64::try_from(limit.as_nanos())?;
        let mut arguments = [
            argument(&mut own),
            argument(&mut peer),
            argument(&mut first),
            argument(&mut rounds),
            argument(&mut limit),
            argument(&mut result),
        ];
        // SAFETY: arguments of the types that the kernel declares; the rest by this function's contract.
        unsafe { self.launch(self.ping, 1, 1, &mut arguments) }
    }

    /// # Safety
    /// The arguments are those that the kernel declares, and what it does with them is sound.
    unsafe fn launch(
        &self,
        kernel: sys::CUfunction,
        blocks: u32,
        threads: u32,
        arguments: &mut [*mut c_void],
    ) -> Result<(), Error> {
        self.context.bind_to_thread()?;
        let (grid, block) = ((blocks, 1, 1), (threads, 1, 1));
        // SAFETY: by this function's contract; the driver copies the arguments before it returns.
        unsafe { result::launch_kernel(kernel, grid, block, 0, self.stream.cu_stream(), arguments) }?;
        Ok(())
    }
}

fn argument<T>(value: &mut T) -> *mut c_void {
    std::ptr::from_mut(value).cast()
}

/// Nanoseconds between two events that the GPU has passed.
pub fn between(begin: &CudaEvent, end: &CudaEvent) -> Result<f64, Error> {
    Ok(f64::from(begin.elapsed_ms(end)?) * 1e6)
}

/// Returns when all ranks have called it.
pub fn meet(group: &Group) -> Result<(), Error> {
    Ok(group.barrier_blocking("bench")?)
}

/// Numbers of all ranks, by rank. All ranks call it.
pub fn gather(group: &Group, numbers: &[f64]) -> Result<Vec<Vec<f64>>, Error> {
    let blob: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    let blobs = group.exchange_blocking("figures", vec![blob; group.world() as usize])?;
    let number = |bytes: &[u8]| f64::from_le_bytes(std::array::from_fn(|i| bytes[i]));
    Ok(taken(&blobs).map(|blob| blob.chunks_exact(8).map(number).collect()).collect())
}
