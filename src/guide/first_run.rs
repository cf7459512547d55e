//! The first run on an RDMA adapter: a checklist that changes one thing per step.
//!
//! **No step of this page has been run on a real adapter yet**; the rehearsal (step 0) runs with an adapter emulated in
//! software. The checklist begins with what needs least: *rings*, the queues of an adapter, in host memory; *doorbells*,
//! the registers that start it, written by the host; and writes of 8 bytes. Each step adds one thing, so that a failure
//! has a single cause. Each step has a command, the output to expect, and what it would verify: behaviour that nobody has
//! seen on hardware so far. If a step fails, stop there, because the next ones depend on it.
//! [`operators`](super::operators) explains how to set a host up, and each error text.
//!
//! **Please report**, for each step: the command, its complete output, and the exit status. Once for each host:
//! `doctor --json`, `ibv_devinfo -v`, `uname -r`, and for a host with GPUs `nvidia-smi -q -d PCIE` and
//! `nvidia-smi topo -m`. For a step that failed also `dmesg | tail -50` and `cat /proc/driver/nvidia/params`.
//!
//! Build once:
//!
//! ```sh
//! cargo build --release --examples
//! cargo build --release --examples --features cuda,cudarc
//! ```
//!
//! On hosts with GPUs use the second line, and add `--features cuda,cudarc` to the commands below. The addresses of the
//! adapters' interfaces are 10.1.0.5 on the first host and 10.1.0.6 on the second in these examples.
//!
//! # 0. Rehearsal, without an adapter
//!
//! ```sh
//! EPWIRE_NIC=fake cargo run --release --example doctor
//! ```
//!
//! ends with these lines (tested in CI):
//!
//! ```text
//!   ok       fake_0 DevX                  opens
//!   ok       fake_0 capabilities          fake_0 port 1, RoCEv2, GID 3 ending in 10.77.0.0, MTU 4096; rings of 32768 entries at most, atomics
//!   ok       fake_0 host memory           registered for queues and for windows
//!   ok       fake_0 queue pair            a word sent to itself arrived
//! ```
//!
//! Between the last two it reports on the GPU, if there is one. The other steps can be rehearsed in this way too, with
//! `fake` in place of `mlx5`, except steps 6 (an emulated adapter has no port to unplug) and 9 (it does not reach the
//! memory of a GPU).
//!
//! # 1. An adapter alone: one word of 8 bytes to itself
//!
//! ```sh
//! cargo run --release --example doctor
//! ```
//!
//! should print, for the adapter to be used, no line with `missing`, and these lines:
//!
//! ```text
//!   ok       mlx5_0 DevX                  opens
//!   ok       mlx5_0 queue pair            a word sent to itself arrived
//! ```
//!
//! The ring, the doorbell record and the completion are in host memory, the host rings the doorbell, and only a single
//! word is written.
//!
//! This step verifies, not yet run on an adapter:
//! - that libmlx5 accepts the calls as they are made: structures and versions have only been compared with its headers;
//! - that firmware accepts CREATE_CQ with one entry that is overwritten, CREATE_QP without a receive queue and with its
//!   own kind of timestamps, and the transitions up to RTS, with `dp_ordering_force` if it can reorder writes;
//! - that a doorbell of 8 bytes with the next index starts a queue whose record was written before;
//! - that the adapter reaches itself through its port: some switches do not send packets back; then this step fails
//!   although step 2 may work.
//!
//! # 2. Two ranks of one host: words of 8 bytes, then ranges
//!
//! ```sh
//! EPWIRE_NIC=mlx5 EPWIRE_PATHS=queue cargo run --release --example doctor -- --ranks 2
//! ```
//!
//! should end with a matrix without `NONE`, which has the figures to report:
//!
//! ```text
//! 2 ranks, each with each: path, time of a word one way, bandwidth
//!   0 on host  -                                             queue over RDMA adapters, ... us, ... GB/s
//!   1 on host  queue over RDMA adapters, ... us, ... GB/s  -
//! ```
//!
//! Each direction begins with 200 words of 8 bytes, followed by ranges of up to 1 MiB.
//!
//! This step verifies, not yet run on an adapter:
//! - keys and bounds of windows as the adapter sees them, and that words arrive after their data on one queue pair;
//! - the wrap-around of a ring, which 200 words do not reach, but step 3 does.
//!
//! # 3. Two ranks of one host: rows, checked
//!
//! ```sh
//! cargo run --release --example moe_layer -- --ranks 2 --nic mlx5 README.md
//! ```
//!
//! should end with
//!
//! ```text
//! rank 0 reaches 1 by queue over RDMA adapters (mlx5_0 port 1, ...)
//! rank 1 reaches 0 by queue over RDMA adapters (mlx5_0 port 1, ...)
//! moe_layer: OK ranks=2 ...
//! ```
//!
//! With several adapters, the ranks report different ones: ranks on the same host take turns. `EPWIRE_HCA==mlx5_0`
//! restricts both to one.
//!
//! # 4. Two hosts
//!
//! Put the same token into `/etc/epwire/token` on both hosts. Run these commands on both, with `EPWIRE_RANK=0` on 10.1.0.5
//! as here, and with `EPWIRE_RANK=1` on the other:
//!
//! ```sh
//! export EPWIRE_TOKEN_FILE=/etc/epwire/token EPWIRE_ADDR=10.1.0.5:29700 EPWIRE_WORLD=2 EPWIRE_LOCAL_RANK=0 EPWIRE_LOCAL_WORLD=1
//! EPWIRE_RANK=0 EPWIRE_NIC=mlx5 EPWIRE_PATHS=queue cargo run --release --example doctor
//! EPWIRE_RANK=0 cargo run --release --example moe_layer -- --nic mlx5 README.md
//! ```
//!
//! should print the matrix, and `moe_layer: OK ranks=2 ...` on rank 0.
//!
//! This step verifies, not yet run on an adapter: resolving the peer's address, the MTU of the path, the UDP source
//! port and hop limit of RoCEv2; on InfiniBand the LID and service level.
//!
//! # 5. Ranks that are killed
//!
//! ```sh
//! EPWIRE_NIC=mlx5 EPWIRE_PATHS=queue cargo run --release --example failover -- --ranks 4 --kills 5
//! ```
//!
//! should end with `failover: OK ...`.
//!
//! This step verifies, not yet run on an adapter:
//! - that a queue pair whose rights RTS2RTS has taken away places nothing any more, and that a destroyed one reads
//!   nothing any more, because this fences the place of a rank;
//! - that the first error stays in a completion that flushed entries overwrite, or else that the connection reports the
//!   cause;
//! - that memory which the kernel has locked is released: `grep VmLck /proc/PID/status` of a rank does not grow from
//!   kill to kill.
//!
//! # 6. A port that goes down
//!
//! While the command of step 5 runs with `--kills 20`, an administrator takes the adapter's port down and up again:
//! `ip link set eth2 down; sleep 5; ip link set eth2 up`. The ranks on that port are removed and come back, and the
//! command should still end with `failover: OK ...`. Look for
//! the text `port 1 of mlx5_0 is down` in a program that calls [`EpBuffer::trouble`](crate::EpBuffer::trouble).
//!
//! This step verifies, not yet run on an adapter: that the event arrives, that a queue pair which 2ERR has stopped sends
//! and places nothing once the port is up again, and how long an adapter takes to give up a silent peer: the table in
//! [`operators`](super::operators) is only computed.
//!
//! # 7. A GPU posts, a thread of the host rings, rings in host memory
//!
//! ```sh
//! EPWIRE_DOORBELLS=host EPWIRE_RINGS=host cargo run --release --features cuda,cudarc --example moe_layer -- --device cuda --ranks 2 --nic mlx5 README.md
//! ```
//!
//! should end like step 3, with `a thread of the host rings for kernels` in the description of the adapter.
//!
//! This step verifies, not yet run on an adapter: that the adapter, after the host has rung, reads the entries that a
//! kernel wrote to pinned memory.
//!
//! # 8. The same, and the GPU rings
//!
//! ```sh
//! EPWIRE_DOORBELLS=gpu EPWIRE_RINGS=host cargo run --release --features cuda,cudarc --example moe_layer -- --device cuda --ranks 2 --nic mlx5 README.md
//! ```
//!
//! should end like step 3, without that text. Otherwise the error names `PeerMappingOverride`.
//!
//! This step verifies, not yet run on an adapter: that the driver maps the register, and the order of a kernel's stores
//! on the bus: entries, record, register.
//!
//! # 9. The same, with entries, rows and what arrives in GPU memory
//!
//! ```sh
//! EPWIRE_DOORBELLS=gpu EPWIRE_RINGS=gpu cargo run --release --features cuda,cudarc --example moe_layer -- --device cuda --ranks 2 --nic mlx5 README.md
//! ```
//!
//! should end like step 3, with `rings in GPU memory by dma-buf` or `rings in GPU memory by nvidia_peermem`, and with
//! `peers write to GPU memory` by one of the two.
//!
//! This step verifies, not yet run on an adapter:
//! - a umem and a region by dma-buf, the umem at offset 0, and by nvidia_peermem;
//! - that an adapter whose doorbell was rung sees entries and rows that a kernel has just written to its GPU's memory;
//! - that a kernel which waits for a word in its GPU's memory sees it, and all rows that the adapter wrote before it:
//!   the regions are registered without relaxed ordering, and the driver says that the GPU keeps the order.
//!
//! # 10. Two adapters
//!
//! ```sh
//! EPWIRE_ADAPTERS=2 cargo run --release --example moe_layer -- --ranks 2 --nic mlx5 README.md
//! ```
//!
//! should end like step 3, with two adapters, separated by a semicolon, for each rank.
//!
//! This step verifies, not yet run on an adapter: that lanes take turns at two adapters, and that each reaches the one of
//! the same lane at the peer.
//!
//! # 11. Figures
//!
//! ```sh
//! cargo run --release --example bench -- --paths queue --nic mlx5 --ranks 2 --tokens 128 --iterations 20
//! cargo run --release --features cuda,cudarc --example bench -- --device cuda --paths queue --nic mlx5 --ranks 2 --tokens 128 --iterations 20
//! ```
//!
//! Each should print a row per case with 0 in the column `#wrong`. Run the second with each of the settings of steps 7 to
//! 9. On RoCE repeat it with the traffic class of the fabric, for example `EPWIRE_TC=106`, and report the counters
//! `/sys/class/infiniband/mlx5_0/ports/1/hw_counters/*` from before and after.
//!
//! This step verifies, not yet run on an adapter: every figure.
