//! `--table`: the cases of the guide's table of GPUs, and that table in Markdown.

use epwire::{Device, EpConfig, Plan};

use crate::Error;
use crate::args::{Args, Combine, Layout, Payload, Shape};
use crate::cases::Case;
use crate::report::{OnGpu, Row, us, word};

use Case::{Combine as Answer, Dispatch, Pair};
use Combine::{Ordered, Reduced};
use Layout::{ExpertMajor, RankMajor};
use Payload::{Bf16, Fp8};

/// In the order in which they are measured and shown.
const CASES: [(Case, Payload, Layout, Combine); 10] = [
    (Dispatch, Fp8, RankMajor, Reduced),
    (Dispatch, Fp8, ExpertMajor, Reduced),
    (Dispatch, Bf16, ExpertMajor, Reduced),
    (Answer, Bf16, RankMajor, Reduced),
    (Answer, Bf16, ExpertMajor, Reduced),
    (Answer, Bf16, ExpertMajor, Ordered),
    (Pair, Fp8, RankMajor, Reduced),
    (Pair, Fp8, ExpertMajor, Reduced),
    (Pair, Bf16, RankMajor, Reduced),
    (Pair, Bf16, ExpertMajor, Reduced),
];

/// All cases, then the pairs with one token per rank.
pub fn shapes(args: &Args) -> Result<Vec<(Shape, Vec<Case>)>, Error> {
    let [tokens, hidden, experts, topk] = [
        only("--tokens", &args.tokens)?,
        only("--hidden", &args.hidden)?,
        only("--experts", &args.experts)?,
        only("--topk", &args.topk)?,
    ];
    if args.sms.len() > 1 {
        return Err("--table takes one value of --sms".into());
    }
    let shape = |tokens, (case, payload, layout, combine)| {
        (Shape { tokens, hidden, experts, absent_experts: 0, topk, payload, layout, combine }, vec![case])
    };
    let pairs = CASES.into_iter().filter(|case| case.0 == Pair);
    Ok(CASES.into_iter().map(|case| shape(tokens, case)).chain(pairs.map(|case| shape(1, case))).collect())
}

fn only(option: &str, values: &[u32]) -> Result<u32, Error> {
    match values {
        [value] => Ok(*value),
        _ => Err(format!("--table takes one value of {option}, not {}", values.len()).into()),
    }
}

/// The table, what is the same in all of its rows, and the window of a GPU for each number of lanes.
pub fn markdown(args: &Args, rows: &[Row], machine: &str) -> Result<String, Error> {
    let Some(first) = rows.first() else { return Err("--table has measured nothing".into()) };
    let mut text = "| case | p50 us | p99 us | floor us | ratio | #wrong | send + receive us |\n\
                    |---|---|---|---|---|---|---|\n"
        .to_owned();
    for row in rows {
        let [p50, p99, floor] = [row.p50_us, row.p99_us, row.floor_us].map(us);
        let (name, halves) = (name(row, first.tokens), halves(row.gpu.as_ref()));
        text +=
            &format!("| {name} | {p50} | {p99} | {floor} | {:.2} | {} | {halves} |\n", row.ratio, row.wrong);
    }
    let Row { ranks, tokens, hidden, experts, topk, .. } = first;
    let (routing, lanes, iterations) = (word(&args.routing), args.lanes, args.iterations);
    text += &format!(
        "\n{tokens} tokens per rank, hidden {hidden}, top-{topk} of {experts} experts, {routing} routing; \
         {iterations} replays, one lane of {lanes}\n"
    );
    let [one, two, ordered, two_ordered] =
        [(1, false), (2, false), (1, true), (2, true)].map(|(lanes, ordered)| {
            let config = EpConfig::new(*tokens, *hidden, *experts, *topk)
                .lanes(lanes)
                .ordered(ordered)
                .device(Device::Cuda(0));
            Plan::new(&config, *ranks).map(|plan| mebibytes(plan.window_bytes))
        });
    text += &format!(
        "window of a GPU: {} MiB with one lane, {} with two; with room for ordered sums {} and {}\n{machine}",
        one?, two?, ordered?, two_ordered?
    );
    Ok(text)
}

fn name(row: &Row, tokens: u32) -> String {
    let [case, layout] = [word(&row.case), word(&row.layout)];
    let payload = word(&row.payload).to_uppercase();
    let ordered = if row.combine == Ordered { ", ordered" } else { "" };
    let tokens = if row.tokens == tokens { String::new() } else { format!(", {} token", row.tokens) };
    format!("{case} {payload}, {layout}{ordered}{tokens}")
}

fn halves(gpu: Option<&OnGpu>) -> String {
    match gpu {
        Some(OnGpu { send_us: Some(send), receive_us: Some(receive), .. }) => {
            format!("{} + {}", us(*send), us(*receive))
        }
        _ => String::new(),
    }
}

fn mebibytes(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / f64::from(1 << 20))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::report::Timing;
    use crate::samples::Figures;

    fn parse(line: &str) -> Result<Args, clap::Error> {
        Args::try_parse_from(
            ["bench", "--device", "cuda", "--table"].into_iter().chain(line.split_whitespace()),
        )
    }

    #[test]
    fn it_is_of_graphs_and_halves_and_256_experts() {
        let args = parse("").unwrap();
        assert!(args.graph && args.split);
        let shapes = args.shapes(8).unwrap();
        assert_eq!(shapes.len(), 14);
        for (i, (shape, cases)) in shapes.iter().enumerate() {
            let tokens = if i < CASES.len() { 128 } else { 1 };
            let expected = (tokens, 7168, 256, 8);
            assert_eq!((shape.tokens, shape.hidden, shape.experts, shape.topk), expected);
            assert!(i < CASES.len() || cases[..] == [Pair]);
        }
        let other = parse("--experts 64 --tokens 32").unwrap().shapes(8).unwrap()[0].0;
        assert_eq!((other.experts, other.tokens), (64, 32));
    }

    #[test]
    fn options_that_choose_something_else_are_refused_by_name() {
        for line in [
            "--cases pair",
            "--payload f16",
            "--layout rank-major",
            "--combine ordered",
            "--json",
            "--plot x.svg",
        ] {
            let text = parse(line).unwrap_err().to_string();
            let option = line.split(' ').next().unwrap();
            assert!(text.contains("--table") && text.contains(option), "{line}: {text}");
        }
        let text = parse("--tokens 1,128").unwrap().shapes(8).unwrap_err().to_string();
        assert!(text.contains("--table") && text.contains("--tokens"), "{text}");
        let host = Args::try_parse_from(["bench", "--table"]).unwrap();
        assert!(host.shapes(8).unwrap_err().to_string().contains("--table"));
    }

    #[test]
    fn the_text_has_a_row_per_case_and_the_windows() {
        let args = parse("").unwrap();
        let figures = Figures { p50_us: 20.0, p99_us: 25.0, max_us: 30.0, slowest: (0, 50.0), wrong: 0 };
        let rows: Vec<Row> = args
            .shapes(8)
            .unwrap()
            .iter()
            .map(|(shape, cases)| {
                let halves = (cases[0] != Pair).then_some(4.0);
                let gpu = OnGpu {
                    timing: Timing::Graph,
                    sms: 0,
                    of_sms: None,
                    lanes: 1,
                    serial_lanes: false,
                    with: Vec::new(),
                    fastest_us: 19.0,
                    middle_us: 19.5,
                    nvlink_gbs: 300.0,
                    kernel_us: None,
                    send_us: halves,
                    receive_us: halves,
                    store_gbs: Some(350.0),
                    signal_us: 1.25,
                    gap_us: 0.5,
                };
                let row = Row::new(&args, 8, shape, cases[0], &figures, 10.0, 1 << 20);
                Row { gpu: Some(gpu), ..row }
            })
            .collect();
        let text = markdown(&args, &rows, "8 GPUs").unwrap();
        for line in [
            "| dispatch FP8, rank-major | 20.0 | 25.0 | 10.0 | 0.50 | 0 | 4.0 + 4.0 |\n",
            "| combine BF16, expert-major, ordered | 20.0 | 25.0 | 10.0 | 0.50 | 0 | 4.0 + 4.0 |\n",
            "| pair BF16, expert-major | 20.0 | 25.0 | 10.0 | 0.50 | 0 |  |\n",
            "| pair FP8, rank-major, 1 token | 20.0 ",
            "\n128 tokens per rank, hidden 7168, top-8 of 256 experts, uniform routing; 50 replays",
            "\nwindow of a GPU: 28.1 MiB with one lane, 56.3 with two; with room for ordered sums 126.1 and 252.3\n8 GPUs",
        ] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
        assert_eq!(text.lines().filter(|line| line.starts_with("| ")).count(), 1 + rows.len());
    }
}
