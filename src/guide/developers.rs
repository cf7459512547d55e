//! For those who work on epwire itself: how the code is organised, and how a token passes through it.
//!
//! Terms on this page:
//!
//! * A *word* is a 64-bit signal word in a window: it has one writer, and tells its reader what has happened.
//! * The *peer* layer is what dispatch, combine, collectives and prefill have in common: words, waits, memberships,
//!   queues. It knows neither tokens nor experts.
//! * An *explorer* is a test that runs a state machine or the rules of a protocol through every state of small groups.
//! * A peer *behind a queue* is one whose window is not mapped: a NIC, in software or an adapter, writes there.
//!
//! # The tree
//!
//! Dependencies point one way: `examples` use `src`, which calls `c`, which launches `kernels`. Within `c` the folders
//! are, from the bottom up: `base`; `numerics` and `device`; `ipc`; `window`; `nic`; `peer`; `ep` (dispatch and combine)
//! and `coll` (collectives); `prefill`. Within `kernels`: `ptx`; `numerics` and `peer`; `ep`, `prefill` and `coll`; and a
//! thin `.cu` for each family of kernels. Nothing above the two `peer` folders stores or loads a word.
//! `tests/structure.rs` checks all of this, and the lists below.
//!
//! * **Lanes.** A lane is a pure state machine, `c/ep/lane.c`: its inputs are the time and the words of peers, its
//!   outputs are decisions. On the host `c/ep/host/drive.c` carries them out, and the explorer in `tests/c/model.c` runs
//!   the same code through every state of small groups. Kernels share its rules and words, but not the state machine.
//! * **Common code above C.** `src/peers` has what buffers and communicators share: paths, connecting, following the
//!   group, and the thread that waits in place of tasks. `src/ffi/floor.rs` has one trait for the functions that C has
//!   for both. `src/comm/call.rs` checks every size of a collective against its memory; `src/comm/work.rs` explains why
//!   works own their buffers.
//! * **Tasks** are woken by one thread of the process, `src/peers/progress.rs`. In a round it checks everything that is
//!   awaited, by `c/peer/await.c`, which knows neither buffers nor communicators: each kind has a function that checks
//!   its operations and says on which word to sleep, `epw_buffer_look`, `epw_comm_look` or `epw_prefill_look`.
//! * **The membership** is a pure state machine as well, `src/rendezvous/machine.rs`, and so is each member's part in it,
//!   `src/rendezvous/pace.rs`. Connections reach it through `driver/door.rs` and `driver/hub.rs`. What arrives becomes
//!   records of a ledger, which is in memory, in a file (`journal`) or shared by several servers (`log`, which is Raft by
//!   openraft, driven by `driver/shared.rs`); the leading server carries out what follows from a record.
//!   `driver/carrier.rs` is the client's side: it finds the new server after a loss and repeats the unanswered calls.
//!   Histories in `machine/tests` and `log/tests` run through thousands of failures of all of these, generated from
//!   seeds.
//! * **The log.** What the core reports while it runs goes through `c/base/log.h`, and only from the places where paths
//!   are chosen, memberships begin and peers are given up (`c/peer/tell.h` has the texts). The group reports its
//!   decisions to the same log through `src/log.rs`, which also turns log records into `tracing` events.
//!   `tests/story.rs` checks the log of a run that loses a rank. `c/peer/traffic.h` counts what buffers and
//!   communicators move, once for each operation and peer.
//! * **Planted faults.** `tests/faults/run` changes one line at a time, in the product as listed in
//!   `tests/faults/core.txt` and in what explorers model themselves as listed in `tests/faults/model.txt`, and checks
//!   that the test named there detects it. `tests/faults/run --rust` does the same for the group: its state machine,
//!   its members' part and its log, from `tests/faults/rust.txt`. `.ci/run faults` runs both. `tests/faults/run --cuda`
//!   does the same with `tests/faults/kernels.txt`; if the machine with the GPUs has no compiler, `--build-only` builds
//!   elsewhere and `--run-built` runs there. `tests/emulator` runs the kernels, and these tests of them, without a GPU.
//!
//! The lists below name the files that check, decide, move or wait, in the order in which a token first reaches them.
//! Files that these share (layouts and descriptors, lanes and handles, the pool of threads) are left out.
//!
//! # The way of a token on the host
//!
//! 1. `src/buffer/dispatch.rs`: `dispatch_blocking` takes the call.
//! 2. `src/buffer/input.rs`: `to_c` checks shapes and converts the input to C.
//! 3. `src/ffi.rs`: `dispatch` calls C.
//! 4. `c/ep/dispatch.c`: `epw_dispatch` checks the rest and finds the lane.
//! 5. `c/ep/host/send.c`: `epw_host_dispatch` checks the routing, numbers the rows, and writes them to the peers' slots.
//! 6. `c/ep/host/drive.c`: `epw_host_run` reads words, asks the state machine, and does what it says.
//! 7. `c/ep/lane.c`: `epw_lane_decide` decides whose rows go out now, whom to wait for, and whom to give up.
//! 8. `c/peer/rules.h`: `epw_rule_may_send` judges one peer's words.
//! 9. `c/numerics/body.inc`: `quantize`, called through `c/ep/input.c`, and copies that bypass the caches, for each
//!    instruction set.
//! 10. `c/peer/signal.c`: `epw_signal` posts the word that announces the rows.
//! 11. `c/peer/sleep.c`: `epw_watch_sleep` is where a rank waits.
//! 12. `c/ep/host/receive.c`: `epw_host_lay_out` checks what a source says of its rows and lays them out for the experts.
//! 13. `c/ep/combine.c`: `epw_combine` takes the experts' outputs.
//! 14. `c/ep/host/combine.c`: `epw_host_answer` sends the answers to the tokens' ranks, which sum them.
//!
//! A peer behind a queue is reached through other files from step 10 on: `c/peer/remote_post.c`, `epw_remote_signal`,
//! builds entries with `c/nic/entry.h` in the ring of `c/nic/queue.h`; `c/nic/soft/pair.c`, `epw_pair_next`, fetches
//! and checks them, and `c/nic/soft/outgoing.c` sends them as frames; in the peer's `c/nic/soft/incoming.c`, `admit`
//! checks key and bounds, `place_word` stores the word, and `c/peer/signal.c`, `epw_word_arrived`, wakes the thread
//! that sleeps on it. `c/nic/fabric.c` keeps the connections, which `c/nic/link.c` makes.
//!
//! Words are sent as 8-byte writes on every wire, not as fetch-adds. A word has one writer and absolute values, so all
//! that matters is that it arrives after the rows. Within a queue pair the wires `local` and `tcp` and an adapter's
//! reliable connections keep that order. If the carrier of the wire `verbs` may not keep it, the NIC holds a word back
//! until the rows before it have completed (`c/nic/soft/carry.c`). Fetch-adds would keep the order too, but would need
//! a shadow copy of each word, a reservation that includes it, and a check of every old value that comes back. An mlx5
//! fabric that places writes out of order (adaptive routing) is not supported with either yet.
//!
//! `c/nic/soft/strict.h` is the software NIC's strict mode, for tests: it detects entries and bytes that change while
//! the queue owns them, delays fetches, and injects planned faults. `tests/c/nic_faults.c` computes the expected result
//! of each entry, `tests/c/fault_plans.c` what each rank must be told about each operation, and `tests/c/exchange.c`
//! runs the `peer` layer over such NICs. `EPWIRE_PATHS=queue` puts a queue between all ranks of the Rust tests, and
//! `EPW_TEST_PATH=queue` between those of the C tests that include `tests/c/group.h`: `.ci/run queues` does both, over
//! each wire.
//!
//! A queue pair of an adapter is created by commands: `c/nic/end.h` chooses between this and the software NIC,
//! `c/nic/mlx5/commands.c` builds the commands, `c/nic/mlx5/open.c` finds port and address, `c/nic/mlx5/pair.c` takes a
//! pair through its states. `c/nic/choice.c` decides which adapters a rank uses, by their place on the bus
//! (`c/nic/bus.c`); the doctor uses it as well. A fabric has one or two adapters, and keys, addresses and numbers of
//! queue pairs depend on the lane (`epw_fabric_place`). Every call to libibverbs and libmlx5 goes through the table of
//! `c/nic/mlx5/calls.h`, which `c/nic/fake/` implements in tests: it decodes commands at places that
//! `tests/nic/offsets` has read from what rdma-core and UCX publish, and passes finished pairs to the software NIC.
//! `c/nic/mlx5/library.c` calls the libraries; `tests/c/mlx5_wire.c` takes their place, with the fake behind it.
//! `tests/nic/witness/run` compares the commands with those of rdma-core, UCX and DPDK; [`adapter`](super::adapter) lists
//! who confirms what. `c/nic/mlx5/probe.c` tries each step separately for the doctor. What users have to know is in
//! [`operators`](super::operators), where `tests/guide.rs` requires every error text, and in
//! [`first_run`](super::first_run), which lists what nobody has seen on an adapter yet.
//!
//! The verbs wire works with an RDMA adapter of any make and needs no commands: what a software NIC has fetched and
//! checked, `c/nic/soft/carry.c` posts to a reliable queue pair of the adapter, through the table of
//! `c/nic/verbs/calls.h`, and collects the completions; if writes may overtake each other, it holds words back.
//! `c/nic/verbs/library.c` implements that table with libibverbs, whose interface `c/nic/verbs/abi.h` declares:
//! `tests/c/verbs_library.c` compares it with the library's header, `tests/c/verbs_wire.c` takes the library's place,
//! and `tests/roce/run` boots a kernel that has Soft-RoCE. Both kinds of adapter share the choice of adapter,
//! `c/nic/mlx5/open.c`, the thread that looks at words, `c/nic/mlx5/watch.c`, and the handling of events,
//! `c/nic/mlx5/events.c`.
//!
//! An adapter does not report to the other end of a queue pair that this end has failed. The two fabrics also have a
//! connection besides the queue pairs, and it does: a frame ENDED names the numbers of both queue pairs
//! (`c/nic/soft/incoming.c`, `hear_end`), and the other end breaks its own queue pair, of the verbs wire or of an mlx5
//! adapter, long before a deadline. Only the rank to which the pair is connected may send this frame.
//!
//! Connecting ends when the other end has answered a frame CONNECTED, which comes by that connection too, with a frame
//! HEARD. The other end refuses if its queue pair still serves a former connection of this rank, because news of the
//! former connection's end may arrive later than the request for an offer. Both queue pairs then break, and the next
//! offer has new ones. A software NIC knows whether the pair has taken entries (`c/nic/soft/incoming.c`, `tie`). An
//! adapter does not say: there a pair that is connected accepts only the pair to which it is connected, and that only
//! once, since a number may be given out again (`c/nic/other_end.h`).
//!
//! A queue pair is warmed up before its first operation, so that the adapter has already fetched its state and resolved
//! its path. Connecting posts nothing, but the words that begin an epoch are posted on each lane's queue pair to each
//! peer: `c/peer/membership.c`.
//!
//! # The way of bytes in a collective
//!
//! 1. `c/coll/call.c`: `epw_group` checks calls and makes operations of them.
//! 2. `c/coll/drive.c`: `epw_comm_step` reads the peers' words, has bytes moved, gives up silent peers.
//! 3. `c/coll/program.c`: `epw_program_begin` divides an operation into flows: only this file knows algorithms.
//! 4. `c/coll/flow.c`: `write_message` puts bytes, or their address, into a slot of the peer's ring.
//! 5. `c/coll/flow.c`: `epw_rings_post` tells the peer, and releases slots.
//! 6. `c/coll/flow.c`: `read_some` copies bytes to their place, and `fold_some` adds those that are reduced.
//! 7. `c/numerics/sums.c`: folds rows in ascending rank order.
//!
//! Which slot may be written or read, and what the words of a ring mean, is defined by the pure functions of
//! `c/coll/rules.h`: the explorer in `tests/c/comm_model.c` runs them through every state of small groups. Sends and
//! receives use rings of their own, `c/coll/point.c`, with credits whose rules, `c/coll/credits.h`, are explored by
//! `tests/c/point_model.c`; and memory that peers map comes from `c/coll/heap.c`.
//!
//! # The way of rows in a prefill
//!
//! 1. `c/prefill/call.c`: `epw_prefill_dispatch` checks the call and makes an operation of the lane.
//! 2. `c/prefill/routing.c`: `epw_routing_number` numbers the rows for each rank and expert.
//! 3. `c/prefill/drive.c`: `epw_prefill_step` reads words, has messages moved, gives up silent peers.
//! 4. `c/prefill/rules.h`: `epw_streams_turn` says what may be written for each peer now, and what may be taken.
//! 5. `c/prefill/send.c`: `epw_prefill_send` writes rows to the rings of peers.
//! 6. `c/prefill/receive.c`: `epw_prefill_take` checks rows that have arrived and copies them to their places.
//! 7. `c/prefill/combine.c`: `epw_prefill_answer` sends answers to the tokens' ranks, `epw_prefill_sum` adds them there.
//!
//! `tests/c/prefill_model.c` explores the rules, `tests/c/prefill_cases.c` compares all of it with a plain reference.
//!
//! # The way of a token on a GPU
//!
//! 1. `src/cuda/operation.rs`: `enqueue_dispatch` takes the call, with a stream.
//! 2. `src/buffer/input.rs`: `to_c` checks shapes and converts the input to C.
//! 3. `src/ffi.rs`: `dispatch` calls C.
//! 4. `c/ep/dispatch.c`: `epw_dispatch` checks the rest and finds the lane.
//! 5. `c/ep/gpu/call.c`: `epw_gpu_call_dispatch` enqueues a kernel.
//! 6. `kernels/dispatch.cu`: `epw_gpu_dispatch` launches it, and `dispatch_kernel` is its body.
//! 7. `kernels/ep/lane.cuh`: `Opening` reads what the lane's former kernel left behind.
//! 8. `kernels/ep/send.cuh`: `Sender` moves one token at a time through shared memory to its slots. Where few blocks have
//!    many tokens, `TeamSender` of `send_many.cuh` moves several at a time, and blocks share them out as they go.
//! 9. `kernels/ep/route.cuh`: `Token` says where its rows go, and numbers them; for many tokens `runs.cuh` does.
//! 10. `kernels/numerics/quantise.cuh`: `quantise_chunks` converts the token to FP8 on the way.
//! 11. `kernels/ep/tile.cuh`: `RowTiles` says how much of a row passes through shared memory at a time.
//! 12. `kernels/peer/signal.cuh`: `signal_mapped` posts the word that announces the rows; `signal_behind` posts rows and
//!     word to a queue.
//! 13. `kernels/peer/wait.cuh`: `await` is where a block waits for a peer.
//! 14. `c/peer/rules.h`: `epw_rule_may_send` and the other rules judge the peer's words, as on the host.
//! 15. `kernels/ep/receive.cuh`: `receive_rows` copies rows to the experts' lists.
//! 16. `c/ep/combine.c`: `epw_combine` takes the experts' outputs.
//! 17. `kernels/combine.cu`: `epw_gpu_combine` launches the kernel that answers and collects.
//! 18. `kernels/ep/answer.cuh`: `answer_all` sends the answers to the tokens' ranks.
//! 19. `kernels/ep/collect.cuh`: `collect` waits for those to this rank's own tokens.
//! 20. `kernels/ep/sum.cuh`: `accumulate` adds them up. With many rank-major rows `kernels/ep/combine_many.cuh` does 18
//!     to 20, and sums tokens while answers to others are on their way: `tests/c/progress_model.c` explores the words
//!     by which peers learn of them.
//!
//! What peers behind queues write goes to a second area of the same layout, `c/peer/inbox.h`: `written_by` in
//! `kernels/peer/words.cuh` says where a source writes, and `land` in `kernels/ep/receive.cuh` copies its rows into the
//! window, where the caller and combine look for the rows of all sources. Either both ends of a pair use queues, or
//! neither: `c/window/window.c`, `choose_path`. If adapters reach the window they write it themselves, and nothing lands:
//! `c/peer/direct.h`.
//!
//! # How a software NIC can deliver while kernels fill a GPU
//!
//! Measured on 2 x H100 with driver 580, November 2026. A kernel on all 132 SMs spins on a word. Every 1 ms a host
//! thread puts {row of 14 KiB, then a word} into device memory, while another thread of the process does something
//! else. In a second context each put waits for the previous one, so that 205 of 500 arrive within the half second
//! measured. With the other methods 490 to 500 arrive, unless the table says blocked. No row was wrong.
//!
//! | the NIC's method | undisturbed | during 4,000 launches, cudaDeviceSynchronize, capture, events | during cudaMalloc, cudaHostAlloc, cudaHostRegister | during cudaFree, first launch or load of a lazy kernel |
//! |---|---|---|---|---|
//! | its own streams in the process's context | 13 us (copy + word in stream order; word alone 6) | 13 to 17 us | as long as that call: 0.6, 66, 6 ms | **blocked until the kernel ends**, in the call that copies |
//! | a context of its own in the same process, memory by VMM | 2.4 ms: the GPU gives contexts slices in turn | the same | the same | the same, never blocked |
//! | a process of its own, memory by VMM | 2.4 ms | the same | the same | the same, never blocked |
//! | host stores into pinned memory; the waiting kernel polls the word there and fetches rows itself | 8 us a row by bulk copies (12 by loads), 8 rows 20 (52) | the same | the same | the same, never blocked: no call of the driver |
//!
//! * From a pinned word to a kernel and back to a pinned word takes 4.2 us. From a GPU to pinned memory, where a CPU
//!   thread sees the data and copies it into GPU memory with its word, takes 10 to 12 us one way for 7 and 14 KiB, and
//!   6 us for a word alone.
//! * The 1,023rd launch finds the launch queue full. It waits in the driver, and does not delay the NIC's calls.
//! * Without cudaThreadExchangeStreamCaptureMode(relaxed), calls of cudaEventQuery and cudaStreamQuery by the NIC's
//!   thread break a global capture of another thread; with it no call did.
//! * Conclusion: if words and rows of a software NIC must arrive whatever the program does, the kernel has to fetch them
//!   from pinned memory, `c/peer/inbox.h`. Copy engines of the same context are as fast, but stop while the program frees
//!   memory or loads a kernel during the wait. A second context never stops, but is 200 times slower.
//!
//! # What queues over TCP cost on a host
//!
//! Measured on 2 cores of a shared virtual machine with other work running (a load of 6 to 12), November 2026, with
//! `perf record -e cpu-clock`, `strace -c -f` and getrusage. 100 puts of 16 ranges of 1 MiB alternate with the same
//! number of bytes over a plain stream between the same processes:
//!
//! | 16 MiB, rank 0 to rank 1 | ranges | plain stream |
//! |---|---|---|
//! | of a core, at the sender | 1.9 to 2.5 ms | 2.7 to 3.2 ms |
//! | at the receiver | 1.4 to 1.9 ms | 3.4 to 3.9 ms |
//! | calls | 45 sendmsg, 43 readv, 104 epoll_wait | 21 write, 23 read |
//! | times that a thread of the sender sleeps | 36 | 4 or 5 |
//! | samples in the kernel's copies in and out | 46 % | 53 % |
//!
//! * **Ranges** are copied twice, like a stream: from the image into the socket, and from there to their place. The
//!   library's own code has less than 6 % of the samples. A connection within a host holds 256 KiB
//!   (`c/nic/handshake.c`), so that the data is still in the cache when the reader reads it. Therefore the two ends take
//!   turns. On otherwise idle cores, which sleep in between, a stream that holds megabytes is faster: ranges reach 0.68
//!   to 0.89 of its rate ([`benchmarking`](super::benchmarking)). With other work running, ranges reached 1.05 to 2.1
//!   times the stream's rate. If a connection holds half a megabyte, the cost is the same. With a megabyte and more, or
//!   the system's default, the sender needs 2.8 to 3.5 ms, and ranges reach 0.6 to 1.0 of the stream's rate. Continuing
//!   to drive the NIC while bytes arrive, instead of leaving it to its thread after 0.35 ms, made no difference beyond
//!   the noise.
//! * **Expert-major dispatch** copies each row to the list of every local expert of its token. That is 8 rows per token,
//!   or 235 MB that 4 ranks write for 512 tokens each of hidden 7168. The copies take 9 to 12 ms (the bench's floor) on
//!   the cores that also copy to and from sockets. Added to the 18 to 21 ms of rank-major, that makes 27 to 29 ms, 1.26
//!   to 1.65 times the stream's time. In the profile the copies into lists have 15 % of the samples, and the socket's
//!   copies 19 %. Rows cannot go directly from the socket to the lists, because their places there depend on the counts
//!   of all earlier ranks. Programs that do not need the lists use rank-major, whose rows are read in place.
//!
//! # How much of the cores a rank uses
//!
//! `bench` printed these figures on the same machine with other work running. Each is the mean over all ranks. In
//! parentheses is the share of the threads that drain queues (named `epw-nic`, `epw-attend`, `epw-watch`). Ranks run
//! pairs of operations with 512 tokens per rank, rank-major; idle ranks are connected and do nothing. With 4 ranks, each
//! has half a core at most.
//!
//! | peers | 2 ranks | 4 ranks | idle |
//! |---|---|---|---|
//! | in shared memory | 0.54 (0) | 0.26 (0) | 0.03 % of a core or less |
//! | behind queues, `tcp` | 0.45 (0.19) | 0.32 (0.19) | 0.04 % (0.01) |
//! | behind queues, `local` | 0.52 (0.13) | 0.34 (0.14) | 0.01 % (0.01) |
//! | behind queues, fake adapters, whose words a thread looks at every 0.5 ms when none comes | 0.66 (0.23) | 0.33 (0.16) | 3.7 % (3.7), 1.7 % (1.7) |
//!
//! For ranks on GPUs `bench --device cuda --graph` prints the same for graph replay and for idle ranks. Nobody has
//! recorded these figures yet. There the NIC's thread polls for 10 ms after the last doorbell, then every 50 us, and ten
//! times less often after a second.
