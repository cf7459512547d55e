//! How the commands and queue entries for mlx5 adapters are checked, although no adapter has been tried yet. This page
//! is for contributors and for those who want to judge that path.
//!
//! If one bit is wrong, an adapter returns an error code, or silently does something else. So each field is written by
//! one piece of code and read by another that was written independently. Where other projects build the same commands or
//! entries, their bytes are compared too; this page calls these projects *witnesses*:
//!
//! * **Literal bytes** in `tests/c/queue.c`, `tests/c/soft_nic.c` and `tests/c/mlx5_commands.c`, written by hand from
//!   the layouts in the adapter's manual: for every entry, for doorbell record and doorbell, for completions, and for
//!   some commands.
//! * **`infiniband/mlx5dv.h`**, which users of libmlx5 compile: its inline functions build control and data segments
//!   and read opcodes of completions. Compared where the header is installed; elsewhere the tests report NOT CHECKED.
//! * **The table of places**, `c/nic/fake/offsets.inc`, which `tests/nic/offsets` has generated from the definitions in
//!   rdma-core and UCX of 2026. The code that builds commands has places of its own; the fake adapter decodes commands
//!   with this table, and refuses every bit that a command does not use. `.ci/run nic_offsets` compares it with the
//!   definitions of the releases named below, and prints how many places each of them confirms: 213 of 223 in all, and
//!   DPDK alone all 37 of CREATE_CQ and its context. Of the other 10, three are used here, those about the order of
//!   writes (`dp_ordering_*`). `RDMA_CORE=FOLDER UCX=FOLDER .ci/run nic_offsets` with sources of August 2026 (UCX 9466d10)
//!   confirmed all 223 in November 2026.
//! * **Foreign witnesses**, `.ci/run witnesses`: files of rdma-core 56.1 (`dr_devx.c`, `qp.c`, `cq.c`), of UCX 1.13.1
//!   (`ib_mlx5_dv.c`, `rc_mlx5_devx.c`) and of DPDK 22.11 (`mlx5_devx_cmds.c`), from Debian's source packages, compiled
//!   with the harnesses in `tests/nic/witness`. `dr_devx.c` and `mlx5_devx_cmds.c` build commands; `qp.c` posts to a
//!   ring that the soft NIC drains; `cq.c` polls what the soft NIC has completed, and names each syndrome; UCX takes a
//!   queue pair through its states and back on the fake adapter. `tests/nic/witness/findings.txt` has the result for
//!   each field, with the reason where they differ.
//! * **Foreign device code**, `.ci/run device_witnesses`: kernels that post to a ring of the soft NIC and poll its
//!   completions by functions in NVSHMEM 3.8.0: its own for adapters (IBGDA), and DOCA GPUNetIO's, from which NCCL's
//!   has come. CI compiles it; it ran on an H100 (driver 580.159.04) on 27 November 2026, and
//!   `tests/nic/witness/findings_gpu.txt` is what it said: all 129 findings agree.
//!
//! # Who confirms what
//!
//! A column counts how many of the fields that epwire sets have the same value at the same place in that witness, for
//! the same request. The last column lists the fields that no witness confirms. A field that is 0 in both is not
//! counted. `tests/guide.rs` compares the rows with the findings, which CI computes again, but for those of GPUNetIO and
//! IBGDA, which need a GPU.
//!
//! | what | `mlx5dv.h` | in software | rdma-core | UCX | DPDK | GPUNetIO | IBGDA | by none |
//! |---|---|---|---|---|---|---|---|---|
//! | QUERY_HCA_CAP | none | every bit, read by the fake | 2 of 2 | none | 2 of 2 | none | none | none |
//! | HCA_CAP | none | written by the fake | none | none | 4 of 12 | none | none | `caps.log_max_msg`, `caps.cqe_version`, `caps.atomic`, `caps.cq_oi`, `caps.hca_cap_2`, `caps.dp_ordering_ooo_rw_rc`, `caps.dp_ordering_ooo_all_rc`, `caps.dp_ordering_force` |
//! | CREATE_CQ | none | every bit, read by the fake | none | none | 11 of 11 | none | none | none |
//! | CREATE_QP | none | every bit, read by the fake | 10 of 13 | 9 of 13 | 12 of 13 | none | none | none |
//! | RST2INIT | none | every bit, read by the fake | 4 of 4 | 4 of 4 | 4 of 4 | none | none | none |
//! | INIT2RTR | none | every bit, read by the fake | 11 of 26 | 23 of 26 | 6 of 26 | none | none | `qpc.dp_ordering_force`, `qpc.next_rcv_psn` |
//! | RTR2RTS | none | every bit, read by the fake | 5 of 7 | 6 of 7 | 5 of 7 | none | none | `qpc.next_send_psn` |
//! | RTS2RTS | none | every bit, read by the fake | none | none | none | none | none | `rts2rts_qp_in.opcode`, `rts2rts_qp_in.qpn`, `rts2rts_qp_in.opt_param_mask` |
//! | 2ERR | none | every bit, read by the fake | none | 2 of 2 | none | none | none | none |
//! | 2RST | none | every bit, read by the fake | none | 2 of 2 | 2 of 2 | none | none | none |
//! | QUERY_QP | none | every bit, read by the fake | none | 2 of 2 | none | none | none | none |
//! | WRITE | `ctrl`, `data` | read by the soft NIC | 10 of 10 | none | none | 10 of 10 | 9 of 10 | none |
//! | WRITE_TWO | none | read by the soft NIC | 13 of 13 | none | none | 13 of 13 | none | none |
//! | WRITE_NONE | none | read by the soft NIC | 6 of 6 | none | none | none | none | none |
//! | WRITE_INLINE | none | read by the soft NIC | 9 of 9 | none | none | 9 of 9 | 9 of 9 | none |
//! | READ | `ctrl`, `data` | read by the soft NIC | 10 of 10 | none | none | 10 of 10 | 10 of 10 | none |
//! | FETCH_ADD | `ctrl`, `data` | read by the soft NIC | 11 of 11 | none | none | 11 of 11 | 11 of 11 | none |
//! | NOP | `ctrl` | read by the soft NIC | none | none | none | 3 of 3 | none | none |
//! | RING | none | the record, read by the soft NIC | 2 of 3 | none | none | 3 of 3 | 3 of 3 | none |
//! | completions | opcode | written by the soft NIC | 13 of 14 | none | none | 2 of 14 | 3 of 14 | none |
//!
//! HCA_CAP is the answer to QUERY_HCA_CAP, also for the capabilities of RoCE and the second general ones: what epwire
//! reads of it, of which DPDK reads four at the same places. DPDK alone confirms CREATE_CQ, for a collapsed queue with
//! ignored overruns: rdma-core and this UCX leave that command to the kernel. They leave `wq_umem_valid` and
//! `dbr_umem_valid` to it too, which sets them for every caller, and have receive queues, so that neither sets `rq_type`
//! to 3; DPDK sets all three itself. This UCX is older than `ts_format`, and all three are older than
//! `dp_ordering_force`, by which a queue pair asks for writes in the order of posting; UCX of 2026 sets it there too. All
//! three number packets from 0; here the first number follows from that of the queue pair. RTS2RTS, which makes a queue pair
//! refuse its peer's writes, is built by none of them: only the table of places confirms it, as rdma-core and DPDK
//! define it. The first word of a doorbell is the next index here and in both device codes, but the last entry's first
//! word in rdma-core; adapters are said to accept both. NOP is a write of no bytes as GPUNetIO posts it; IBGDA gives
//! its own a second unit, and posts no two stretches. Its WRITE is its first entry, whose index is 0 in both. Its third
//! completion is the syndrome of a refused write, one of the ten that rdma-core names.
//!
//! So each field of entries, record and doorbell has the value that at least one other project gives it, and so has each
//! field of commands except those in the last column.
//!
//! # Device functions of others, on a GPU
//!
//! `tests/nic/witness/gpu.c` is what `.ci/run device_witnesses` runs where there is a GPU of Hopper or newer. Each of
//! the two posts every kind of entry that it has, updates the record and rings, all by its own functions. The soft NIC
//! carries it out, and the kernel polls for it. Compared are the entries with what `c/nic/entry.h` builds for the same
//! request, the effects in memory, and the completions, that of a key which does not exist among them. Then a kernel alternates 1,000
//! writes and 1,000 additions in a ring of 128, without the host, and the soft NIC is strict.
//!
//! A program that is not part of this repository did the same with the device functions of NCCL 2.30.7 and Mooncake
//! (3b5a594) on an H100 in November 2026, 70,000 words in a burst of each among it:
//!
//! * NCCL's WRITE with one and with two stretches, WRITE inline, READ, FETCH_ADD and NOP agree in every field that
//!   epwire sets; so do the record and the doorbell. Its FETCH_ADD also fills in the value to compare with, which an
//!   addition does not use. It rings before it writes the record, too.
//! * Mooncake's WRITE agrees. It rings with the first bytes of the last entry, as rdma-core does. Its masked addition
//!   of 32 bits is one that the soft NIC refuses, since epwire posts none.
//!
//! # What nobody confirms
//!
//! * That firmware accepts these commands and acts on them: no adapter has been asked. [`first_run`](super::first_run)
//!   has the list.
//! * What the witnesses share by origin: parts of all five were written by the adapter's maker.
