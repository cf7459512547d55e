//! The first run on an RDMA adapter: a checklist that changes one thing a step.
//!
//! **No step of this page has been run on an adapter yet**, but for the rehearsal. It begins with what needs least, rings in host memory,
//! rung by the host, writes of 8 bytes, so that what fails in a step has one cause. Each step has a command, what it should print, and the
//! claims that wait for it: things that nobody has seen on hardware so far. Where a step fails, stop there: the next ones are built on it.
//! What each error text means is in [`operators`](super::operators).
//!
//! **Send back**, of each step: the command, all that it printed, and the exit status. Once for each host: `doctor --json`, `ibv_devinfo -v`,
//! `uname -r`, and of a host with GPUs `nvidia-smi -q -d PCIE` and `nvidia-smi topo -m`. Of a step that failed also
//! `dmesg | tail -50` and `cat /proc/driver/nvidia/params`.
//!
//! Build once:
//!
//! ```sh
//! cargo build --release --examples
//! cargo build --release --examples --features cuda,cudarc
//! ```
//!
//! with GPUs the second line; the commands below then have `--features cuda,cudarc` as well. Two hosts are called 10.1.0.5 and 10.1.0.6 here, by
//! the addresses of the adapters' interfaces.
//!
//! # 0. Rehearsal, without an adapter
//!
//! ```sh
//! EPWIRE_NIC=fake cargo run --release --example doctor
//! ```
//!
//! ends with these lines (run in CI):
//!
//! ```text
//!   ok       fake_0 DevX                  opens
//!   ok       fake_0 capabilities          fake_0 port 1, RoCEv2, GID 3 ending in 10.77.0.0, MTU 4096; rings of 32768 entries at most, atomics
//!   ok       fake_0 host memory           registered for queues and for windows
//!   ok       fake_0 queue pair            a word to itself came
//! ```
//!
//! and between the last two tells of the GPU, if there is one. Every command below can be rehearsed so, with `fake` in place of `mlx5`.
//!
//! # 1. An adapter alone: one word of 8 bytes to itself
//!
//! ```sh
//! cargo run --release --example doctor
//! ```
//!
//! should have, for the adapter that is to be used, no line with `missing`, and
//!
//! ```text
//!   ok       mlx5_0 DevX                  opens
//!   ok       mlx5_0 queue pair            a word to itself came
//! ```
//!
//! The ring, the doorbell record and the completion are in host memory, the host rings, and nothing but one word is written.
//!
//! Waits for this step, not yet run on an adapter:
//! - that libmlx5 takes the calls as they are made: structures and versions have been compared with its headers alone;
//! - that firmware takes CREATE_CQ with one entry that is overwritten, CREATE_QP without a receive queue, and the way up to RTS;
//! - that a doorbell of 8 bytes with the next index moves a queue whose record was written first;
//! - that the adapter reaches itself over its port: some switches do not send back, then this fails and step 2 may work.
//!
//! # 2. Two ranks of one host: words of 8 bytes, then ranges
//!
//! ```sh
//! EPWIRE_NIC=mlx5 EPWIRE_PATHS=queue cargo run --release --example doctor -- --ranks 2
//! ```
//!
//! should end with a matrix without `NONE`, its figures being what is to be found out:
//!
//! ```text
//! 2 ranks, each with each: path, time of a word one way, bandwidth
//!   0 on host  -                                             queue over RDMA adapters, ... us, ... GB/s
//!   1 on host  queue over RDMA adapters, ... us, ... GB/s  -
//! ```
//!
//! Each direction begins with 200 words of 8 bytes and goes on with
//! ranges of up to 1 MiB.
//!
//! Waits for this step, not yet run on an adapter:
//! - keys and bounds of windows as the adapter sees them, and words behind their data on one queue pair;
//! - the wrap of a ring, which 200 words do not reach, and step 3 does.
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
//! With several adapters the ranks name different ones: ranks on the host take turns. `EPWIRE_HCA==mlx5_0` holds both to one.
//!
//! # 4. Two hosts
//!
//! On both, with a token in a file that has the same bytes on both, and `EPWIRE_RANK` 0 on 10.1.0.5 and 1 on the other:
//!
//! ```sh
//! export EPWIRE_TOKEN_FILE=/etc/epwire/token EPWIRE_ADDR=10.1.0.5:29700 EPWIRE_WORLD=2 EPWIRE_LOCAL_RANK=0 EPWIRE_LOCAL_WORLD=1
//! EPWIRE_RANK=0 EPWIRE_NIC=mlx5 EPWIRE_PATHS=queue cargo run --release --example doctor
//! EPWIRE_RANK=0 cargo run --release --example moe_layer -- --nic mlx5 README.md
//! ```
//!
//! should print the matrix, and `moe_layer: OK ranks=2 ...` on rank 0.
//!
//! Waits for this step, not yet run on an adapter: resolving the peer's address, the MTU of the path, the UDP source port and hop limit of
//! RoCEv2; on InfiniBand the LID and service level.
//!
//! # 5. Ranks that are killed
//!
//! ```sh
//! EPWIRE_NIC=mlx5 EPWIRE_PATHS=queue cargo run --release --example failover -- --ranks 4 --kills 5
//! ```
//!
//! should end with `failover: OK ...`.
//!
//! Waits for this step, not yet run on an adapter:
//! - that a queue pair whose rights RTS2RTS has taken places nothing any more, and one that is destroyed reads nothing any more: the fence of a rank's
//!   place;
//! - that the first error stays in a completion that flushed entries overwrite, or else that the cause is told by the connection;
//! - that what the kernel has locked is given back: `grep VmLck /proc/PID/status` of a rank does not grow from kill to kill.
//!
//! # 6. A port that goes down
//!
//! While the command of step 5 runs with `--kills 20`, an administrator takes the port of the adapter down and up again:
//! `ip link set eth2 down; sleep 5; ip link set eth2 up`. The ranks on it are left out and come back. The text to look for, in a program that
//! asks [`EpBuffer::trouble`](crate::EpBuffer::trouble), is `port 1 of mlx5_0 is down`.
//!
//! Waits for this step, not yet run on an adapter: that the event comes, and how long an adapter takes to give up a silent peer: the table in
//! [`operators`](super::operators) is computed.
//!
//! # 7. A GPU posts, a thread of the host rings, rings in host memory
//!
//! ```sh
//! EPWIRE_DOORBELLS=host EPWIRE_RINGS=host cargo run --release --features cuda,cudarc --example moe_layer -- --device cuda --ranks 2 --nic mlx5 README.md
//! ```
//!
//! should end as step 3, with `a thread of the host rings for kernels` among what is said of the adapter.
//!
//! Waits for this step, not yet run on an adapter: that entries which a kernel wrote to pinned memory are what the adapter reads once the
//! host has rung.
//!
//! # 8. The same, and the GPU rings
//!
//! ```sh
//! EPWIRE_DOORBELLS=gpu EPWIRE_RINGS=host cargo run --release --features cuda,cudarc --example moe_layer -- --device cuda --ranks 2 --nic mlx5 README.md
//! ```
//!
//! should end as step 3, without that. Else the error names `PeerMappingOverride`.
//!
//! Waits for this step, not yet run on an adapter: that the driver maps the register, and the order of a kernel's stores on the bus: entries, record,
//! register.
//!
//! # 9. The same, with entries and rows in GPU memory
//!
//! ```sh
//! EPWIRE_DOORBELLS=gpu EPWIRE_RINGS=gpu cargo run --release --features cuda,cudarc --example moe_layer -- --device cuda --ranks 2 --nic mlx5 README.md
//! ```
//!
//! should end as step 3, with `rings in GPU memory by dma-buf` or `rings in GPU memory by nvidia_peermem`.
//!
//! Waits for this step, not yet run on an adapter: a umem and a region by dma-buf at offset 0, and by nvidia_peermem, and that an adapter which is rung sees
//! entries and rows that a kernel has just written to its GPU's memory.
//!
//! # 10. Two adapters
//!
//! ```sh
//! EPWIRE_ADAPTERS=2 cargo run --release --example moe_layer -- --ranks 2 --nic mlx5 README.md
//! ```
//!
//! should end as step 3, with two adapters, parted by a semicolon, for each rank.
//!
//! # 11. Figures
//!
//! ```sh
//! cargo run --release --example bench -- --paths queue --nic mlx5 --ranks 2 --tokens 128 --iterations 20
//! cargo run --release --features cuda,cudarc --example bench -- --device cuda --paths queue --nic mlx5 --ranks 2 --tokens 128 --iterations 20
//! ```
//!
//! the second with each of the settings of steps 7 to 9. On RoCE once more with the traffic class of the fabric, `EPWIRE_TC=106` for example; the
//! counters `/sys/class/infiniband/mlx5_0/ports/1/hw_counters/*` before and after belong to it.
//!
//! Waits for this step, not yet run on an adapter: every figure.
