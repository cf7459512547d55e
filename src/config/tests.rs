//! Limits, printed plans, and the names of the choices.

use std::time::Duration;

use super::*;
use crate::sys;

#[test]
fn the_default_plan_of_eight_ranks_takes_less_than_64_mib() {
    let plan = Plan::new(&EpConfig::new(128, 7168, 256, 8), 8).unwrap();
    assert!(plan.window_bytes <= 64 << 20, "{} bytes", plan.window_bytes);
    let lines = plan.control_bytes
        + plan.dispatch_bytes
        + plan.combine_bytes
        + plan.ordered_bytes
        + plan.zero_copy_bytes;
    assert!(plan.window_bytes - lines < 4096);
}

#[test]
fn every_limit_is_an_error_that_names_its_field() {
    let good = EpConfig::new(128, 1024, 64, 8);
    let cases: [(&str, u32, EpConfig); 13] = [
        ("ranks", 0, good.clone()),
        ("ranks", 1025, good.clone()),
        ("max_tokens", 4, EpConfig { max_tokens: 0, ..good.clone() }),
        ("max_tokens", 4, EpConfig { max_tokens: 65_537, ..good.clone() }),
        ("max_tokens", 4, EpConfig { max_tokens: 65_536, ordered: true, ..good.clone() }),
        ("hidden", 4, EpConfig { hidden: 12, ..good.clone() }),
        ("experts", 4, EpConfig { experts: 63, ..good.clone() }),
        ("topk", 4, EpConfig { topk: 33, ..good.clone() }),
        ("topk", 4, EpConfig { topk: 0, ..good.clone() }),
        ("lanes", 4, EpConfig { lanes: 3, ..good.clone() }),
        ("opaque_bytes", 4, EpConfig { opaque_bytes: (1 << 30) + 1, ..good.clone() }),
        ("sideband_bytes", 4, EpConfig { sideband_bytes: 65, ..good.clone() }),
        ("deadline", 4, EpConfig { deadline: Duration::from_micros(1), ..good.clone() }),
    ];
    for (field, ranks, config) in cases {
        let error = Plan::new(&config, ranks).unwrap_err();
        let failure = error.failure().unwrap();
        assert!(failure.text.starts_with(field), "{field}: {error}");
        assert_eq!(failure.rank, None, "a plan is that of every rank: {error}");
    }
    assert!(Plan::new(&good, 4).is_ok());
    let widest = EpConfig { opaque_bytes: 1 << 30, ..good.clone() };
    assert!(Plan::new(&widest, 4).unwrap().slot_bytes > 1 << 30);
    let huge = EpConfig { max_tokens: 65_536, hidden: 1 << 24, ..EpConfig::new(1, 8, 1024, 32) };
    assert!(matches!(Plan::new(&huge, 1024), Err(crate::Error::Limit(_))));
}

#[test]
fn a_plan_prints_what_room_to_grow_costs() {
    let plan = Plan::new(&EpConfig::new(128, 7168, 256, 8), 8).unwrap();
    let text = plan.to_string();
    let first = "window 56.3 MiB: 8 places, 7.0 MiB each, taken by a rank or not\n";
    assert!(text.starts_with(first) && text.contains("28.2 MiB  dispatch slots"), "{text}");
    assert!(!text.contains("ordered"), "{text}");
    assert!(!text.contains("queues"), "{text}");
    let queues = Paths { queue: true, ..Paths::default() };
    let text =
        Plan::new(&EpConfig { paths: queues, ..EpConfig::new(128, 7168, 256, 8) }, 8).unwrap().to_string();
    assert!(text.contains("for peers behind queues, if all others are such peers\n"), "{text}");
    let larger = Plan::new(&EpConfig::new(128, 7168, 512, 8), 16).unwrap();
    let grown = larger.window_bytes - plan.window_bytes;
    assert!(grown.abs_diff(8 * plan.place_bytes()) < 1 << 16, "{grown}");
}

#[test]
fn a_plan_counts_queues_as_deep_as_is_asked() {
    let config = EpConfig { paths: Paths { queue: true, ..Paths::NONE }, ..EpConfig::new(4, 64, 4, 2) };
    let plan = |depth| Plan::with(&config, 2, QueueMemory { depth, ..QueueMemory::default() });
    let ring_bytes = |depth| plan(depth).unwrap().ring_bytes;
    let needed = ring_bytes(0);
    assert_eq!(ring_bytes(16), needed, "operations need more than that");
    let added = ring_bytes(32768) - needed;
    assert_eq!(added % (64 * u64::from(config.lanes)), 0, "{added}");
    assert!(needed + added >= 64 * 32768 * u64::from(config.lanes), "{needed} {added}");
    let refused = plan(24).unwrap_err().to_string();
    assert_eq!(refused, "plan: queue_depth is 24, must be 0 or a power of two from 16 to 32768");
}

#[test]
fn a_plan_has_an_inbox_on_a_gpu_whose_window_no_adapter_writes() {
    let config = EpConfig { paths: Paths { queue: true, ..Paths::NONE }, ..EpConfig::new(4, 64, 4, 2) };
    let plan = |device, no_inbox| {
        let config = EpConfig { device, ..config.clone() };
        Plan::with(&config, 2, QueueMemory { no_inbox, ..QueueMemory::default() }).unwrap()
    };
    assert_eq!(plan(Device::Host, false).inbox_bytes, 0);
    let (inbox, none) = (plan(Device::Cuda(0), false), plan(Device::Cuda(0), true));
    assert!(inbox.inbox_bytes > 0 && inbox.to_string().ends_with("MiB  what they write"), "{inbox}");
    assert!(none.to_string().ends_with("MiB  their queues"), "{none}");
    assert_eq!(none, Plan { inbox_bytes: 0, ..inbox });
}

#[test]
fn ranks_agree_on_the_kind_of_device_only() {
    let on = |device| EpConfig { device, sms: 7, serial_lanes: true, ..EpConfig::new(4, 64, 4, 2) }.fields();
    assert_eq!(on(Device::Cuda(0)), on(Device::Cuda(3)));
    assert_ne!(on(Device::Cuda(0)), on(Device::Host));
    assert_eq!(on(Device::Cuda(0)), EpConfig::new(4, 64, 4, 2).device(Device::Cuda(1)).fields());
    let serial = |on| EpConfig::new(4, 64, 4, 2).serial_lanes(on).to_c(0, 1).serial_lanes;
    assert_eq!([serial(false), serial(true)], [0, 1]);
}

#[test]
fn paths_are_named_with_commas_between_them() {
    assert_eq!("queue".parse(), Ok(Paths { queue: true, ..Paths::NONE }));
    assert_eq!("thread, shm,vmm,ipc".parse(), Ok(Paths::default()));
    assert_eq!(Paths::default().to_string(), "thread,shm,vmm,ipc");
    assert_eq!(Paths::NONE.to_string().parse(), Ok(Paths::NONE));
    for wrong in ["", "queue,", "shared", "Queue"] {
        let error = wrong.parse::<Paths>().unwrap_err().to_string();
        assert!(
            error.ends_with("give some of thread, shm, vmm, ipc, queue, with commas between them"),
            "{error}"
        );
    }
}

#[test]
fn what_is_printed_is_read_again() {
    for device in [Device::Host, Device::Cuda(3)] {
        assert_eq!(device.to_string().parse(), Ok(device));
    }
    for layout in [Layout::ExpertMajor, Layout::RankMajor] {
        assert_eq!(layout.to_string().parse(), Ok(layout));
    }
    for mode in [CombineMode::RankReduced, CombineMode::Ordered] {
        assert_eq!(mode.to_string().parse(), Ok(mode));
    }
    assert_eq!("cuda".parse(), Ok(Device::Cuda(0)));
    let error = "cuda:x".parse::<Device>().unwrap_err();
    assert_eq!(error.to_string(), "\"cuda:x\" is not a device: host, cuda, or cuda: and an ordinal");
}

#[test]
fn a_payload_is_read_as_it_is_printed() {
    let opaque = |scale_count, scale_bytes| Payload::Opaque { row_bytes: 3584, scale_count, scale_bytes };
    for (payload, text) in [
        (Payload::SameAsInput, "the input's type"),
        (Payload::Fp8 { scale: Fp8Scale::PowerOfTwo }, "fp8 with power-of-two scales"),
        (opaque(0, 1), "3584 opaque bytes"),
        (opaque(448, 1), "3584 opaque bytes with 448 scales of 1 byte"),
        (opaque(56, 4), "3584 opaque bytes with 56 scales of 4 bytes"),
    ] {
        assert_eq!(payload.to_string(), text);
        assert_eq!(text.parse(), Ok(payload));
    }
    for wrong in
        ["", "fp8", "fp8 with f64 scales", "16 opaque bytes with 2 scales", "16 opaque bytes and more"]
    {
        let error = wrong.parse::<Payload>().unwrap_err().to_string();
        assert!(error.starts_with(&format!("{wrong:?} is not a payload: the input's type, fp8")), "{error}");
    }
}

#[test]
fn paths_and_wires_are_read_by_both_of_their_names() {
    let wires = [Wire::Local, Wire::Tcp, Wire::Adapter, Wire::Verbs];
    let mapped = [Path::None, Path::SelfRank, Path::Thread, Path::SharedMemory, Path::Vmm, Path::Ipc];
    for path in mapped.into_iter().chain(wires.map(Path::Queue)) {
        assert_eq!(path.to_string().parse(), Ok(path));
    }
    for wire in wires {
        assert_eq!(wire.to_string().parse(), Ok(wire));
    }
    let short = ["thread", "shm", "vmm", "ipc"].map(|name| name.parse::<Path>().unwrap());
    assert_eq!(short[..], mapped[2..]);
    assert_eq!(
        ["local", "tcp", "verbs"].map(|name| name.parse::<Wire>().unwrap()),
        [Wire::Local, Wire::Tcp, Wire::Verbs]
    );
    let error = "queue".parse::<Path>().unwrap_err().to_string();
    assert!(error.ends_with("CUDA IPC (or ipc), or queue over and a wire"), "{error}");
    let error = "queue over UDP".parse::<Path>().unwrap_err().to_string();
    assert!(error.starts_with("\"UDP\" is not a wire: local socket (or local), TCP"), "{error}");
}

#[test]
fn a_configuration_is_printed_in_a_line() {
    let config = EpConfig::new(128, 7168, 256, 8);
    assert_eq!(
        config.to_string(),
        "128 tokens of hidden 7168, top-8 of 256 experts, bf16, 2 lanes, on host, paths thread,shm,vmm,ipc, deadline 10s"
    );
    let special =
        config.combine_dtype(Float16::F16).ordered(true).device(Device::Cuda(0)).sms(32).serial_lanes(true);
    assert_eq!(
        special.to_string(),
        "128 tokens of hidden 7168, top-8 of 256 experts, bf16, combined in f16, 2 lanes, ordered, serial lanes, 32 SMs, \
         on cuda:0, paths thread,shm,vmm,ipc, deadline 10s"
    );
    let shape =
        RowShape::new(&EpConfig::new(8, 256, 8, 2), 2, Payload::Fp8 { scale: Fp8Scale::F32 }).unwrap();
    assert_eq!(
        shape.to_string(),
        "256 bytes and 2 scales of 4 bytes; 16896 bytes expert-major, 4224 rank-major"
    );
}

#[test]
fn every_path_has_a_switch() {
    let none = Paths::NONE;
    let paths = |paths| EpConfig { paths, ..EpConfig::new(4, 64, 4, 2) }.to_c(0, 2).paths;
    assert_eq!(paths(none), sys::EPW_PATH_SELF);
    for (one, bit) in [
        (Paths { thread: true, ..none }, sys::EPW_PATH_THREAD),
        (Paths { shared_memory: true, ..none }, sys::EPW_PATH_SHM),
        (Paths { vmm: true, ..none }, sys::EPW_PATH_VMM),
        (Paths { ipc: true, ..none }, sys::EPW_PATH_IPC),
        (Paths { queue: true, ..none }, sys::EPW_PATH_QUEUE),
    ] {
        assert_eq!(paths(one), sys::EPW_PATH_SELF | bit);
    }
}

#[test]
fn fp8_needs_whole_blocks() {
    let config = EpConfig::new(8, 192, 8, 2);
    let error = RowShape::new(&config, 2, Payload::Fp8 { scale: Fp8Scale::F32 }).unwrap_err();
    assert!(error.to_string().contains("multiple of 128"), "{error}");
    let shape =
        RowShape::new(&EpConfig { hidden: 640, ..config }, 2, Payload::Fp8 { scale: Fp8Scale::Ue8m0 })
            .unwrap();
    assert_eq!((shape.payload_bytes, shape.scale_count, shape.scale_bytes), (640, 5, 1));
    assert_eq!(shape.expert_scales_bytes, 4 * 16 * 8, "five exponents take two words");
}

/// The core stops at the largest size where its product does not fit.
#[test]
fn sizes_that_cannot_be_are_printed_all_the_same() {
    let config = EpConfig::new(65_536, 8, 1 << 20, 1).lanes(1).opaque_bytes(1 << 29);
    let payload = Payload::Opaque { row_bytes: 1 << 28, scale_count: 1 << 20, scale_bytes: 8 };
    let shape = RowShape::new(&config, 1, payload).unwrap();
    assert_eq!((shape.expert_rows_bytes, shape.expert_scales_bytes), (usize::MAX, 1 << 59));
    let (text, most) = (shape.to_string(), usize::MAX);
    assert!(text.ends_with(&format!("; {most} bytes expert-major, 18141941858304 rank-major")), "{text}");
    let plan = Plan::new(&config, 1).unwrap();
    let of_nobody = Plan { ranks: 0, ..plan }; // one that was read may be
    assert_eq!((plan.place_bytes(), of_nobody.place_bytes()), (plan.window_bytes, 0));
}
