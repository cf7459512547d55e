//! A connection as a stream of frames in both directions, with the tasks that read and write it.

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::calls::MAX_PENDING;
use super::connection::{OPEN_LIMIT, ReadError, read_frame, write_frame};
use crate::rendezvous::wire::Frame;

/// Dropping this ends the tasks, and the connection with them.
pub(super) struct FrameStream {
    arrivals: mpsc::Receiver<Result<Frame, ReadError>>,
    outgoing: mpsc::Sender<Frame>,
    _tasks: JoinSet<()>,
}

impl FrameStream {
    pub(super) fn new<S>(stream: S) -> Self
    where
        S: AsyncRead + AsyncWrite + Send + 'static,
    {
        let (mut reader, mut writer) = tokio::io::split(stream);
        let (arrive, arrivals) = mpsc::channel::<Result<Frame, ReadError>>(64);
        // Room for every pending call and some signs of life: a full queue means that the server does not read.
        let (outgoing, mut queue) = mpsc::channel::<Frame>(MAX_PENDING + 64);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            loop {
                let frame = read_frame(&mut reader, OPEN_LIMIT).await;
                let last = frame.is_err();
                if arrive.send(frame).await.is_err() || last {
                    return;
                }
            }
        });
        tasks.spawn(async move {
            while let Some(frame) = queue.recv().await {
                if write_frame(&mut writer, &frame).await.is_err() {
                    // The reader reports why, after the frames that still arrived.
                    std::future::pending::<()>().await;
                }
            }
        });
        Self { arrivals, outgoing, _tasks: tasks }
    }

    /// The next frame; after the last one, why there are no more, and then `None`. Cancel safe.
    pub(super) async fn next(&mut self) -> Option<Result<Frame, ReadError>> {
        self.arrivals.recv().await
    }

    /// Queues a frame; returns whether that worked.
    pub(super) fn send(&self, frame: Frame) -> bool {
        self.outgoing.try_send(frame).is_ok()
    }
}
