//! The operations by name, each in two forms: begun with buffers that it owns, and blocking with slices that it
//! borrows.

use super::blocks::Blocks;
use super::call::Call;
use super::communicator::Comm;
use super::memory::{Input, Output};
use super::number::{Number, Reduction};
use super::work::Work;
use crate::error::Result;
use crate::outcome::Outcome;

/// Operations. [`Comm::begin`] says what those without `_blocking` have in common, [`Comm::run_blocking`] what those
/// with it do, including their errors; the [module](super) says what happens when a member fails. `n` is any number of
/// elements, including 0; `ranks` counts all of [`Comm::ranks`], members or not: rows of ranks that are not members
/// stay unchanged, except in replays of graphs with [copy engines](super#copy-engines). A root or a peer that is no member is missing from the outcome.
impl Comm {
    /// Returns once all members have called it.
    pub fn barrier(&self) -> Work<()> {
        self.begin(Call::barrier())
    }

    /// [`Comm::barrier`] on this thread.
    pub fn barrier_blocking(&self) -> Result<Outcome> {
        self.run_blocking(Call::barrier())
    }

    /// Copies the root's `buffer` to that of every member: in place, as `MPI_Bcast`. The same number of elements
    /// everywhere. At the root it may end before the others have read it. [`Comm::broadcast_from`] is the form out of
    /// place.
    pub fn broadcast<R>(&self, buffer: R, root: u32) -> Work<R>
    where
        R: Output + Send + 'static,
    {
        self.begin(Call::broadcast(buffer, root))
    }

    /// [`Comm::broadcast`] on this thread.
    pub fn broadcast_blocking<T: Number>(&self, buffer: &mut [T], root: u32) -> Result<Outcome> {
        self.run_blocking(Call::broadcast(buffer, root))
    }

    /// Copies the root's `send` to `recv` of every member, as `ncclBroadcast`. The same number of elements everywhere; the
    /// root's own `recv` may be empty, and then it keeps no copy. Elsewhere `send` is not read, and may be empty. One rank
    /// may call this and another [`Comm::broadcast`]: they match.
    pub fn broadcast_from<S, R>(&self, send: S, recv: R, root: u32) -> Work<(S, R)>
    where
        S: Input + Send + 'static,
        R: Output<Item = S::Item> + Send + 'static,
    {
        self.begin(Call::broadcast_from(send, recv, root))
    }

    /// [`Comm::broadcast_from`] on this thread.
    pub fn broadcast_from_blocking<T: Number>(
        &self,
        send: &[T],
        recv: &mut [T],
        root: u32,
    ) -> Result<Outcome> {
        self.run_blocking(Call::broadcast_from(send, recv, root))
    }

    /// Element i of `recv` becomes the [reduction](Reduction) of element i of all members' `send`, on every member.
    /// Both have the same number of elements, everywhere.
    pub fn all_reduce<S, R>(&self, send: S, recv: R, reduction: Reduction) -> Work<(S, R)>
    where
        S: Input + Send + 'static,
        R: Output<Item = S::Item> + Send + 'static,
    {
        self.begin(Call::all_reduce(send, recv, reduction))
    }

    /// [`Comm::all_reduce`] on this thread.
    pub fn all_reduce_blocking<T: Number>(
        &self,
        send: &[T],
        recv: &mut [T],
        reduction: Reduction,
    ) -> Result<Outcome> {
        self.run_blocking(Call::all_reduce(send, recv, reduction))
    }

    /// [`Comm::all_reduce`] with input and result in one buffer. If a member is missing, the input is lost.
    pub fn all_reduce_in_place<R>(&self, buffer: R, reduction: Reduction) -> Work<R>
    where
        R: Output + Send + 'static,
    {
        self.begin(Call::all_reduce_in_place(buffer, reduction))
    }

    /// [`Comm::all_reduce_in_place`] on this thread.
    pub fn all_reduce_in_place_blocking<T: Number>(
        &self,
        buffer: &mut [T],
        reduction: Reduction,
    ) -> Result<Outcome> {
        self.run_blocking(Call::all_reduce_in_place(buffer, reduction))
    }

    /// [`Comm::all_reduce`] with the result only at the root. Elsewhere `recv` is not accessed, and may be empty.
    pub fn reduce<S, R>(&self, send: S, recv: R, reduction: Reduction, root: u32) -> Work<(S, R)>
    where
        S: Input + Send + 'static,
        R: Output<Item = S::Item> + Send + 'static,
    {
        self.begin(Call::reduce(send, recv, reduction, root))
    }

    /// [`Comm::reduce`] on this thread.
    pub fn reduce_blocking<T: Number>(
        &self,
        send: &[T],
        recv: &mut [T],
        reduction: Reduction,
        root: u32,
    ) -> Result<Outcome> {
        self.run_blocking(Call::reduce(send, recv, reduction, root))
    }

    /// [`Comm::reduce`] with input and, at the root, result in one buffer; elsewhere it stays as it was.
    pub fn reduce_in_place<R>(&self, buffer: R, reduction: Reduction, root: u32) -> Work<R>
    where
        R: Output + Send + 'static,
    {
        self.begin(Call::reduce_in_place(buffer, reduction, root))
    }

    /// [`Comm::reduce_in_place`] on this thread.
    pub fn reduce_in_place_blocking<T: Number>(
        &self,
        buffer: &mut [T],
        reduction: Reduction,
        root: u32,
    ) -> Result<Outcome> {
        self.run_blocking(Call::reduce_in_place(buffer, reduction, root))
    }

    /// `send` `[ranks, n]` of all members is reduced, and row r of that goes to `recv` `[n]` of rank r.
    pub fn reduce_scatter<S, R>(&self, send: S, recv: R, reduction: Reduction) -> Work<(S, R)>
    where
        S: Input + Send + 'static,
        R: Output<Item = S::Item> + Send + 'static,
    {
        self.begin(Call::reduce_scatter(send, recv, reduction))
    }

    /// [`Comm::reduce_scatter`] on this thread.
    pub fn reduce_scatter_blocking<T: Number>(
        &self,
        send: &[T],
        recv: &mut [T],
        reduction: Reduction,
    ) -> Result<Outcome> {
        self.run_blocking(Call::reduce_scatter(send, recv, reduction))
    }

    /// [`Comm::reduce_scatter`] with [`Blocks`] of `send`: uneven ones, or columns of a matrix; `recv` gets this rank's
    /// block. The same blocks everywhere.
    pub fn reduce_scatter_blocks<S, R>(
        &self,
        send: S,
        recv: R,
        blocks: Blocks,
        reduction: Reduction,
    ) -> Work<(S, R)>
    where
        S: Input + Send + 'static,
        R: Output<Item = S::Item> + Send + 'static,
    {
        self.begin(Call::reduce_scatter_blocks(send, recv, blocks, reduction))
    }

    /// [`Comm::reduce_scatter_blocks`] on this thread.
    pub fn reduce_scatter_blocks_blocking<T: Number>(
        &self,
        send: &[T],
        recv: &mut [T],
        blocks: Blocks,
        reduction: Reduction,
    ) -> Result<Outcome> {
        self.run_blocking(Call::reduce_scatter_blocks(send, recv, blocks, reduction))
    }

    /// [`Comm::reduce_scatter`] with the result in row r of `buffer` `[ranks, n]` on rank r. The other rows are
    /// unspecified.
    pub fn reduce_scatter_in_place<R>(&self, buffer: R, reduction: Reduction) -> Work<R>
    where
        R: Output + Send + 'static,
    {
        self.begin(Call::reduce_scatter_in_place(buffer, reduction))
    }

    /// [`Comm::reduce_scatter_in_place`] on this thread.
    pub fn reduce_scatter_in_place_blocking<T: Number>(
        &self,
        buffer: &mut [T],
        reduction: Reduction,
    ) -> Result<Outcome> {
        self.run_blocking(Call::reduce_scatter_in_place(buffer, reduction))
    }

    /// [`Comm::reduce_scatter_blocks`] with the result in this rank's block of `buffer`. The other blocks are unspecified.
    pub fn reduce_scatter_blocks_in_place<R>(
        &self,
        buffer: R,
        blocks: Blocks,
        reduction: Reduction,
    ) -> Work<R>
    where
        R: Output + Send + 'static,
    {
        self.begin(Call::reduce_scatter_blocks_in_place(buffer, blocks, reduction))
    }

    /// [`Comm::reduce_scatter_blocks_in_place`] on this thread.
    pub fn reduce_scatter_blocks_in_place_blocking<T: Number>(
        &self,
        buffer: &mut [T],
        blocks: Blocks,
        reduction: Reduction,
    ) -> Result<Outcome> {
        self.run_blocking(Call::reduce_scatter_blocks_in_place(buffer, blocks, reduction))
    }

    /// `send` `[n]` of rank r becomes row r of `recv` `[ranks, n]` on every member.
    pub fn all_gather<S, R>(&self, send: S, recv: R) -> Work<(S, R)>
    where
        S: Input + Send + 'static,
        R: Output<Item = S::Item> + Send + 'static,
    {
        self.begin(Call::all_gather(send, recv))
    }

    /// [`Comm::all_gather`] on this thread.
    pub fn all_gather_blocking<T: Number>(&self, send: &[T], recv: &mut [T]) -> Result<Outcome> {
        self.run_blocking(Call::all_gather(send, recv))
    }

    /// [`Comm::all_gather`] with [`Blocks`] of `recv`: uneven ones, or columns of a matrix. The same blocks everywhere.
    pub fn all_gather_blocks<S, R>(&self, send: S, recv: R, blocks: Blocks) -> Work<(S, R)>
    where
        S: Input + Send + 'static,
        R: Output<Item = S::Item> + Send + 'static,
    {
        self.begin(Call::all_gather_blocks(send, recv, blocks))
    }

    /// [`Comm::all_gather_blocks`] on this thread.
    pub fn all_gather_blocks_blocking<T: Number>(
        &self,
        send: &[T],
        recv: &mut [T],
        blocks: Blocks,
    ) -> Result<Outcome> {
        self.run_blocking(Call::all_gather_blocks(send, recv, blocks))
    }

    /// [`Comm::all_gather`] with the input of rank r in row r of `buffer` `[ranks, n]`.
    pub fn all_gather_in_place<R>(&self, buffer: R) -> Work<R>
    where
        R: Output + Send + 'static,
    {
        self.begin(Call::all_gather_in_place(buffer))
    }

    /// [`Comm::all_gather_in_place`] on this thread.
    pub fn all_gather_in_place_blocking<T: Number>(&self, buffer: &mut [T]) -> Result<Outcome> {
        self.run_blocking(Call::all_gather_in_place(buffer))
    }

    /// [`Comm::all_gather_blocks`] with the input of rank r in block r of `buffer`.
    pub fn all_gather_blocks_in_place<R>(&self, buffer: R, blocks: Blocks) -> Work<R>
    where
        R: Output + Send + 'static,
    {
        self.begin(Call::all_gather_blocks_in_place(buffer, blocks))
    }

    /// [`Comm::all_gather_blocks_in_place`] on this thread.
    pub fn all_gather_blocks_in_place_blocking<T: Number>(
        &self,
        buffer: &mut [T],
        blocks: Blocks,
    ) -> Result<Outcome> {
        self.run_blocking(Call::all_gather_blocks_in_place(buffer, blocks))
    }

    /// Row p of `send` `[ranks, n]` becomes, on rank p, the row of `recv` `[ranks, n]` with this rank's number.
    pub fn all_to_all<S, R>(&self, send: S, recv: R) -> Work<(S, R)>
    where
        S: Input + Send + 'static,
        R: Output<Item = S::Item> + Send + 'static,
    {
        self.begin(Call::all_to_all(send, recv))
    }

    /// [`Comm::all_to_all`] on this thread.
    pub fn all_to_all_blocking<T: Number>(&self, send: &[T], recv: &mut [T]) -> Result<Outcome> {
        self.run_blocking(Call::all_to_all(send, recv))
    }

    /// [`Comm::all_to_all`] with uneven [`Blocks`], as `MPI_Alltoallv`: block p of `send` is for rank p, block p of
    /// `recv` is from it. Rank p must expect what this rank sends to it.
    pub fn all_to_all_blocks<S, R>(
        &self,
        send: S,
        send_blocks: Blocks,
        recv: R,
        recv_blocks: Blocks,
    ) -> Work<(S, R)>
    where
        S: Input + Send + 'static,
        R: Output<Item = S::Item> + Send + 'static,
    {
        self.begin(Call::all_to_all_blocks(send, send_blocks, recv, recv_blocks))
    }

    /// [`Comm::all_to_all_blocks`] on this thread.
    pub fn all_to_all_blocks_blocking<T: Number>(
        &self,
        send: &[T],
        send_blocks: Blocks,
        recv: &mut [T],
        recv_blocks: Blocks,
    ) -> Result<Outcome> {
        self.run_blocking(Call::all_to_all_blocks(send, send_blocks, recv, recv_blocks))
    }

    /// [`Comm::all_to_all`] in one buffer `[ranks, n]`.
    pub fn all_to_all_in_place<R>(&self, buffer: R) -> Work<R>
    where
        R: Output + Send + 'static,
    {
        self.begin(Call::all_to_all_in_place(buffer))
    }

    /// [`Comm::all_to_all_in_place`] on this thread.
    pub fn all_to_all_in_place_blocking<T: Number>(&self, buffer: &mut [T]) -> Result<Outcome> {
        self.run_blocking(Call::all_to_all_in_place(buffer))
    }

    /// [`Comm::all_to_all_blocks`] in one buffer, as `MPI_Alltoallv` with `MPI_IN_PLACE`: block p goes to rank p, and
    /// then holds what rank p has sent. So both ranks of a pair must give each other's block the same size:
    /// [`Error::Mismatch`](crate::Error::Mismatch) if they do not. If a member is missing, its block may be lost.
    pub fn all_to_all_blocks_in_place<R>(&self, buffer: R, blocks: Blocks) -> Work<R>
    where
        R: Output + Send + 'static,
    {
        self.begin(Call::all_to_all_blocks_in_place(buffer, blocks))
    }

    /// [`Comm::all_to_all_blocks_in_place`] on this thread.
    pub fn all_to_all_blocks_in_place_blocking<T: Number>(
        &self,
        buffer: &mut [T],
        blocks: Blocks,
    ) -> Result<Outcome> {
        self.run_blocking(Call::all_to_all_blocks_in_place(buffer, blocks))
    }

    /// `send` `[n]` of rank r becomes row r of the root's `recv` `[ranks, n]`. Elsewhere `recv` is not accessed, and
    /// may be empty.
    pub fn gather<S, R>(&self, send: S, recv: R, root: u32) -> Work<(S, R)>
    where
        S: Input + Send + 'static,
        R: Output<Item = S::Item> + Send + 'static,
    {
        self.begin(Call::gather(send, recv, root))
    }

    /// [`Comm::gather`] on this thread.
    pub fn gather_blocking<T: Number>(&self, send: &[T], recv: &mut [T], root: u32) -> Result<Outcome> {
        self.run_blocking(Call::gather(send, recv, root))
    }

    /// [`Comm::gather`] with input and, at the root, result in one buffer, as `MPI_Gather` with `MPI_IN_PLACE`: at the
    /// root it is `[ranks, n]`, and the root's input is in its row; elsewhere it is the input `[n]`, and stays as it was.
    pub fn gather_in_place<R>(&self, buffer: R, root: u32) -> Work<R>
    where
        R: Output + Send + 'static,
    {
        self.begin(Call::gather_in_place(buffer, root))
    }

    /// [`Comm::gather_in_place`] on this thread.
    pub fn gather_in_place_blocking<T: Number>(&self, buffer: &mut [T], root: u32) -> Result<Outcome> {
        self.run_blocking(Call::gather_in_place(buffer, root))
    }

    /// [`Comm::gather`] to uneven [`Blocks`] of the root's `recv`, as `MPI_Gatherv`. The same blocks everywhere.
    pub fn gather_blocks<S, R>(&self, send: S, recv: R, blocks: Blocks, root: u32) -> Work<(S, R)>
    where
        S: Input + Send + 'static,
        R: Output<Item = S::Item> + Send + 'static,
    {
        self.begin(Call::gather_blocks(send, recv, blocks, root))
    }

    /// [`Comm::gather_blocks`] on this thread.
    pub fn gather_blocks_blocking<T: Number>(
        &self,
        send: &[T],
        recv: &mut [T],
        blocks: Blocks,
        root: u32,
    ) -> Result<Outcome> {
        self.run_blocking(Call::gather_blocks(send, recv, blocks, root))
    }

    /// [`Comm::gather_blocks`] with input and, at the root, result in one buffer, as `MPI_Gatherv` with `MPI_IN_PLACE`: at the
    /// root it has all blocks, and the root's input is in its block; elsewhere it is the input, and stays as it was.
    pub fn gather_blocks_in_place<R>(&self, buffer: R, blocks: Blocks, root: u32) -> Work<R>
    where
        R: Output + Send + 'static,
    {
        self.begin(Call::gather_blocks_in_place(buffer, blocks, root))
    }

    /// [`Comm::gather_blocks_in_place`] on this thread.
    pub fn gather_blocks_in_place_blocking<T: Number>(
        &self,
        buffer: &mut [T],
        blocks: Blocks,
        root: u32,
    ) -> Result<Outcome> {
        self.run_blocking(Call::gather_blocks_in_place(buffer, blocks, root))
    }

    /// Row r of the root's `send` `[ranks, n]` becomes `recv` `[n]` of rank r. Elsewhere `send` is not read, and may be
    /// empty.
    pub fn scatter<S, R>(&self, send: S, recv: R, root: u32) -> Work<(S, R)>
    where
        S: Input + Send + 'static,
        R: Output<Item = S::Item> + Send + 'static,
    {
        self.begin(Call::scatter(send, recv, root))
    }

    /// [`Comm::scatter`] on this thread.
    pub fn scatter_blocking<T: Number>(&self, send: &[T], recv: &mut [T], root: u32) -> Result<Outcome> {
        self.run_blocking(Call::scatter(send, recv, root))
    }

    /// [`Comm::scatter`] from one buffer, as `MPI_Scatter` with `MPI_IN_PLACE`: at the root it is the input `[ranks, n]`,
    /// whose rows, its own too, stay where they are; elsewhere it is `[n]`, and becomes this rank's row.
    pub fn scatter_in_place<R>(&self, buffer: R, root: u32) -> Work<R>
    where
        R: Output + Send + 'static,
    {
        self.begin(Call::scatter_in_place(buffer, root))
    }

    /// [`Comm::scatter_in_place`] on this thread.
    pub fn scatter_in_place_blocking<T: Number>(&self, buffer: &mut [T], root: u32) -> Result<Outcome> {
        self.run_blocking(Call::scatter_in_place(buffer, root))
    }

    /// [`Comm::scatter`] of uneven [`Blocks`] of the root's `send`, as `MPI_Scatterv`. The same blocks everywhere.
    pub fn scatter_blocks<S, R>(&self, send: S, recv: R, blocks: Blocks, root: u32) -> Work<(S, R)>
    where
        S: Input + Send + 'static,
        R: Output<Item = S::Item> + Send + 'static,
    {
        self.begin(Call::scatter_blocks(send, recv, blocks, root))
    }

    /// [`Comm::scatter_blocks`] on this thread.
    pub fn scatter_blocks_blocking<T: Number>(
        &self,
        send: &[T],
        recv: &mut [T],
        blocks: Blocks,
        root: u32,
    ) -> Result<Outcome> {
        self.run_blocking(Call::scatter_blocks(send, recv, blocks, root))
    }

    /// [`Comm::scatter_blocks`] from one buffer, as `MPI_Scatterv` with `MPI_IN_PLACE`: at the root it has all blocks, which stay
    /// where they are; elsewhere it becomes this rank's block.
    pub fn scatter_blocks_in_place<R>(&self, buffer: R, blocks: Blocks, root: u32) -> Work<R>
    where
        R: Output + Send + 'static,
    {
        self.begin(Call::scatter_blocks_in_place(buffer, blocks, root))
    }

    /// [`Comm::scatter_blocks_in_place`] on this thread.
    pub fn scatter_blocks_in_place_blocking<T: Number>(
        &self,
        buffer: &mut [T],
        blocks: Blocks,
        root: u32,
    ) -> Result<Outcome> {
        self.run_blocking(Call::scatter_blocks_in_place(buffer, blocks, root))
    }

    /// Sends all of `send` to a receive of `peer` with this tag, which is at most 2,147,483,647. On the host a message
    /// that fits into a slot ([`CommPlan::slot_bytes`](super::CommPlan::slot_bytes)) is complete before the peer has
    /// called, as long as such messages that the peer has not received take at most 256 KiB together. Any other is
    /// complete when it has been received, and so is one to the rank itself
    /// ([`Error::Timeout`](crate::Error::Timeout) if no receive matches it within the deadline). At most 1,024
    /// messages from one rank to another can be announced and not received; further sends wait for receives.
    ///
    /// A rank takes in messages while it waits in any call of the communicator, or one of its works is polled. For one
    /// that does neither there is room for [`CommConfig::slots`](super::CommConfig::slots) of them; further sends wait
    /// for it, at most until they give it up.
    pub fn send<S>(&self, send: S, peer: u32, tag: u32) -> Work<S>
    where
        S: Input + Send + 'static,
    {
        self.begin(Call::send(send, peer, tag))
    }

    /// [`Comm::send`] on this thread.
    pub fn send_blocking<T: Number>(&self, send: &[T], peer: u32, tag: u32) -> Result<Outcome> {
        self.run_blocking(Call::send(send, peer, tag))
    }

    /// Receives the next message of `peer` with this tag, of the same type, into the front of `recv`.
    ///
    /// * A message with fewer elements leaves the rest of `recv` unchanged. How many have come is not reported.
    /// * One with more elements is [`Error::Limit`](crate::Error::Limit), and is consumed. (On a GPU it is
    ///   [`Error::Mismatch`](crate::Error::Mismatch), see [`Comm::enqueue`].)
    /// * One of another type is [`Error::Mismatch`](crate::Error::Mismatch) on every rank, which names the send and the
    ///   receive. `recv` is then unchanged. Messages that were sent and not received are lost with the membership, also
    ///   those whose send was complete.
    /// * As long as anything comes from the peer, also of other calls, it is not given up. Otherwise it is after the
    ///   deadline, for other calls too.
    pub fn recv<R>(&self, recv: R, peer: u32, tag: u32) -> Work<R>
    where
        R: Output + Send + 'static,
    {
        self.begin(Call::recv(recv, peer, tag))
    }

    /// [`Comm::recv`] on this thread.
    pub fn recv_blocking<T: Number>(&self, recv: &mut [T], peer: u32, tag: u32) -> Result<Outcome> {
        self.run_blocking(Call::recv(recv, peer, tag))
    }
}
