//! What the doctor reports about invented machines: a folder holds the files of each, and `tests/doctor` the expected
//! texts.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use super::adapters::Process;
use super::gpu::Gpu;
use super::network::Settings;
use super::sysfs::Tree;
use super::{Found, PATIENCE, Report, Verdict, report};
use crate::ffi;

/// A folder like `/`, removed when dropped.
struct Machine(PathBuf);

impl Machine {
    /// With the files that every Linux has.
    fn new(name: &str) -> Self {
        let root = std::env::temp_dir().join(format!("epwire-doctor-{}-{name}", std::process::id()));
        fs::create_dir_all(&root).unwrap();
        let machine = Self(root);
        machine.file("/proc/meminfo", "MemTotal:       65536000 kB\nMemAvailable:   50331648 kB\n");
        machine.limits("1048576", "256000", "8388608");
        machine.file("/proc/self/mounts", "tmpfs /dev/shm tmpfs rw,nosuid,nodev 0 0\n");
        machine.link("/proc/self/ns/net", "net:[4026531840]");
        machine.file("/sys/class/net/eth0/operstate", "up\n");
        machine.file("/sys/class/net/eth0/mtu", "1500\n");
        machine.file("/sys/class/net/eth0/speed", "10000\n");
        machine
    }

    fn place(&self, path: &str) -> PathBuf {
        let place = self.0.join(path.trim_start_matches('/'));
        fs::create_dir_all(place.parent().unwrap()).unwrap();
        place
    }

    fn file(&self, path: &str, text: &str) {
        fs::write(self.place(path), text).unwrap();
    }

    fn link(&self, path: &str, target: &str) {
        symlink(target, self.place(path)).unwrap();
    }

    /// In the kernel's format.
    fn limits(&self, files: &str, processes: &str, locked: &str) {
        let line = |name: &str, soft: &str, unit: &str| format!("{name:25} {soft:20} {soft:20} {unit}\n");
        let text = line("Limit", "Soft Limit", "Units")
            + &line("Max processes", processes, "processes")
            + &line("Max open files", files, "files")
            + &line("Max locked memory", locked, "bytes");
        self.file("/proc/self/limits", &text);
    }

    /// A verbs device with one port; `device` is its place on the bus, if it has one.
    fn adapter(&self, name: &str, number: u32, device: Option<&str>, port: &[(&str, &str)]) {
        let folder = match device {
            Some(device) => format!("/sys/devices/{device}/infiniband/{name}"),
            None => format!("/sys/devices/virtual/infiniband/{name}"),
        };
        let target = format!("../..{}", folder.trim_start_matches("/sys"));
        if let Some(device) = device {
            self.link(&format!("{folder}/device"), "../..");
            self.file(&format!("/sys/bus/pci/drivers/mlx5_core/{name}"), "");
            let up = "../".repeat(device.split('/').count() + 1);
            self.link(&format!("/sys/devices/{device}/driver"), &format!("{up}bus/pci/drivers/mlx5_core"));
            self.file(&format!("{folder}/fw_ver"), "28.39.1002\n");
        }
        for (file, text) in port {
            self.file(&format!("{folder}/ports/1/{file}"), &format!("{text}\n"));
        }
        self.link(&format!("/sys/class/infiniband/{name}"), &target);
        self.file(&format!("/sys/class/infiniband_verbs/uverbs{number}/ibdev"), &format!("{name}\n"));
        self.file(&format!("/dev/infiniband/uverbs{number}"), "");
    }

    /// Sets entry `index` of the port's table.
    fn gid(&self, adapter: &str, index: u32, address: &str, kind: &str, interface: &str) {
        let port = format!("/sys/class/infiniband/{adapter}/ports/1");
        self.file(&format!("{port}/gids/{index}"), &format!("{address}\n"));
        self.file(&format!("{port}/gid_attrs/types/{index}"), &format!("{kind}\n"));
        self.file(&format!("{port}/gid_attrs/ndevs/{index}"), &format!("{interface}\n"));
    }

    /// A GPU on the PCI bus.
    fn gpu(&self, path: &str) {
        let bus = path.rsplit('/').next().unwrap();
        self.file(&format!("/sys/devices/{path}/vendor"), "0x10de\n");
        self.file(&format!("/sys/devices/{path}/class"), "0x030200\n");
        self.link(&format!("/sys/bus/pci/devices/{bus}"), &format!("../../../devices/{path}"));
    }

    fn driver(&self, params: &str) {
        self.file(
            "/proc/driver/nvidia/version",
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build\nGCC version: 12.2.0\n",
        );
        self.file("/proc/driver/nvidia/params", params);
    }

    fn report(&self, found: &Found) -> Report {
        report(&Tree::below(&self.0), found, PATIENCE)
    }

    /// Compares with the text in `tests/doctor`.
    fn says(&self, name: &str, found: &Found) {
        let path = format!("{}/tests/doctor/{name}.txt", env!("CARGO_MANIFEST_DIR"));
        let expected = fs::read_to_string(&path).unwrap_or_default();
        let said = self.report(found).to_string();
        assert!(said == expected, "{path} should be\n{said}");
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A process with one network interface and no GPU.
fn plain() -> Found {
    let interfaces = [("lo", "127.0.0.1"), ("eth0", "10.0.2.15"), ("eth0", "fe80::1")];
    let interfaces = interfaces.map(|(name, ip)| (name.to_owned(), ip.parse().unwrap()));
    Found {
        settings: Settings {
            interfaces: Ok(interfaces.to_vec()),
            choice: None,
            token: Ok(None),
            ports: Ok(None),
        },
        gpus: Err("no NVIDIA driver: libcuda.so.1 cannot be found".to_owned()),
        shared_memory: Ok(Duration::from_nanos(400)),
        queue: Ok(Duration::from_nanos(1200)),
        adapters: Process::that_opens_none(),
    }
}

/// `count` GPUs, each with these bits for the others.
fn gpus(count: usize, access: u64, atomics: u64) -> Vec<Gpu> {
    let gpu = |ordinal: usize| Gpu {
        name: "NVIDIA H200".to_owned(),
        bus: format!("0000:{:02x}:00.0", 0x1a + ordinal),
        capability: (9, 0),
        memory: 150_000_000_000,
        dma_buf: true,
        access: access & !(1 << ordinal),
        atomics: atomics & !(1 << ordinal),
        vmm: Ok(()),
        ipc: Ok(()),
    };
    (0..count).map(gpu).collect()
}

const ETHERNET: [(&str, &str); 4] = [
    ("state", "4: ACTIVE"),
    ("phys_state", "5: LinkUp"),
    ("link_layer", "Ethernet"),
    ("rate", "400 Gb/sec (4X NDR)"),
];

#[test]
fn a_bare_machine() {
    Machine::new("bare").says("bare", &plain());
}

#[test]
fn a_virtual_machine_with_one_adapter_in_software() {
    let machine = Machine::new("rxe");
    let rate = ("rate", "2.5 Gb/sec (1X SDR)");
    machine.adapter("rxe0", 0, None, &[ETHERNET[0], ETHERNET[1], ETHERNET[2], rate]);
    machine.gid("rxe0", 0, "fe80:0000:0000:0000:5054:00ff:fe12:3456", "RoCE v2", "eth0");
    machine.gid("rxe0", 1, "0000:0000:0000:0000:0000:ffff:0a00:020f", "RoCE v2", "eth0");
    // What tests/roce/run shows of such an adapter, see guest.txt.
    let opened = [
        (0, "verbs", "rxe0 port 1, RoCEv2, GID 1 ending in 10.0.2.15, MTU 1024", ""),
        (0, "order", "its transport promises to place writes as they are posted", ""),
        (3, "host memory", "not registered (errno 12)", "raise the limit of locked memory (ulimit -l)"),
        (1, "GPU windows", "no GPU of this process to try it with", ""),
    ];
    machine.says("rxe", &Found { adapters: findings("rxe0", &opened), ..plain() });
}

/// The core refuses such a port: see `epw_gid_worth`.
#[test]
fn a_port_with_link_local_addresses_alone_is_missing_one() {
    let machine = Machine::new("link-local");
    machine.adapter("rxe0", 0, None, &ETHERNET);
    machine.gid("rxe0", 0, "fe80:0000:0000:0000:5054:00ff:fe12:3456", "RoCE v2", "eth0");
    machine.gid("rxe0", 1, "0000:0000:0000:0000:0000:ffff:0a00:020f", "IB/RoCE v1", "eth0");
    let gid = |machine: &Machine| {
        let report = machine.report(&plain());
        report.sections[3].checks.iter().find(|check| check.name == "rxe0 port 1 GID").unwrap().clone()
    };
    assert_eq!(
        gid(&machine).to_string(),
        "rxe0 port 1 GID: missing, index 0, RoCE v2, fe80::5054:ff:fe12:3456 on eth0: a link-local address alone, \
         which others cannot reach; give the interface an IPv4 address, or an IPv6 one that is routed: ip address add"
    );
    machine.gid("rxe0", 10, "fd00:0000:0000:0000:0000:0000:0000:0005", "RoCE v2", "eth0");
    machine.gid("rxe0", 2, "fd00:0000:0000:0000:0000:0000:0000:0006", "RoCE v2", "eth0");
    assert_eq!(gid(&machine).reason, "index 2, RoCE v2, fd00::6 on eth0; 4 in all");
}

#[test]
fn adapters_with_gids_in_different_places() {
    let machine = Machine::new("mlx5");
    machine.limits("1048576", "256000", "unlimited");
    machine.driver("EnableStreamMemOPs: 1\nRegistryDwords: \"PeerMappingOverride=1;\"\n");
    machine.file("/sys/module/nvidia_peermem/version", "580.65.06\n");
    machine.file("/sys/class/net/eth2/mtu", "9000\n");
    machine.file("/sys/class/net/eth3/mtu", "1500\n");
    let switch = "pci0000:00/0000:00:01.0/0000:17:00.0/0000:18:00.0";
    machine.gpu(&format!("{switch}/0000:1a:00.0"));
    machine.gpu("pci0000:80/0000:80:01.0/0000:1b:00.0");
    machine.file("/sys/devices/pci0000:80/0000:80:01.0/0000:1b:00.0/numa_node", "1\n");
    machine.file("/sys/devices/pci0000:c0/0000:c0:01.0/0000:c1:00.0/numa_node", "1\n");
    let on_switch = "pci0000:00/0000:00:01.0/0000:17:00.0/0000:18:01.0/0000:19:00.0";
    machine.adapter("mlx5_0", 0, Some(on_switch), &ETHERNET);
    for (index, kind) in ["IB/RoCE v1", "RoCE v2", "IB/RoCE v1", "RoCE v2"].into_iter().enumerate() {
        let address = if index < 2 { "fe80::1" } else { "0000:0000:0000:0000:0000:ffff:0a01:0005" };
        machine.gid("mlx5_0", index as u32, address, kind, "eth2");
    }
    machine.gid("mlx5_0", 4, "0000:0000:0000:0000:0000:0000:0000:0000", "", "");
    machine.adapter("mlx5_1", 1, Some("pci0000:80/0000:80:02.0/0000:8a:00.0"), &ETHERNET);
    machine.file(&format!("/sys/devices/{on_switch}/iommu_group/type"), "identity\n");
    machine.file("/sys/devices/pci0000:80/0000:80:02.0/0000:8a:00.0/iommu_group/type", "DMA-FQ\n");
    machine.file("/sys/class/infiniband/mlx5_1/tc/1/traffic_class", "Global tclass=106\n");
    machine.gid("mlx5_1", 0, "0000:0000:0000:0000:0000:ffff:0a02:0005", "RoCE v2", "eth3");
    let infiniband = [
        ("state", "1: DOWN"),
        ("phys_state", "3: Disabled"),
        ("link_layer", "InfiniBand"),
        ("rate", "10 Gb/sec"),
    ];
    machine.adapter("mlx5_2", 2, Some("pci0000:c0/0000:c0:01.0/0000:c1:00.0"), &infiniband);
    let mut found = Found { gpus: Ok(gpus(2, !0, !0)), ..plain() };
    found.settings.choice = Some("eth".to_owned());
    found.settings.token = Ok(Some(16));
    found.settings.ports = Ok(Some((29800, 29899)));
    machine.says("mlx5", &found);
}

/// What the core says of an adapter: verdict, name, text and remedy.
fn findings(adapter: &'static str, all: &[(u32, &str, &str, &str)]) -> Process {
    let finding = |&(verdict, name, text, remedy): &(u32, &str, &str, &str)| ffi::Finding {
        verdict,
        name: name.to_owned(),
        text: text.to_owned(),
        remedy: remedy.to_owned(),
    };
    let all: Vec<ffi::Finding> = all.iter().map(finding).collect();
    let open = move |name: &str, _, _| if name == adapter { all.clone() } else { Vec::new() };
    Process { open: Arc::new(open), fake: adapter == "fake_0", ..Process::that_opens_none() }
}

/// A fake adapter that lacks the features in `lacks`, bits of `epw_fake_lack`.
fn fake(lacks: u64) -> Process {
    let open = move |_: &str, _, _| ffi::probe_fake_adapter(lacks, None);
    Process { open: Arc::new(open), fake: true, ..Process::that_opens_none() }
}

/// A port of `adapter` that can be used.
fn give_address(machine: &Machine, adapter: &str) {
    machine.gid(adapter, 0, "0000:0000:0000:0000:0000:ffff:0a00:020f", "RoCE v2", "eth0");
}

/// Three adapters and two GPUs behind one switch: all are equally near.
fn one_switch(name: &str) -> Machine {
    let machine = Machine::new(name);
    let switch = "pci0000:00/0000:00:01.0/0000:17:00.0";
    for number in 0..3 {
        let device = format!("{switch}/0000:18:0{number}.0/0000:2{number}:00.0");
        machine.adapter(&format!("mlx5_{number}"), number, Some(&device), &ETHERNET);
        give_address(&machine, &format!("mlx5_{number}"));
    }
    for bus in ["1a", "1b"] {
        machine.gpu(&format!("{switch}/0000:18:10.0/0000:{bus}:00.0"));
    }
    machine
}

/// The checks of the report on which adapter GPUs get.
fn choices(report: &Report) -> Vec<String> {
    let checks = report.sections[3].checks.iter();
    checks.filter(|check| check.name.ends_with("0 adapter")).map(ToString::to_string).collect()
}

/// As the core does, which knows nothing of `CUDA_VISIBLE_DEVICES` and `CUDA_DEVICE_ORDER`: `tests/c/adapter_choice.c`.
#[test]
fn gpus_take_turns_in_the_order_of_the_bus_whichever_a_process_sees() {
    let machine = one_switch("turns");
    let of = |list: Vec<Gpu>| choices(&machine.report(&Found { gpus: Ok(list), ..plain() }));
    let mut reversed = gpus(2, !0, !0);
    reversed.reverse();
    let first = "0000:1a:00.0 adapter: ok, mlx5_0, behind the same switch";
    let second = "0000:1b:00.0 adapter: ok, mlx5_1, behind the same switch";
    assert_eq!(of(gpus(2, !0, !0)), [first, second]);
    assert_eq!(of(reversed.clone()), [second, first]);
    assert_eq!(of(vec![reversed[0].clone()]), [second]);
}

/// Adapters that the core skips when it tries them have their turn all the same, others have none.
#[test]
fn a_gpu_gets_the_first_adapter_in_order_that_can_be_used() {
    let machine = one_switch("skipped");
    let of = |adapters: Process| {
        choices(&machine.report(&Found { gpus: Ok(gpus(2, !0, !0)), adapters, ..plain() }))
    };
    let choices = |first: &str, second: &str| {
        let choice = |bus, name| format!("0000:{bus}:00.0 adapter: ok, {name}, behind the same switch");
        [choice("1a", first), choice("1b", second)]
    };
    let none = Process::that_opens_none;
    let filter = |text: &str| Process { filter: Some(text.to_owned()), ..none() };
    assert_eq!(of(filter("^=mlx5_0")), choices("mlx5_1", "mlx5_2"));
    assert_eq!(of(filter("=mlx5_1,mlx5_2:2")), choices("mlx5_1", "mlx5_1"));
    assert_eq!(of(findings("mlx5_1", &[(3, "DevX", "", "")])), choices("mlx5_0", "mlx5_2"));
    let port = |number: u32, file: &str| format!("/sys/class/infiniband/mlx5_{number}/ports/1/{file}");
    machine.file(&port(0, "state"), "1: DOWN\n");
    assert_eq!(of(none()), choices("mlx5_1", "mlx5_1"));
    machine.file(&port(1, "gids/0"), "fe80:0000:0000:0000:5054:00ff:fe12:3456\n");
    assert_eq!(of(none()), choices("mlx5_2", "mlx5_2"));
    machine.file(&port(2, "link_layer"), "InfiniBand\n");
    machine.file(&port(2, "lid"), "0x0\n");
    let missing = "0000:1a:00.0 adapter: missing, no mlx5 adapter that can be used";
    assert_eq!(of(none())[0], missing);
    assert_eq!(of(filter("mlx5"))[0], format!("{missing}; EPWIRE_HCA=mlx5 must match one"));
}

/// Of three adapters the second does not answer when it is opened.
#[test]
fn an_adapter_that_hangs_costs_the_others_nothing() {
    let machine = one_switch("hangs");
    let (keep, held) = mpsc::channel::<()>();
    let held = Mutex::new(held);
    let answers = findings("mlx5_2", &[(0, "DevX", "opens", "")]).open;
    let open = move |name: &str, make, gpu| {
        if name == "mlx5_1" {
            let _ = held.lock().unwrap().recv();
        }
        answers(name, make, gpu)
    };
    let adapters = Process { open: Arc::new(open), ..Process::that_opens_none() };
    let patience = Duration::from_secs(2);
    let begun = Instant::now();
    let found = Found { gpus: Ok(gpus(2, !0, !0)), adapters, ..plain() };
    let report = report(&Tree::below(&machine.0), &found, patience);
    assert!(begun.elapsed() < 3 * patience, "{:?}", begun.elapsed());
    let said: Vec<String> = report.sections[3].checks.iter().map(ToString::to_string).collect();
    for expected in [
        "mlx5_0 port 1 GID: ok, index 0, RoCE v2, 10.0.2.15 on eth0; 1 in all",
        "mlx5_1 driver: ok, mlx5_core, firmware 28.39.1002",
        "mlx5_1 opening: unknown, no answer within 2s; see dmesg; where ranks do without it, EPWIRE_HCA=^=mlx5_1 leaves it out",
        "mlx5_2 driver: ok, mlx5_core, firmware 28.39.1002",
        "mlx5_2 DevX: ok, opens",
        "0000:1a:00.0 adapter: ok, mlx5_0, behind the same switch",
        "0000:1b:00.0 adapter: unknown, mlx5_1, behind the same switch, is tried first, and does not answer",
    ] {
        assert!(said.iter().any(|line| line == expected), "{expected}\n{said:#?}");
    }
    drop(keep);
}

#[test]
fn a_fake_adapter_that_is_opened() {
    let machine = Machine::new("fake");
    machine.limits("1048576", "256000", "unlimited");
    machine.says("fake", &Found { adapters: fake(0), ..plain() });
}

/// The case `doctor` of `tests/gpu/direct.c` sees that the fake adapter finds this of an emulated GPU; the GPUs are what
/// the doctor printed of two of them. They give no descriptor of memory that is not mapped by a handle.
#[test]
fn a_fake_adapter_and_emulated_gpus() {
    let machine = Machine::new("fake-gpu");
    machine.limits("1048576", "256000", "unlimited");
    let opened = [
        (0, "DevX", "opens", ""),
        (
            0,
            "capabilities",
            "fake_0 port 1, RoCEv2, GID 3 ending in 10.77.0.0, MTU 4096; rings of 32768 entries at most, atomics",
            "",
        ),
        (0, "host memory", "registered for queues and for windows", ""),
        (0, "GPU rings by dma-buf", "not registered (errno 95), nor needed", ""),
        (0, "GPU rings by nvidia_peermem", "registered", ""),
        (0, "GPU windows by dma-buf", "not registered (errno 95), nor needed", ""),
        (0, "GPU windows by nvidia_peermem", "registered", ""),
        (0, "GPU windows", "peers may write to them: the GPU keeps the order of an adapter's writes", ""),
        (0, "doorbells by kernels", "the GPU maps the register", ""),
        (0, "queue pair", "a word sent to itself arrived", ""),
    ];
    let mut two = gpus(2, !0, !0);
    for (ordinal, gpu) in two.iter_mut().enumerate() {
        gpu.name = format!("emulated GPU {ordinal}");
        gpu.bus = format!("0000:{:02X}:00.0", ordinal + 1);
        gpu.memory = 8 << 30;
    }
    machine.says("fake_gpu", &Found { gpus: Ok(two), adapters: findings("fake_0", &opened), ..plain() });
}

#[test]
fn a_fake_adapter_without_what_queues_need() {
    const NO_DEVX: u64 = 1 << 1;
    let report = Machine::new("no-devx").report(&Found { adapters: fake(NO_DEVX), ..plain() });
    let check = report.sections[3].checks.iter().find(|check| check.name == "fake_0 DevX").unwrap();
    assert_eq!(check.verdict, Verdict::Missing, "{report}");
    assert!(check.reason.contains("log_max_uctx"), "{report}");
}

#[test]
fn a_container_with_tight_limits() {
    let machine = Machine::new("container");
    machine.limits("256", "512", "65536");
    machine.file("/proc/self/mounts", "shm /dev/shm tmpfs rw,nosuid,nodev,noexec,size=65536k 0 0\n");
    machine.file("/proc/self/cgroup", "0::/\n");
    machine.file("/proc/self/mountinfo", "31 24 0:27 / /sys/fs/cgroup ro,nosuid - cgroup2 cgroup rw\n");
    machine.file("/sys/fs/cgroup/memory.max", "536870912\n");
    machine.file("/sys/fs/cgroup/memory.current", "503316480\n");
    machine.file("/sys/fs/cgroup/pids.max", "100\n");
    let mut found = plain();
    found.settings.interfaces = Ok(vec![("lo".to_owned(), "127.0.0.1".parse().unwrap())]);
    found.settings.ports = Err("EPWIRE_PORTS=\"x\" is not a range of ports, such as 29800-29899".to_owned());
    found.settings.token =
        Err("token: both EPWIRE_TOKEN and EPWIRE_TOKEN_FILE are set; unset one of them".to_owned());
    found.shared_memory = Err("trial: rank 0: memfd_create: Operation not permitted (errno 1)".to_owned());
    machine.says("container", &found);
}

#[test]
fn the_limit_of_locked_memory_holds_for_whom_the_kernel_counts() {
    let told = |capabilities: &str, users: &str| {
        let machine = Machine::new("locked");
        machine.file("/proc/self/status", &format!("Name:\tdoctor\nCapEff:\t{capabilities}\n"));
        machine.file("/proc/self/uid_map", &format!("{users}\n"));
        let report = machine.report(&plain());
        let check = report.sections[3].checks.iter().find(|check| check.name == "locked memory").unwrap();
        (check.verdict, check.reason.clone())
    };
    let all = "         0          0 4294967295";
    let (verdict, reason) = told("000001ffffffffff", all);
    assert_eq!((verdict, reason.as_str()), (Verdict::Ok, "CAP_IPC_LOCK: no limit applies"));
    assert_eq!(told("0000000000004000", all).0, Verdict::Ok);
    // Without the capability, and in a user namespace of a container.
    assert_eq!(told("000001ffffffbfff", all).0, Verdict::Missing);
    assert_eq!(told("000001ffffffffff", "         0     100000      65536").0, Verdict::Missing);
    assert_eq!(told("000001ffffffffff", "0 1000 1\n1 100000 65536").0, Verdict::Missing);
}

#[test]
fn the_ways_to_gpu_memory_do_not_contradict_each_other() {
    let told = |loaded: bool, dma_buf: Option<[bool; 2]>| {
        let machine = Machine::new("ways");
        if loaded {
            machine.file("/sys/module/nvidia_peermem/version", "580.65.06\n");
        }
        let gpus = dma_buf.map_or(Err("there is no GPU".to_owned()), |given| {
            let mut both = gpus(2, !0, !0);
            both.iter_mut().zip(given).for_each(|(gpu, given)| gpu.dma_buf = given);
            Ok(both)
        });
        let report = machine.report(&Found { gpus, ..plain() });
        ["nvidia_peermem", "dma-buf"].map(|name| {
            let check = report.sections[3].checks.iter().find(|check| check.name == name);
            check.map(|check| format!("{:?}: {}", check.verdict, check.reason))
        })
    };
    let said = |texts: [&str; 2]| texts.map(|text| Some(text.to_owned()));
    let given = "Ok: the driver gives it for all GPUs";
    for (loaded, dma_buf, want) in [
        (false, [true, true], ["Ok: not loaded: adapters reach GPU memory by dma-buf", given]),
        (true, [true, true], ["Ok: loaded", given]),
        (true, [false, true], ["Ok: loaded", "Ok: the driver gives none for GPUs 0, nor is it needed"]),
        (
            false,
            [false, true],
            [
                "Warning: not loaded: adapters reach the memory of GPUs 0 by neither it nor dma-buf",
                "Warning: the driver gives none for GPUs 0",
            ],
        ),
        (
            false,
            [false, false],
            [
                "Warning: not loaded: adapters reach the memory of GPUs 0, 1 by neither it nor dma-buf",
                "Warning: the driver gives none for GPUs 0, 1",
            ],
        ),
    ] {
        assert_eq!(told(loaded, Some(dma_buf)), said(want), "loaded: {loaded}, dma-buf: {dma_buf:?}");
    }
    // Without a GPU nothing is claimed about its memory.
    let unknown = "Unknown: not loaded; no GPU of this process shows whether it is needed".to_owned();
    assert_eq!(told(false, None), [Some(unknown), None]);
}

#[test]
fn the_least_limit_of_threads_is_told() {
    let told = |cgroups: &str, limits: &[(&str, &str)]| {
        let machine = Machine::new("threads");
        machine.limits("1048576", "2000", "8388608");
        machine.file("/proc/self/cgroup", cgroups);
        for (folder, text) in limits {
            machine.file(&format!("/sys/fs/cgroup{folder}/pids.max"), text);
        }
        let report = machine.report(&plain());
        report.sections[0].checks.iter().find(|check| check.name == "threads").unwrap().reason.clone()
    };
    let of = |count, file: &str| {
        format!("{count} at most, of all processes that /sys/fs/cgroup{file}/pids.max counts")
    };
    let own = "2000 at most";
    assert_eq!(told("0::/a/b\n", &[("/a/b", "max\n"), ("/a", "1500\n"), ("", "1600\n")]), of(1500, "/a"));
    assert_eq!(told("0::/a/b\n", &[("/a/b", "2001\n")]), own);
    assert_eq!(told("0::/../b\n", &[("/b", "7\n")]), own);
    assert_eq!(told("3:cpu:/a\n2:cpu,pids:/a\n", &[("/pids/a", "9\n"), ("/a", "8\n")]), of(9, "/pids/a"));
    assert_eq!(told("3:cpu:/a\nnonsense\n", &[("/a", "8\n"), ("/pids/a", "8\n"), ("", "8\n")]), own);
    // A container that sees only a part of the tree, by another name.
    assert_eq!(told("2:pids:/docker/1\n", &[("/pids", "1024\n")]), of(1024, "/pids"));
}

#[test]
fn gpus_joined_by_nvlink() {
    let machine = Machine::new("nvlink");
    machine.driver("EnableStreamMemOPs: 0\nRegistryDwords: \"\"\n");
    machine.says("nvlink", &Found { gpus: Ok(gpus(4, !0, !0)), ..plain() });
}

/// A machine on which the doctor has been run (2026-11-27): the text is what it printed there.
#[test]
fn four_h100s_that_were_seen() {
    let machine = Machine::new("h100s");
    machine.file("/proc/meminfo", "MemAvailable:   526385152 kB\n");
    machine.limits("20000", "2063358", "unlimited");
    machine.file("/proc/self/mounts", "tmpfs /dev/shm tmpfs rw,size=536870912k 0 0\n");
    fs::remove_file(machine.place("/proc/self/ns/net")).unwrap();
    machine.link("/proc/self/ns/net", "net:[4026531833]");
    machine.file("/sys/class/net/eth0/mtu", "1400\n");
    machine.file("/sys/class/net/eth0/speed", "-1\n");
    machine.driver("RegistryDwords: \"\"\n");
    let version = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build\n";
    machine.file("/proc/driver/nvidia/version", version);
    let mut four = gpus(4, !0, !0);
    for (ordinal, gpu) in four.iter_mut().enumerate() {
        gpu.name = "NVIDIA H100 80GB HBM3".to_owned();
        gpu.bus = format!("0000:00:{:02x}.0", 6 + ordinal);
        gpu.memory = 79 << 30;
    }
    let mut found = Found { gpus: Ok(four), ..plain() };
    let interfaces = [("lo", "127.0.0.1"), ("eth0", "192.0.2.2"), ("eth0", "fd00::2")];
    found.settings.interfaces =
        Ok(interfaces.map(|(name, ip)| (name.to_owned(), ip.parse().unwrap())).to_vec());
    found.shared_memory = Ok(Duration::from_nanos(100));
    found.queue = Ok(Duration::from_nanos(800));
    machine.says("h100s", &found);
}

#[test]
fn gpus_that_do_not_reach_each_other() {
    let machine = Machine::new("apart");
    machine.driver("RegistryDwords: \"\"\n");
    let mut three = gpus(3, 0, 0);
    three[0].vmm =
        Err("cuMemCreate: CUDA_ERROR_NOT_PERMITTED: operation not permitted (CUDA error 800)".to_owned());
    three[0].dma_buf = false;
    three[1].capability = (8, 0);
    machine.says("apart", &Found { gpus: Ok(three), ..plain() });
    let verdict = |access, atomics| {
        let report = machine.report(&Found { gpus: Ok(gpus(2, access, atomics)), ..plain() });
        report.sections[1].checks.iter().find(|check| check.name == "peer access").unwrap().verdict
    };
    assert_eq!(verdict(0b11, 0b11), Verdict::Ok);
    assert_eq!(verdict(0b11, 0b01), Verdict::Warning);
    assert_eq!(verdict(0b01, 0), Verdict::Warning);
    assert_eq!(verdict(0, 0), Verdict::Missing);
}

#[test]
fn ways_between_gpus_that_differ_are_told_for_each() {
    let machine = Machine::new("ways");
    machine.driver("");
    let mut three = gpus(3, 0b111, 0b011);
    three[1].access = 0b001;
    let report = machine.report(&Found { gpus: Ok(three), ..plain() });
    let ways = report.sections[1]
        .checks
        .iter()
        .filter(|check| check.name.contains("reach") || check.name == "peer access");
    let ways: Vec<_> =
        ways.map(|check| (check.name.as_str(), check.verdict, check.reason.as_str())).collect();
    let expected = [
        ("peer access", Verdict::Warning, "1 of 6 ways are closed"),
        ("GPU 0 reaches", Verdict::Ok, "1 by NVLink; 2 by another way"),
        ("GPU 1 reaches", Verdict::Warning, "0 by NVLink; not 2"),
        ("GPU 2 reaches", Verdict::Ok, "0, 1 by NVLink"),
    ];
    assert_eq!(ways, expected);
    let alike = machine.report(&Found { gpus: Ok(gpus(3, 0b111, 0b111)), ..plain() });
    assert!(!alike.to_json().contains("GPU 0 reaches"));
}

#[test]
fn a_driver_without_a_build_for_it_is_told_with_its_gpus() {
    let machine = Machine::new("driver");
    machine.driver("RegistryDwords: \"PeerMappingOverride=1\"\n");
    let information = "Model: \t\t NVIDIA H200\nIRQ:   \t\t 300\nBus Location: \t 0000:1a:00.0\n";
    machine.file("/proc/driver/nvidia/gpus/0000:1a:00.0/information", information);
    let text = machine.report(&plain()).to_string();
    assert!(text.contains("cannot be found; the driver has NVIDIA H200 at 0000:1a:00.0\n"), "{text}");
}

#[test]
fn an_empty_folder_is_a_machine_of_which_nothing_is_known() {
    let report = super::of_files("/nonexistent".as_ref());
    assert!(report.sections.iter().all(|section| !section.checks.is_empty()));
    let unknown = report.sections.iter().flat_map(|section| &section.checks);
    let unknown: Vec<&str> =
        unknown.filter(|check| check.verdict == Verdict::Unknown).map(|check| check.name.as_str()).collect();
    let expected = [
        "host memory",
        "open files",
        "threads",
        "network namespace",
        "locked memory",
        "nvidia_peermem",
        "PeerMappingOverride",
    ];
    assert_eq!(unknown, expected);
}

#[test]
fn what_files_say_is_shown_as_one_line() {
    let machine = Machine::new("line");
    machine.driver("");
    machine.file("/proc/driver/nvidia/version", "a driver\x1b[2J\nof\tmine");
    let checks = &machine.report(&plain()).sections[1].checks;
    assert_eq!(checks[0].reason, "a driver [2J of mine");
}

#[test]
fn json_has_what_the_table_has() {
    let machine = Machine::new("json");
    let report = machine.report(&plain());
    let json: serde_json::Value = serde_json::from_str(&report.to_json()).unwrap();
    assert_eq!(json["matrix"], serde_json::Value::Null);
    for (section, json) in report.sections.iter().zip(json["sections"].as_array().unwrap()) {
        assert_eq!(json["path"], section.path);
        assert_eq!(json["verdict"], section.verdict().to_string());
        for (check, json) in section.checks.iter().zip(json["checks"].as_array().unwrap()) {
            assert_eq!(
                [&json["name"], &json["reason"], &json["remedy"]],
                [&check.name, &check.reason, &check.remedy]
            );
            assert_eq!(json["verdict"], check.verdict.to_string());
        }
    }
}

#[test]
fn this_machine_is_examined_in_time() {
    let report = super::examine();
    let first = &report.sections[0].checks[0];
    assert_eq!((first.name.as_str(), first.verdict), ("shared memory", Verdict::Ok), "{report}");
}
