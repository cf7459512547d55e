//! What confirms the bytes that are sent to an adapter, since none has been tried yet.
//!
//! An adapter that receives one wrong bit reports it with a number, or does something else. So each field is written by
//! one source here and read by another, and where other projects have written the same, their result is compared with
//! it:
//!
//! * **Literal bytes** in `tests/c/queue.c`, `tests/c/soft_nic.c` and `tests/c/mlx5_commands.c`, written by hand from
//!   the layouts in the adapter's manual: for every entry, for doorbell record and doorbell, for completions, and for
//!   some commands.
//! * **`infiniband/mlx5dv.h`**, which users of libmlx5 compile: its inline functions build control and data segments
//!   and read opcodes of completions. Compared where the header is installed; elsewhere the tests report NOT CHECKED.
//! * **The table of places**, `c/nic/fake/offsets.inc`, which `tests/nic/offsets` has generated from the definitions in
//!   rdma-core and UCX of 2026. The code that builds commands has places of its own; the fake adapter decodes commands
//!   with this table, and refuses every bit that a command does not use. `.ci/run nic_offsets` compares it with the
//!   releases named below. These lack CREATE_CQ and its context, so **nothing in CI confirms the places of CREATE_CQ
//!   again**. `UCX=FOLDER .ci/run nic_offsets` with UCX's sources of August 2026 (9466d10) does: it was run in November
//!   2026, and confirmed all 217 places.
//! * **Foreign witnesses**, `.ci/run witnesses`: files of rdma-core 56.1 (`dr_devx.c`, `qp.c`, `cq.c`) and of UCX
//!   1.13.1 (`ib_mlx5_dv.c`, `rc_mlx5_devx.c`), from Debian's source packages, compiled with the harnesses in
//!   `tests/nic/witness`. `dr_devx.c` builds commands; `qp.c` posts to a ring that the soft NIC drains; `cq.c` polls
//!   what the soft NIC has completed, and names each syndrome; UCX takes a queue pair through its states and back on
//!   the fake adapter. `tests/nic/witness/findings.txt` has the result for each field, with the reason where they
//!   differ.
//!
//! # Who confirms what
//!
//! A column counts how many of the fields that epwire sets have the same value at the same place in that witness, for
//! the same request. The last column lists the fields that neither witness confirms. A field that is 0 in both is not
//! counted. `tests/guide.rs` compares the rows with the findings, which CI computes anew.
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
//! In CI only the table of places confirms two commands: CREATE_CQ, which rdma-core and this UCX leave to the kernel,
//! and RTS2RTS, which makes a queue pair refuse its peer's writes. UCX 9466d10 creates completion queues with CREATE_CQ
//! itself, but Debian does not have its sources. The statements of its `uct_ib_mlx5_devx_create_cq_common`, executed by
//! hand with its own macros for a queue of one entry with ignored overruns, gave our 272 bytes, except for
//! `cq_umem_valid` and `dbr_umem_valid`, which it leaves to the kernel. Both witnesses leave `wq_umem_valid` and
//! `dbr_umem_valid` to the kernel, which sets them for every caller. Both have receive queues, so neither sets
//! `rq_type` to 3. The first word of a doorbell is the next index here, but the last entry's first word in rdma-core;
//! adapters are said to accept both.
//!
//! # What nobody confirms
//!
//! * That firmware accepts these commands and acts on them: no adapter has been asked. [`first_run`](super::first_run)
//!   has the list.
//! * Another library's device headers posting to the soft NIC from a GPU: not run. They need a GPU, which CI does not
//!   have. Entries and doorbells that epwire's kernels write are read by the soft NIC in tests for machines with GPUs.
//! * What the two witnesses share by origin: parts of both were written by the adapter's maker.
