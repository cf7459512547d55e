//! For those who run ranks on a cluster with RDMA adapters: setting hosts up, settings, tuning, and every error text.
//!
//! Peers that share no memory with a rank are reached by queues ([`paths`](super::paths)). By default a NIC in software
//! takes what is in the queues and sends it, over TCP between hosts. With `EPWIRE_NIC=mlx5` an mlx5 adapter (ConnectX,
//! BlueField) does. **This has not run on a real adapter yet.** Statements here about the library's own behaviour were
//! verified with an adapter emulated in software (`EPWIRE_NIC=fake`); those about hardware, kernels and drivers come
//! from their documentation and from reports by users of similar libraries. [`first_run`](super::first_run) is a
//! checklist for trying it on an adapter. Adapters of any make can be used through the wire `verbs`
//! (`EPWIRE_WIRES=verbs`), which has run over Soft-RoCE.
//!
//! # Bringing up a host
//!
//! 1. **Libraries.** `apt-get install libibverbs1 ibverbs-providers`, rdma-core 44 or newer; from 45 on each queue pair
//!    can have a doorbell of its own. The libraries are opened when an adapter is asked for: to build for adapters
//!    neither they nor their headers are needed, nor a Cargo feature; there is none for RDMA.
//! 2. **The device.** `ls /sys/class/infiniband` lists it once its driver, `mlx5_ib`, is loaded. A process must be able
//!    to read and write `/dev/infiniband/uverbs*`; it needs no other privileges.
//! 3. **The port.** It must be active (`ibv_devinfo`). On Ethernet its interface needs an IPv4 address, or a routed
//!    IPv6 address: the library uses the RoCEv2 GID of that address, wherever it is in the table. On InfiniBand a
//!    subnet manager must have assigned a LID. All ranks are on the same kind of link, and the two adapters of each
//!    pair can reach each other: `ping -I eth2 10.1.0.6`.
//! 4. **MTU.** Queue pairs use the smaller MTU of the two ports. For 4096 bytes on Ethernet set 4200 or more on
//!    interfaces and switches: `ip link set eth2 mtu 9000`.
//! 5. **Memory.** Memory that an adapter accesses is locked: `ulimit -l unlimited`; under Slurm
//!    `PropagateResourceLimitsExcept=MEMLOCK`.
//! 6. **GPUs.** For doorbells that kernels ring themselves, the driver maps the adapter's registers only with
//!    `options nvidia NVreg_RegistryDwords="PeerMappingOverride=1;"` in `/etc/modprobe.d`, `update-initramfs -u` and a
//!    reboot. Rings in GPU memory need the open GPU kernel modules with Linux 6.0 (dma-buf; rows and windows 5.12), or
//!    `modprobe nvidia_peermem`. Queues as such need neither: see `EPWIRE_DOORBELLS` and `EPWIRE_RINGS` below.
//! 7. **Containers.** `--device=/dev/infiniband --ulimit memlock=-1 --network=host`, and `--gpus all` for GPUs. Pinned
//!    memory counts towards the memory limit.
//! 8. **The bus.** With ACS on the bridges between GPU and adapter, or with a translating IOMMU (boot with `iommu=pt`
//!    to avoid it), their traffic goes through the root complex, slower or not at all: `lspci -vvv | grep ACSCtl`.
//!
//! The doctor checks each of these separately. It opens the adapters, those of other makes as the wire `verbs` does,
//! allocates and frees a ring of each kind, registers GPU memory for rings and for windows by each way, says whether the
//! GPU keeps the order of what an adapter writes there, and sends a word of 8 bytes from an adapter to itself:
//!
//! ```sh
//! cargo run --release --features cuda,cudarc --example doctor
//! ```
//!
//! # Settings
//!
//! These are the environment variables that concern adapters; [`launching`](super::launching) lists all. Programs in C
//! set the field of `epw_fabric_options` instead. An empty variable counts as unset.
//!
//! | variable | field | default | meaning |
//! |---|---|---|---|
//! | `EPWIRE_NIC` | `nic` | `soft` | `mlx5`: an adapter. The same on all ranks |
//! | `EPWIRE_PATHS` | `epw_config.paths` | as the program says | `queue` alone sends everything by queues, also within a host |
//! | `EPWIRE_HCA` | `adapters` | any | which adapters: `mlx5_0,mlx5_1`, `=mlx5_0:1`, `^mlx5_bond`; the grammar of `NCCL_IB_HCA` |
//! | `EPWIRE_ADAPTERS` | `adapter_count` | 1 | 2: the lanes of a buffer take turns at two adapters |
//! | `EPWIRE_RINGS` | `rings` | `host` | where queues are that kernels post to, the rows that they send, and what peers send: `host`, `gpu`, `auto` |
//! | `EPWIRE_DOORBELLS` | `doorbells` | `auto` | who writes the adapter's registers for kernels: `gpu`, they do; `host`, a thread does |
//! | `EPWIRE_ORDER` | `order` | `auto` | wire `verbs`: `none` where writes may be placed in another order than that of posting |
//! | `EPWIRE_SL` | `service_level` | 0 | InfiniBand's service level; on Ethernet the priority |
//! | `EPWIRE_TC` | `traffic_class` | 0 | Ethernet: four times the DSCP |
//! | `EPWIRE_HOP_LIMIT` | `hop_limit` | 255 | Ethernet |
//!
//! The fabrics of ranks keep connections in addition to the adapter, over TCP or within the host (`EPWIRE_WIRES`,
//! `EPWIRE_PORTS`, `EPWIRE_IFNAME`, and a token): over them queue pairs exchange their addresses, and the end of a
//! rank's process is noticed at once.
//!
//! **Which adapter.** Among the adapters that the filter admits, the one nearest to the rank's GPU is tried first:
//! behind the same switch, then under the same root port, the same root complex, the same socket. Ranks whose GPUs are
//! equally near take turns, in the order of the GPUs on the bus, whatever `CUDA_VISIBLE_DEVICES` says; ranks on the
//! host take turns by their number. An adapter that cannot be opened, or has no active port, is skipped. The doctor
//! says which adapter each GPU gets, and [`EpBuffer::nic`](crate::EpBuffer::nic) which one is in use and what it lacks.
//! With `EPWIRE_LOG=info` each rank says so when it starts: `queues drained by mlx5 adapters, a local socket, TCP`; or
//! by `a software NIC`, and in tests by `a strict software NIC` or by `adapters in software`.
//!
//! | in `EpBuffer::nic` | meaning |
//! |---|---|
//! | `RoCEv2, GID 3 ending in 10.1.0.5` or `InfiniBand, LID 4` | the address that others send to |
//! | `behind the same switch`, ... | how far it is from the GPU |
//! | `no atomics` | nothing is lost: words are written, not added |
//! | `doorbells in one register` | of all queue pairs, an old libmlx5: posts of several threads wait for each other. Install rdma-core 45 or newer |
//! | `doorbells that gather writes` | two queue pairs share a page, an old kernel or libmlx5 |
//! | `rings in GPU memory by dma-buf`, `rings in GPU memory by nvidia_peermem` | as `EPWIRE_RINGS` asked |
//! | `rings in host memory because it does not reach the GPU's`, `rows in host memory because it sends none from the GPU's` | `EPWIRE_RINGS=auto` has fallen back; the doctor says why |
//! | `peers write to GPU memory by dma-buf`, `peers write to GPU memory by nvidia_peermem` | as `EPWIRE_RINGS` asked: into the window |
//! | `peers write to host memory because it does not reach the GPU's`, `peers write to host memory because the GPU's keeps no order` | the same: kernels fetch from there what peers have sent |
//! | `words held back until rows are done` | wire `verbs`: the adapter's transport promises no order of writes, or `EPWIRE_ORDER=none`; each word is a round trip later |
//! | `a software NIC`, `a strict software NIC` | no adapter: `EPWIRE_NIC` is `soft`, or `strict`, which is for tests; `verbs by NAME` behind it is the adapter of the verbs wire |
//! | `a thread of the host rings for kernels` | as `EPWIRE_DOORBELLS` asked, or because the GPU does not map registers; it takes a core while kernels post |
//!
//! With `EPWIRE_LOG=warn` each rank logs once which settings have fallen back, and why. The text after the colon is the
//! error that the setting `gpu` would have returned where `auto` fell back:
//!
//! | in the log | meaning |
//! |---|---|
//! | `kernels post to host memory, not to the GPU's: ...`, `kernels send rows from host memory, not from the GPU's: ...`, `peers write to host memory, not to the GPU's: ...` | `EPWIRE_RINGS=auto` has fallen back |
//! | `a thread of the host rings for kernels: ...` | `EPWIRE_DOORBELLS=auto` has fallen back |
//! | `NAME: all queue pairs share one doorbell register (errno 95): install rdma-core 45 or newer, and a newer kernel`, `NAME: two doorbell registers share a page ...` | an old libmlx5 or kernel |
//! | `NAME reaches the GPU's memory by its address (nvidia_peermem), not by dma-buf (errno 95)` (`EPWIRE_LOG=info`) | nothing is lost |
//! | `queues drained by ...` (`EPWIRE_LOG=info`) | the settings: NIC and wires |
//!
//! # Tuning
//!
//! - **Traffic class.** Queue pairs of this kind do not inherit the value in
//!   `/sys/class/infiniband/mlx5_0/tc/1/traffic_class`. A fabric with a lossless priority needs `EPWIRE_TC`, for
//!   example 106 for DSCP 26; without it packets are dropped under load, which shows as `syndrome 0x15`. The doctor
//!   compares the two.
//! - **Spread.** Each queue pair has a UDP source port of its own, so that switches spread queue pairs over equal
//!   paths; there is nothing to configure.
//! - **Order.** A word must not be placed before the rows that it announces. InfiniBand and RoCE promise that on one
//!   queue pair, unless switches spread its packets over several paths (adaptive routing) and the adapter places them
//!   as they come. There use the wire `verbs` with `EPWIRE_ORDER=none`: each word is then posted when everything before
//!   it is done. The adapter's own queues (`EPWIRE_NIC=mlx5`) refuse it, because kernels post words behind rows.
//! - **Two adapters** (`EPWIRE_ADAPTERS=2`) are for a GPU whose link is faster than a port, with two lanes in use. Lane
//!   0 uses the adapter whose name comes first, and lane 1 the other; each sends to the adapter of the same
//!   lane at the peer. If hosts have the same adapters by the same names, a lane stays on its rail.
//! - **First words.** The first bytes on a queue pair may take longer than later ones, because caches and switches do
//!   not know it yet: [`EpBuffer::probe`](crate::EpBuffer::probe) sends a word to a peer and back before tokens have to
//!   wait for it.
//! - **Order of writes.** A word must not arrive before its rows. An adapter that may place writes in another order, if
//!   its administrator lets it (adaptive routing), is asked to keep their order on these queue pairs; one that cannot be
//!   asked is used with a warning.
//! - **Retries.** An adapter retries until two to four deadlines of the buffer have passed, whatever limit a call to
//!   connect has, in steps of a factor of two: with 8 attempts, or with 4 if the deadline is below 0.13 s. The library
//!   ends the wait itself after one deadline; retries only limit how long the queue of a silent peer is kept. An
//!   adapter may have a least timeout of its own, and may take up to four times its timeout for each attempt, so
//!   hardware can be slower than this.
//!
//! | deadline | a silent peer's entries fail after |
//! |---|---|
//! | 20 ms | 0.07 s |
//! | 100 ms | 0.27 s |
//! | 200 ms | 0.54 s |
//! | 1 s | 2.1 s |
//! | 10 s | 34 s |
//! | 60 s | 137 s |
//!
//! - **Rings and doorbells.** With entries and rows in GPU memory (`EPWIRE_RINGS=gpu`), kernels need not write each
//!   entry over the bus, and rows need not pass through host memory, neither those that a GPU sends nor those that
//!   arrive. Otherwise these go to pinned host memory, from where kernels fetch them. With registers that kernels write
//!   (`EPWIRE_DOORBELLS=gpu`) there is no thread in between, and no hop through it. Change one at a time and measure:
//!   see [`first_run`](super::first_run).
//!
//! # What each error means
//!
//! Texts begin with the operation, the rank and the peer. `NAME` stands for an adapter.
//!
//! **Options** (`invalid`), when a fabric is created. The crate sets them from the variables above, so that these texts
//! are for programs in C:
//!
//! | text | what to do |
//! |---|---|
//! | `options.size is 64, this library's is 96: use EPW_FABRIC_OPTIONS_INIT` | the program was built with another header |
//! | `options.rank is 5000, must be below 1024`, `options.adapter_count is 3, must be at most 2`, `options.doorbell_batch is 40000, must be at most 32768` | a number within the limit |
//! | `options.ring_bytes is 5000, must be 0 or a power of two from 4096 to 1073741824` | 0 is the default |
//! | `options.queue_depth is 24, must be 0 or a power of two from 16 to 32768` | 0: as the buffer needs |
//! | `the range of ports is 7003..7000; give first <= last, both above 0, or 0 and 0 for any` | `EPWIRE_PORTS` |
//! | `options.wires is 0x8, must be some of EPW_WIRE_LOCAL, EPW_WIRE_TCP and EPW_WIRE_VERBS` | at least one of them |
//! | `options.nic is 9, must be EPW_NIC_SOFT, EPW_NIC_STRICT, EPW_NIC_FAKE or EPW_NIC_MLX5` | one of them |
//! | `options.wires has EPW_WIRE_VERBS, which carries what a software NIC fetches: options.nic is 4, must be EPW_NIC_SOFT or EPW_NIC_STRICT` | the verbs wire or an mlx5 adapter's own queues, not both |
//! | `options.doorbells is 3, must be EPW_DOORBELLS_AUTO, EPW_DOORBELLS_GPU or EPW_DOORBELLS_HOST` | one of them |
//! | `options.rings is 3, must be EPW_RINGS_HOST, EPW_RINGS_GPU or EPW_RINGS_AUTO` | one of them |
//! | `options.rings is EPW_RINGS_GPU, but a software NIC reads and writes no GPU memory: use an adapter, or no other wire than EPW_WIRE_VERBS` | `EPWIRE_RINGS=host`, or an adapter |
//! | `options.order is 2, must be EPW_ORDER_AUTO or EPW_ORDER_NONE` | one of them |
//! | `options.order is EPW_ORDER_NONE (EPWIRE_ORDER=none), but nobody holds back what is posted to the queues of an mlx5 adapter: use a software NIC, and EPW_WIRE_VERBS` | `EPWIRE_ORDER=auto`, or the wire `verbs` |
//! | `options.device is -2, must be EPW_DEVICE_HOST or an ordinal` | the GPU of the rank's buffers |
//! | `options.key is NULL: connections by TCP need one, the same on all ranks` | 32 bytes; the crate derives them from the token |
//!
//! **No adapter** (`no path`), when a buffer with queues is created:
//!
//! | text | what to do |
//! |---|---|
//! | `there is no libmlx5.so.1: install rdma-core (libibverbs1, ibverbs-providers)` | install these; in a container they have to be inside |
//! | `libmlx5.so.1 has no NAME of version MLX5_1.19: install rdma-core 44 or newer` | an older one is found first: see `ldconfig -p` and `LD_LIBRARY_PATH` |
//! | `there is no mlx5 adapter: see /sys/class/infiniband; without one choose another NIC or wire` | load `mlx5_ib`; in a container `--device=/dev/infiniband`; else `EPWIRE_NIC=soft`. With the verbs wire the messages say `RDMA adapter`, and any RDMA driver works |
//! | `options.adapters (EPWIRE_HCA), "x", matches none of 2 mlx5 adapters; the first is NAME` | the filter names others, or excludes all |
//! | `options.adapters (EPWIRE_HCA) is "x", not a filter of adapters` | one `^` or `=` in front of all names, no blanks, ports behind a colon |
//! | `there is no second mlx5 adapter beside NAME: set options.adapter_count (EPWIRE_ADAPTERS) to 1, or let options.adapters match another one` | the host has one, or the filter lets one through |
//! | `cannot list adapters` | the kernel's own error follows |
//! | `no mlx5 adapter can be used: NAME: ...` | for each of these reasons, adapter by adapter: |
//! | `it has no DevX, which needs its firmware's user contexts (log_max_uctx)` | update firmware and kernel; virtual functions may have it switched off: ask who owns the host |
//! | `this process may not open it: see /dev/infiniband, and in a container --device` | rights of `/dev/infiniband/uverbs*` |
//! | `none of its ports can be queried` | the filter names a port that it does not have, or the driver is in trouble: `dmesg` |
//! | `no port is active: see ibv_devinfo, and the cable or the interface` | `ip link set ... up`, cable, switch |
//! | `its port has no LID: no subnet manager has given it one` | start `opensm`, or the switch's own |
//! | `its port has no RoCEv2 GID that others can reach: give its network interface an IPv4 address, or an IPv6 one that is routed` | `ip address add 10.1.0.5/24 dev eth2`; in a container the host's network |
//!
//! **An adapter that is too old, or a request that does not suit it**:
//!
//! | text | what to do |
//! |---|---|
//! | `NAME writes completions of version 0, this library reads version 1: update its firmware` | `mlxfwmanager`, or the vendor's update |
//! | `NAME has no completion queues that ignore an overrun (cq_oi): update its firmware` | as above |
//! | `NAME sends 2^20 bytes at a time at most (log_max_msg), queue pairs are made for 2^30: update its firmware` | as above |
//! | in the log: `NAME can place writes in another order than that of posting, and no queue pair can forbid it (dp_ordering_force): see that adaptive routing is not forced on it (mlxreg, ROCE_ACCL), or update its firmware` | what the administrator has set is not visible here. If writes are reordered, results are wrong: use the wire `verbs` with `EPWIRE_ORDER=none` instead |
//! | `NAME has rings of 64 entries at most, 256 are needed: lower max_tokens` | or fewer ranks: entries of an operation are those of its rows |
//! | `options.traffic_class (EPWIRE_TC) is 106, but the port of NAME is InfiniBand, which has none within a subnet: use options.service_level` | `EPWIRE_SL` |
//! | `options.service_level (EPWIRE_SL) is 8, but the port of NAME is Ethernet, whose priorities are below 8` | 0 to 7 |
//! | `NAME gives no protection domain or event queue` | the kernel's error follows; `dmesg` |
//! | `NAME refuses CREATE_QP: BAD_PARAM, syndrome 0x...` | the firmware's own number: report it with `ibv_devinfo -v`. Behind it is advice: |
//! | `it has no more of them; use fewer buffers or peers` | queue pairs: one for each lane and peer of each buffer |
//! | `its firmware may be too old for that; see its version with ibv_devinfo` | update it |
//! | `NAME does not report completions` (verbs wire) | the kernel's error follows: 24 is `ulimit -n` |
//! | `NAME makes no queue pair of 256 entries, with 28 bytes inline: lower max_tokens, or raise the limit of locked memory (ulimit -l)` (verbs wire) | `ibv_devinfo -v` says how many entries and queue pairs it has |
//! | `the port's MTU, GID or LID does not suit; see its state with ibv_devinfo -v` | the port has changed since it was looked at |
//! | `NAME has not taken CREATE_QP` | the kernel refuses, for example: |
//! | `this process may not use it; see /dev/infiniband, and in a container --device` | as above |
//! | `a status that is not known here` | in place of its name; report it |
//! | in the log, `EPWIRE_LOG=nic=warn`: `NAME does not give back queue pair 17: Device or resource busy (errno 16): see dmesg; the end of this process frees it` | at the end of a buffer or fabric. Its memory stays locked; what does not depend on it is given back. In place of a queue pair: `the completion queue of queue pair 17`, `memory 3 of queue pair 17`, `the region of key 0x11`, `protection domain 2`, `its device` |
//! | in the log: `queue pair 17 has not stopped: ...` | the reason as above; its peer is not let in again before it has |
//!
//! **Memory and doorbells**:
//!
//! | text | what to do |
//! |---|---|
//! | `NAME does not register 58 bytes`, `NAME does not take 4096 bytes of this process for a queue` | with errno 12 the next line; with 14 (bad address) memory that the adapter cannot reach |
//! | `raise the limit of locked memory (ulimit -l)` | `ulimit -l unlimited`, in a container `--ulimit memlock=-1` |
//! | `NAME gives no doorbell register of any kind (the first kind: errno 95): use fewer buffers or peers, or a newer kernel` | each queue pair takes one |
//! | `NAME reaches no ring in GPU memory, neither by dma-buf (errno 95), which needs Linux 6.0 and the open GPU kernel modules, nor by nvidia_peermem (errno 14), which modprobe loads; EPWIRE_RINGS=host does without` | 95: the driver gives no descriptor; 14: the kernel takes none, or no module knows the address; 12: locked memory |
//! | `NAME cannot send rows from GPU memory, neither by dma-buf (errno 95), which needs Linux 5.12 and the open GPU kernel modules, nor by nvidia_peermem (errno 14), which modprobe loads; EPWIRE_RINGS=host does without` | as above |
//! | `NAME cannot let peers write to GPU memory, neither by dma-buf (errno 95), which needs Linux 5.12 and the open GPU kernel modules, nor by nvidia_peermem (errno 14), which modprobe loads; EPWIRE_RINGS=host does without` | as above |
//! | `peers cannot write to GPU memory by NAME, because the GPU does not keep the order of an adapter's writes (GPU_DIRECT_RDMA_WRITES_ORDERING); EPWIRE_RINGS=host does without` | the driver's attribute is 0: a kernel might see a word before the rows that it announces |
//! | `the GPU's driver does not map the adapter's doorbell registers for kernels (cudaErrorNotPermitted): load it with PeerMappingOverride=1, or let a thread of the host ring (EPWIRE_DOORBELLS=host)` | see above, or leave `EPWIRE_DOORBELLS` at `auto` |
//! | `cudaHostGetDevicePointer of a doorbell register` | CUDA's own error follows: report it |
//! | `memory of a queue pair does not begin on a page`, `memory that peers write to does not begin on a page`, `no memory for a queue pair`, `no memory for a queue pair of 256 entries`, `no memory for an adapter`, `no memory for a doorbell register`, `no memory to register memory`, `no memory for a list of adapters`, `no memory for what an adapter can do` | host memory has run out; the first two are errors of this library |
//! | `no memory for a fabric`, `no memory for links`, `no memory for a dial`, `no memory for a peer behind a queue`, `no memory for a queue of 256` | host memory has run out |
//! | `epoll_create1 and timerfd_create`, `epoll_ctl of a listener`, `epoll_ctl of a timer` | the kernel's error follows: 24 is `ulimit -n`, 28 the limit `fs.epoll.max_user_watches` |
//! | `cannot start the thread that attends queues`, `cannot start the thread that looks at words`, `cannot start the thread that makes connections` | `ulimit -u`, in a container `--pids-limit` |
//!
//! **Connecting a peer**:
//!
//! | text | what to do |
//! |---|---|
//! | `the peer has a software NIC, this rank an mlx5 adapter: give all ranks the same options.nic` | `EPWIRE_NIC` on all; `a fake mlx5 adapter` is one in software, and `a NIC of a kind that is not known here` that of another version of this library |
//! | `no queue leads to the peer: ...` | for one of these reasons: |
//! | `its fabric has no verbs wire: give all ranks the same wires`, `its fabric has the verbs wire, this rank's has not: give all ranks the same wires`, `the two fabrics have no wire in common` | `EPWIRE_WIRES` on all |
//! | `it is on another host, or in another network namespace, and this rank's fabric has no TCP: give its options a key and EPW_WIRE_TCP`, `its fabric has no TCP: give its options a key and EPW_WIRE_TCP` | `tcp` in `EPWIRE_WIRES`, and a token, on all; in containers the host's network |
//! | `the peer's fabric has not answered within 1000 ms: ...` | each address that was tried follows with what was found there, see below, and `the deadline has passed`. `the fabric's thread has not run` means that this host has too much to do |
//! | `the peer's fabric is gone, or refuses this rank: ...` | each address with what was found there follows, see below |
//! | `a forked child has none of its parent's links` | create fabrics in the process that uses them, after the fork |
//! | `the peer's adapter is on InfiniBand, this rank's on Ethernet` (verbs wire) | `EPWIRE_HCA` on one of them |
//! | `the peer's adapter is on InfiniBand, this rank's, NAME, on Ethernet` | `EPWIRE_HCA` on one of them |
//! | `NAME finds no way to the peer's address, which ends in 10.1.0.6: see that ping reaches it by this adapter's interface` | routes, firewall, VLAN; errno 110 means that nobody answered for the address |
//! | `NAME has no route to queue pair 17 of the peer, whose address ends in 10.1.0.6: see that ping reaches it by this adapter's interface` (verbs wire) | as above |
//! | `the peer gave no valid address of its adapter: 7, MTU 9` | another version of this library there |
//! | `NAME refuses INIT2RTR_QP` | MTU or GID, see above |
//! | `the adapter does not end a queue pair by which the peer's former process may still write: see dmesg, and create the buffer again` | the kernel or the adapter is unwell: nobody is let into that place until the queue pair is gone |
//!
//! What was found at an address of the peer, for example `10.1.0.6:7000: no answer`:
//!
//! | text | what to do |
//! |---|---|
//! | `no answer` | a firewall, or another network: `EPWIRE_IFNAME`, `EPWIRE_PORTS` |
//! | `Connection refused (errno 111)`, or another error of the kernel | no process listens there any more: see why the peer has ended |
//! | `accepted, but said nothing more` | its process is stopped or has too much to do, or something between the hosts answers in its place |
//! | `bad magic: no rank of epwire answers at this address` | another service has the port: `EPWIRE_PORTS`, `EPWIRE_IFNAME` |
//! | `other version: the handshake is of version 1 here and 2 there; use the same epwire version` | on all ranks |
//! | `bad proof: the other end does not know the key; give all ranks the same token`, `cut off: the peer hung up on this rank's proof; give all ranks the same token` | `EPWIRE_TOKEN` on all; in C `options.key` |
//! | `cut off: the other end hung up before its hello`, `cut off: the dialer hung up before it proved that it knows the key` | it has ended, or is another program |
//! | `not this fabric: the listener is another incarnation of the rank than the one that gave this address`, `not this fabric: the dialer wants another incarnation of this rank` | the rank has been started again meanwhile: connect with what it exports now |
//! | `wrong rank: the listener is not rank 3`, `wrong rank: the dialer wants another rank than 3` | the address belongs to another rank of the job by now: as above. If it stays so, addresses are translated between the hosts |
//! | `wrong role: the other end is no listener`, `wrong role: the other end is no dialer`, `other link: the answer is not to link 7` | something between the hosts sends a rank's bytes back or to another one: no proxy may be there |
//! | `no memory`, `no random numbers` | the host has run out of memory; the kernel gives this process no random numbers: a filter of system calls that forbids `getrandom` |
//!
//! **Connecting by queues**, whatever drains them:
//!
//! | text | what to do |
//! |---|---|
//! | `listening on ADDRESS: every port of the range 7000..7003 is taken; widen it` | `EPWIRE_PORTS`: for each rank of the host a port per address of it, and with feature `succession` one more for each rank except 0 |
//! | `no interface that is up and passes the filter "NAME" has an address that others can dial; up are: NAMES` | `EPWIRE_IFNAME` |
//! | `peers are offered only the first 8 of this host's addresses, not the other 2: choose interfaces with EPWIRE_IFNAME` | a warning: if peers reach none of the first, such as those of container bridges, name the right interface |
//! | `the peer's NIC has not answered within the deadline` | the peer has ended, or a firewall drops what is sent to its port |
//! | `the queues that the peer has exported serve a former connection of this rank, or are gone: let the peer export again` | programs that pass blobs themselves: each blob is for one connection |
//! | `the peer's blob has 100 bytes about its queues, this library expects 120: use the same epwire version on all ranks` | mixed versions |
//! | `cannot start the thread of the software NIC` | with errno 11, the limit of processes: `ulimit -u`, or the container's |
//!
//! **The doctor's findings** about an adapter, in addition to these errors. What helps follows behind an arrow:
//!
//! | text | meaning |
//! |---|---|
//! | files, or opening: `no answer within 30s` | the adapter's driver or firmware hangs: `see dmesg; where ranks do without it, EPWIRE_HCA=^=NAME leaves it out` |
//! | `no atomics`: `see PCI_ATOMIC_MODE with mlxconfig` | nothing is lost: words are written, not added |
//! | `registered for queues and for windows`, `the GPU maps the register`, `peers may write to them: the GPU keeps the order of an adapter's writes`, `its transport promises to place writes as they are posted`, `a word sent to itself arrived` | it works |
//! | `not registered (errno 12)` | 12: `raise the limit of locked memory (ulimit -l)`; otherwise the kernel's reason |
//! | GPU rings or windows, `not registered (errno 95), nor needed` | the other way works |
//! | GPU rings or windows, `not registered (errno 95)` | by dma-buf: a Linux of that version `or newer with the open GPU kernel modules`; by nvidia_peermem: `modprobe nvidia_peermem`. Host memory needs neither |
//! | `peers write to host memory: the adapter registers none of the GPU's`, `peers write to host memory: the GPU does not keep the order of an adapter's writes (GPU_DIRECT_RDMA_WRITES_ORDERING)` | `EPWIRE_RINGS=host, or auto, which does so by itself` |
//! | `its transport promises none: words are posted when what is before them is done` | wire `verbs`: each word is a round trip later |
//! | GPU windows, or `doorbells by kernels`: `no GPU of this process to try it with`; `there is no memory to try it with` | it was not examined |
//! | `completions are not reported: ...` | `see the limit of open files (ulimit -n)` |
//! | `not made: ...` (verbs) | with errno 12 locked memory; else `it needs an adapter with reliable connected queue pairs (RC)` |
//! | `not connected to itself: ...` (verbs) | `see the port's state with ibv_devinfo -v` |
//! | `takes no entry: ...`, `tells no completions: ...`, `a word sent to itself is done, but has not arrived` (verbs) | the driver is in trouble: `dmesg` |
//! | `a word sent to itself has neither arrived within 1000 ms nor failed` | `some switches send nothing back to its sender: try two hosts; else see dmesg`. Between two adapters it may work all the same: [`first_run`](super::first_run). If not, try `EPWIRE_DOORBELLS=host` |
//! | `a word sent to itself failed: the peer is not reached any more (syndrome 0x15, vendor 0x81)` | or another reason as below |
//! | `a word sent to itself arrived; doorbells share a register or a page`: `rdma-core 45 or newer, and a newer kernel` | posts of several threads wait for each other, or queue pairs share a page |
//!
//! **A lost peer** ([`Cause::Link`](crate::Cause::Link)): [`EpBuffer::trouble`](crate::EpBuffer::trouble) tells the
//! reason, until the peer is connected again; meanwhile the group continues without it.
//!
//! | text | what to do |
//! |---|---|
//! | `port 1 of NAME is down: see its cable and switch, and ip link; connect again when it is up` | the event came from the adapter |
//! | `port 1 of NAME has lost the address that its queue pairs use: destroy this rank's fabric and all that uses it, and create new ones` | somebody has changed the interface's address, or the subnet manager the LID; other addresses of the port may change |
//! | `NAME has failed: see dmesg; once it is back, destroy this rank's fabric and all that uses it, and create new ones` | all queues of the rank are gone |
//! | `an entry for it failed: the peer is not reached any more (syndrome 0x15, ...)` | dead, cut off, or packets dropped: `EPWIRE_TC`, PFC, MTU on the way, firewall for UDP port 4791 |
//! | `the peer has ended its queue pair: see there why; connect it again` (mlx5) | its end has failed, or it has ended: the connection beside the queue pairs says so, which adapters do not |
//! | `its remote key does not open its bytes (syndrome 0x13)`, `the peer does not do what it asks for (syndrome 0x12)`, `the peer has given up its queue pair (syndrome 0x22)` | it has given this rank's place away, or ended |
//! | `its local key does not open its bytes (syndrome 0x04)`, `it is no entry of this queue (syndrome 0x02)`, `its length is wrong (syndrome 0x01)` | an error of this library: report it, with the vendor's number |
//! | `an entry for it failed: the peer is not reached any more (syndrome 0x15, vendor 0x81): see that its process lives, and the network between the hosts` (software NIC) | its process has ended, or its host is cut off |
//! | `the connection to its NIC is gone, or it took nothing for so long that its queue was full: see that its process lives, and the network between the hosts` | its process has ended, or hangs |
