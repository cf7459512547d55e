//! What the user sees: a row per case, as a table or as JSON.

use comfy_table::{CellAlignment, Table, presets};
use serde::{Deserialize, Serialize};

use crate::args::{Args, Combine, Device, Layout, Payload, Shape, With};
use crate::cases::Case;
use crate::cpu::{self, Used};
use crate::moves::Way;
use crate::routing::Spread;
use crate::samples::Figures;
use crate::wire::{OnQueue, Reach};

/// The figures of one case. Times in microseconds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    pub case: Case,
    pub device: Device,
    pub ranks: u32,
    pub tokens: u32,
    pub hidden: u32,
    pub experts: u32,
    pub topk: u32,
    pub payload: Payload,
    pub layout: Layout,
    pub combine: Combine,
    /// Absent if it is uniform.
    #[serde(default, skip_serializing_if = "is_uniform")]
    pub routing: Spread,
    #[serde(flatten)]
    pub asked: Asked,
    pub p50_us: f64,
    pub p99_us: f64,
    pub max_us: f64,
    pub floor_us: f64,
    /// On the host: how the floor's bytes were moved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub floor_by: Option<Way>,
    /// floor_us / p50_us
    pub ratio: f64,
    pub wrong: u64,
    pub window_bytes: u64,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<OnGpu>,
    #[serde(flatten)]
    pub reach: Reach,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub queue: Option<OnQueue>,
    /// On the host: what a rank uses of a core meanwhile.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub used: Option<Used>,
    /// The rank that was the last to return most often, and in how many of 100 iterations.
    #[serde(skip)]
    pub slowest: (usize, f64),
}

/// Numbers of the command line on which a case depends besides its shape. Absent: the default, or without a meaning for
/// the case.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Asked {
    /// Empty places of the group.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub absent: u32,
    /// Of prefill: slots of a ring.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub ring: u32,
    /// On the host: of each rank.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub threads: u32,
}

/// Additional figures of a case on GPUs. Times in microseconds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OnGpu {
    pub timing: Timing,
    /// Thread blocks asked for, 0: chosen by the library.
    pub sms: u32,
    /// Where numbers of SMs are listed.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub of_sms: Option<OfSms>,
    /// Of the buffer.
    pub lanes: u32,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub serial_lanes: bool,
    /// What operations also add to sums of the caller.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub with: Vec<With>,
    /// Of the ranks' medians the least and the middle one; p50_us is the greatest.
    pub fastest_us: f64,
    pub middle_us: f64,
    /// Bytes that the busiest rank sends to others, over p50, in 1e9 bytes a second.
    pub nvlink_gbs: f64,
    /// With graphs: the slowest rank's median time of the operation's own kernel, between two stamps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel_us: Option<f64>,
    /// The slowest rank's median time of each half.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub send_us: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub receive_us: Option<f64>,
    /// What the floor is made of, measured in the same run: 1e9 bytes a second that each GPU stores to all others at once
    /// (none alone), a signal one way, and from kernel to kernel.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub store_gbs: Option<f64>,
    pub signal_us: f64,
    pub gap_us: f64,
}

/// The parts of the floor where numbers of SMs are listed, of which the greater counts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OfSms {
    /// The bytes between GPUs, with all SMs.
    pub wire_us: f64,
    /// All bytes, with so many SMs.
    pub sms_us: f64,
    #[serde(flatten)]
    pub rates: Rates,
}

/// In 1e9 bytes a second, by one block of 1024 threads on each of so many SMs, all ranks at once, the slowest one's: reading,
/// writing and copying memory of its own, and storing to all peers (none alone).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Rates {
    pub read_gbs: f64,
    pub write_gbs: f64,
    pub copy_gbs: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peers_gbs: Option<f64>,
}

/// How operations on GPUs were timed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Timing {
    Eager,
    Graph,
}

fn is_uniform(routing: &Spread) -> bool {
    *routing == Spread::Uniform
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
pub fn is_zero(number: &u32) -> bool {
    *number == 0
}

impl Asked {
    fn of(args: &Args, layout: Layout) -> Self {
        Self {
            absent: args.absent,
            ring: if layout.is_prefill() { args.ring } else { 0 },
            threads: if args.device == Device::Host { args.threads } else { 0 },
        }
    }
}

impl Row {
    pub fn new(
        args: &Args,
        ranks: u32,
        shape: &Shape,
        case: Case,
        figures: &Figures,
        floor_us: f64,
        window_bytes: u64,
    ) -> Self {
        let Shape { tokens, hidden, experts, absent_experts: _, topk, payload, layout, combine } = *shape;
        let Figures { p50_us, p99_us, max_us, slowest, wrong } = *figures;
        Self {
            case,
            device: args.device,
            ranks,
            tokens,
            hidden,
            experts,
            topk,
            payload,
            layout,
            combine,
            routing: args.routing,
            asked: Asked::of(args, layout),
            p50_us,
            p99_us,
            max_us,
            floor_us,
            floor_by: None,
            ratio: floor_us / p50_us,
            wrong,
            window_bytes,
            gpu: None,
            reach: Reach::default(),
            queue: None,
            used: None,
            slowest,
        }
    }

    /// What was measured, apart from the number of tokens.
    pub fn name(&self) -> String {
        let Self {
            case,
            ranks,
            hidden,
            experts,
            topk,
            payload,
            layout,
            combine,
            routing,
            asked: Asked { absent, ring, threads },
            gpu,
            reach,
            queue,
            ..
        } = self;
        let mut rest = String::new();
        if !is_uniform(routing) {
            rest += &format!(", {}", word(routing));
        }
        for (number, what) in [(absent, "absent"), (ring, "slots of a ring"), (threads, "threads")] {
            if *number > 0 {
                rest += &format!(", {number} {what}");
            }
        }
        if let Some(OnGpu { timing, sms, lanes, serial_lanes, with, .. }) = gpu {
            let serial = if *serial_lanes { " serial" } else { "" };
            let lanes = if *lanes > 1 { format!(", {lanes}{serial} lanes") } else { String::new() };
            let sms = if *sms > 0 { format!(", {sms} SMs") } else { String::new() };
            let with: String = with.iter().map(|with| format!(", {}", word(with))).collect();
            rest += &format!("{lanes}{sms}{with}, {}", word(timing));
        }
        rest += &reach.name(queue.is_some());
        let [case, payload, layout, combine] = [word(case), word(payload), word(layout), word(combine)];
        format!(
            "{case} {payload} {layout} {combine}, {ranks} ranks, hidden {hidden}, top-{topk} of {experts}{rest}"
        )
    }
}

/// A value of the command line, as it is written there.
pub fn word(value: &impl clap::ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

/// Microseconds to three digits or so.
pub fn us(time: f64) -> String {
    if time < 99.95 { format!("{time:.1}") } else { format!("{time:.0}") }
}

/// A floor, and what it is of the median; neither if it is too small to say.
pub fn floor(floor_us: f64, p50_us: f64) -> [String; 2] {
    if floor_us < 0.05 {
        ["-", "-"].map(str::to_owned)
    } else {
        [us(floor_us), format!("{:.2}", floor_us / p50_us)]
    }
}

/// One row per case.
pub fn table(rows: &[Row]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::UTF8_HORIZONTAL_ONLY);
    let on_gpus = rows.iter().any(|row| row.gpu.is_some());
    let split = rows.iter().any(|row| row.gpu.as_ref().is_some_and(|gpu| gpu.send_us.is_some()));
    let mut header = vec![
        "case",
        "payload",
        "layout",
        "combine",
        "tokens",
        "hidden",
        "experts",
        "topk",
        "p50 us",
        "p99 us",
        "max us",
        "floor us",
        "ratio",
        "slowest",
        "#wrong",
        "window MiB",
    ];
    let floor_by = rows.iter().any(|row| row.floor_by.is_some());
    if floor_by {
        header.push("floor by");
    }
    let used = rows.iter().any(|row| row.used.is_some());
    if used {
        header.push("cores");
    }
    let queues = rows.iter().any(|row| row.queue.is_some());
    if queues {
        header.extend(["stream us", "of it"]);
    }
    if on_gpus {
        header.extend(["fastest us", "middle us", "kernel us", "GB/s"]);
    }
    if split {
        header.extend(["send us", "receive us"]);
    }
    let sms = rows.iter().any(|row| row.gpu.as_ref().is_some_and(|gpu| gpu.sms > 0));
    if sms {
        header.extend(["SMs", "wire us", "SMs us", "read", "write", "copy", "to peers"]);
    }
    table.set_header(header);
    for row in rows {
        let [floor_us, ratio] = floor(row.floor_us, row.p50_us);
        let mut cells = vec![
            word(&row.case),
            word(&row.payload),
            word(&row.layout),
            word(&row.combine),
            row.tokens.to_string(),
            row.hidden.to_string(),
            row.experts.to_string(),
            row.topk.to_string(),
            us(row.p50_us),
            us(row.p99_us),
            us(row.max_us),
            floor_us,
            ratio,
            format!("rank {} ({:.0} %)", row.slowest.0, row.slowest.1),
            row.wrong.to_string(),
            format!("{:.1}", row.window_bytes as f64 / f64::from(1 << 20)),
        ];
        if floor_by {
            cells.push(row.floor_by.as_ref().map_or_else(String::new, word));
        }
        if used {
            cells.push(row.used.as_ref().map_or_else(String::new, cpu::words));
        }
        if let Some(OnQueue { stream_us, .. }) = &row.queue {
            cells.extend([us(*stream_us), format!("{:.2}", row.p50_us / stream_us)]);
        }
        if let Some(OnGpu { fastest_us, middle_us, kernel_us, nvlink_gbs, send_us, receive_us, .. }) =
            &row.gpu
        {
            let there = |time: &Option<f64>| time.map_or_else(String::new, us);
            cells.extend([us(*fastest_us), us(*middle_us), there(kernel_us), format!("{nvlink_gbs:.0}")]);
            if split {
                cells.extend([there(send_us), there(receive_us)]);
            }
        }
        if let Some(OnGpu { sms: chosen, of_sms, .. }) = row.gpu.as_ref().filter(|_| sms) {
            cells.push(if *chosen > 0 { chosen.to_string() } else { "all".to_owned() });
            if let Some(OfSms { wire_us, sms_us, rates }) = of_sms {
                let Rates { read_gbs, write_gbs, copy_gbs, peers_gbs } = *rates;
                cells.extend([us(*wire_us), us(*sms_us)]);
                cells.extend([read_gbs, write_gbs, copy_gbs].map(|rate| format!("{rate:.0}")));
                cells.extend(peers_gbs.map(|rate| format!("{rate:.0}")));
            }
        }
        table.add_row(cells);
    }
    table.column_iter_mut().skip(4).for_each(|column| column.set_cell_alignment(CellAlignment::Right));
    table
}

#[cfg(test)]
pub mod tests {
    use clap::Parser;

    use super::*;
    use crate::nic::Nic;

    pub fn row(case: Case, tokens: u32, p50_us: f64, wrong: u64) -> Row {
        let shape = Shape {
            tokens,
            hidden: 7168,
            experts: 64,
            absent_experts: 0,
            topk: 8,
            payload: Payload::Bf16,
            layout: Layout::RankMajor,
            combine: Combine::Reduced,
        };
        let figures =
            Figures { p50_us, p99_us: 2.0 * p50_us, max_us: 3.0 * p50_us, slowest: (1, 60.0), wrong };
        Row::new(&Args::parse_from(["bench"]), 4, &shape, case, &figures, 100.0, 1 << 20)
    }

    #[test]
    fn a_row_has_the_numbers_that_matter_for_its_case() {
        let args = |line: &str| Args::parse_from(["bench"].into_iter().chain(line.split_whitespace()));
        let all = args("--absent 1 --ring 64 --threads 2");
        let asked = Asked::of(&all, Layout::Packed);
        assert_eq!(asked, Asked { absent: 1, ring: 64, threads: 2 });
        assert_eq!(Asked::of(&all, Layout::RankMajor), Asked { ring: 0, ..asked });
        let gpus = args("--device cuda --absent 1 --ring 64 --threads 2");
        assert_eq!(Asked::of(&gpus, Layout::Dense), Asked { threads: 0, ..asked });
        let row = Row { asked, ..row(Case::Pair, 1, 1.0, 0) };
        assert!(row.name().ends_with(", 1 absent, 64 slots of a ring, 2 threads"), "{}", row.name());
        let back: Row = serde_json::from_value(serde_json::json!(row)).unwrap();
        assert_eq!(back.asked, asked);
    }

    #[test]
    fn an_object_has_exactly_the_promised_fields_and_reads_back() {
        let row = row(Case::Dispatch, 512, 125.0, 0);
        let value = serde_json::json!(row);
        let mut names: Vec<_> = value.as_object().unwrap().keys().map(String::as_str).collect();
        names.sort_unstable();
        let mut promised: Vec<_> =
            "case device ranks tokens hidden experts topk payload layout combine p50_us p99_us \
                                    max_us floor_us ratio wrong window_bytes"
                .split_whitespace()
                .collect();
        promised.sort_unstable();
        assert_eq!(names, promised);
        assert_eq!((value["layout"].as_str(), value["ratio"].as_f64()), (Some("rank-major"), Some(0.8)));
        assert_eq!(serde_json::from_value::<Row>(value).unwrap(), Row { slowest: (0, 0.0), ..row });
    }

    #[test]
    fn a_row_of_gpus_has_more_fields_and_reads_back() {
        let gpu = OnGpu {
            timing: Timing::Graph,
            sms: 8,
            of_sms: Some(OfSms {
                wire_us: 1.0,
                sms_us: 2.0,
                rates: Rates { read_gbs: 830.0, write_gbs: 450.0, copy_gbs: 360.0, peers_gbs: None },
            }),
            lanes: 2,
            serial_lanes: true,
            with: vec![With::WaitNs],
            fastest_us: 1.0,
            middle_us: 2.0,
            nvlink_gbs: 300.0,
            kernel_us: Some(1.5),
            send_us: Some(4.0),
            receive_us: None,
            store_gbs: None,
            signal_us: 1.25,
            gap_us: 0.5,
        };
        let row = row(Case::Dispatch, 1, 3.0, 0);
        let row = Row { gpu: Some(gpu), device: Device::Cuda, routing: Spread::Zipf, ..row };
        let value = serde_json::json!(row);
        assert_eq!((value["timing"].as_str(), value["send_us"].as_f64()), (Some("graph"), Some(4.0)));
        assert!(value.get("receive_us").is_none());
        assert_eq!((value["sms_us"].as_f64(), value["copy_gbs"].as_f64()), (Some(2.0), Some(360.0)));
        let back: Row = serde_json::from_value(value).unwrap();
        assert_eq!((back.gpu.as_ref(), back.routing), (row.gpu.as_ref(), Spread::Zipf));
        assert!(back.name().ends_with(", zipf, 2 serial lanes, 8 SMs, wait-ns, graph"), "{}", back.name());
        let reach = Reach { path: Some("queue over TCP".into()), nic: Some(Nic::Strict), wire: None };
        let queued: Row = serde_json::from_value(serde_json::json!(Row { reach, ..back })).unwrap();
        assert!(queued.name().ends_with(", graph, queue strict"), "{}", queued.name());
        let table = table(&[row]).to_string();
        assert!(table.contains("send us") && table.contains("SMs us") && table.contains("830"), "{table}");
    }

    #[test]
    fn a_floor_of_nearly_nothing_has_no_ratio() {
        assert_eq!(floor(0.049, 1.0), ["-", "-"]);
        assert_eq!(floor(0.5, 2.0), ["0.5", "0.25"]);
    }

    #[test]
    fn the_table_has_a_row_per_case() {
        let table = table(&[row(Case::Pair, 1, 1.0, 0), row(Case::Combine, 1, 1.0, 3)]);
        assert_eq!(table.row_iter().count(), 2);
        assert!(table.to_string().contains("rank 1 (60 %)"));
    }
}
