//! What confirms the bytes that an adapter is given, since none has been tried yet.
//!
//! An adapter that gets one bit wrong says so by a number, or does something else. So each field is written by one source here and
//! read by another, and where other authors have written the same, theirs is compared with it:
//!
//! * **Literal bytes** in `tests/c/queue.c`, `tests/c/soft_nic.c` and `tests/c/mlx5_commands.c`, written down by hand from the layouts of
//!   the adapter's manual: of every entry, of doorbell record and doorbell, of completions, and of some commands.
//! * **`infiniband/mlx5dv.h`**, which users of libmlx5 compile: its inline functions make control and data segments and read opcodes of
//!   completions. Compared where the header is installed; the tests say NOT CHECKED where it is not.
//! * **The table of places**, `c/nic/fake/offsets.inc`, which `tests/nic/offsets` has read from the definitions of rdma-core and UCX of 2026.
//!   The builder of commands has places of its own; the fake adapter takes commands apart by this table, and refuses every bit that a
//!   command has no use for. `.ci/run nic_offsets` compares it with the releases named below. These lack CREATE_CQ and its context, so
//!   **nothing in CI confirms the places of CREATE_CQ again**. `UCX=FOLDER .ci/run nic_offsets` with UCX's sources of August 2026 (9466d10)
//!   does: it was run in November 2026, and confirmed all 217 places.
//! * **Foreign witnesses**, `.ci/run witnesses`: files of rdma-core 56.1 (`dr_devx.c`, `qp.c`, `cq.c`) and of UCX 1.13.1 (`ib_mlx5_dv.c`,
//!   `rc_mlx5_devx.c`), as Debian has their sources, compiled with harnesses of `tests/nic/witness`. `dr_devx.c` builds commands;
//!   `qp.c` posts to a ring that the soft NIC drains, and `cq.c` polls what the soft NIC has completed, and names each syndrome; UCX leads a queue pair up and down
//!   on the fake adapter. What came of each field is in `tests/nic/witness/findings.txt`, with the reason where they do otherwise.
//!
//! # Who confirms what
//!
//! Of the fields that epwire sets, as many have the same value in the same place at each witness, asked for the same. The last column
//! has those that neither confirms. A field that is 0 at both is not counted. `tests/guide.rs` compares the rows with the findings, which
//! CI finds anew.
//!
//! | what | `mlx5dv.h` | in software | rdma-core | UCX | by neither |
//! |---|---|---|---|---|---|
//! | QUERY_HCA_CAP | none | every bit, read by the fake | 2 of 2 | none | none |
//! | CREATE_CQ | none | every bit, read by the fake | none | none | `create_cq_in.opcode`, `create_cq_in.cq_umem_id`, `create_cq_in.cq_umem_valid`, `cqc.dbr_umem_valid`, `cqc.cc`, `cqc.oi`, `cqc.dbr_umem_id`, `cqc.log_cq_size`, `cqc.uar_page`, `cqc.c_eqn` |
//! | CREATE_QP | none | every bit, read by the fake | 9 of 12 | 9 of 12 | `create_qp_in.wq_umem_valid`, `qpc.rq_type`, `qpc.dbr_umem_valid` |
//! | RST2INIT | none | every bit, read by the fake | 4 of 4 | 4 of 4 | none |
//! | INIT2RTR | none | every bit, read by the fake | 11 of 24 | 23 of 24 | none |
//! | RTR2RTS | none | every bit, read by the fake | 5 of 6 | 6 of 6 | none |
//! | RTS2RTS | none | every bit, read by the fake | none | none | `rts2rts_qp_in.opcode`, `rts2rts_qp_in.qpn`, `rts2rts_qp_in.opt_param_mask` |
//! | 2ERR | none | every bit, read by the fake | none | 2 of 2 | none |
//! | 2RST | none | every bit, read by the fake | none | 2 of 2 | none |
//! | QUERY_QP | none | every bit, read by the fake | none | 2 of 2 | none |
//! | WRITE | `ctrl`, `data` | read by the soft NIC | 10 of 10 | none | none |
//! | WRITE_TWO | none | read by the soft NIC | 13 of 13 | none | none |
//! | WRITE_NONE | none | read by the soft NIC | 6 of 6 | none | none |
//! | WRITE_INLINE | none | read by the soft NIC | 9 of 9 | none | none |
//! | READ | `ctrl`, `data` | read by the soft NIC | 10 of 10 | none | none |
//! | FETCH_ADD | `ctrl`, `data` | read by the soft NIC | 11 of 11 | none | none |
//! | NOP | `ctrl` | read by the soft NIC | none | none | `ctrl` |
//! | RING | none | the record, read by the soft NIC | 2 of 3 | none | `doorbell.first_word` |
//! | completions | opcode | written by the soft NIC | 13 of 13 | none | none |
//!
//! Nobody in CI but the table of places confirms CREATE_CQ, which rdma-core leaves to the kernel, as this UCX does, and RTS2RTS, by which a
//! queue pair stops taking what its peer writes. UCX 9466d10 makes completion queues by CREATE_CQ itself, and its sources cannot be had
//! from Debian: by hand, the statements of its `uct_ib_mlx5_devx_create_cq_common` for a queue of one entry with ignored overruns, by its
//! own macros, gave our 272 bytes, but for `cq_umem_valid` and `dbr_umem_valid`, which it leaves to the kernel. Both witnesses leave `wq_umem_valid` and `dbr_umem_valid` to the kernel, which sets them
//! for every caller. Both have receives, so that neither says `rq_type` 3. The first word of a doorbell is the next index here and the
//! last entry's first word in rdma-core; adapters are said to take both.
//!
//! # What nobody confirms
//!
//! * That firmware takes these commands, and heeds what they say: no adapter has been asked. [`first_run`](super::first_run) has the list.
//! * A peer's device headers posting to the soft NIC from a GPU: not run. They need a GPU, which CI does not have. Entries and doorbells
//!   that kernels of epwire write are read by the soft NIC in tests for machines with GPUs.
//! * What the two witnesses have in common by descent: parts of both come from the adapter's maker.
