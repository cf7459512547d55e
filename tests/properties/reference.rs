//! The expected value of every output, from the inputs of all ranks and the words of the contract (`epwire.h`, and the
//! numbers of the design's section 4). Deliberately slow and plain; knows nothing of slots, lanes, signals or threads.

use epwire::{CombineMode, Float16, Fp8Scale, Layout, Payload};

use crate::case::{Case, Op, Part};
use crate::numbers::{dequantize, narrow, quantize, widen, words};
use crate::outputs::Outputs;

/// A row as it is sent.
#[derive(Debug)]
pub(crate) struct WireRow {
    pub(crate) payload: Vec<u8>,
    pub(crate) scales: Vec<u8>,
}

/// A row that a rank receives.
pub(crate) struct Row<'a> {
    pub(crate) source: usize,
    /// Its index at the source.
    pub(crate) token: usize,
    pub(crate) wire: &'a WireRow,
    pub(crate) sideband: &'a [u8],
    /// For each entry of the plan's top-k: local expert and weight, `None` if the expert is on another rank.
    pub(crate) entries: Vec<Option<(usize, f32)>>,
}

/// The rows of all tokens of one rank.
fn wire_rows<'a>(case: &Case, op: &Op, part: &'a Part) -> &'a [WireRow] {
    part.wire.get_or_init(|| {
        let row = |t| match op.payload {
            Payload::SameAsInput => WireRow { payload: part.x_of(t).to_vec(), scales: Vec::new() },
            Payload::Fp8 { scale } => {
                let (payload, scales) = quantize(scale, case.config.dtype, part.x_of(t));
                WireRow { payload, scales }
            }
            Payload::Opaque { scale_count, scale_bytes, .. } => {
                let bytes = (scale_count * scale_bytes) as usize;
                WireRow { payload: part.x_of(t).to_vec(), scales: part.scales[t * bytes..][..bytes].to_vec() }
            }
            other => unreachable!("no case has {other}"),
        };
        (0..part.tokens).map(row).collect()
    })
}

/// The rank on which an expert lives.
fn home(case: &Case, expert: i64) -> usize {
    expert as usize / case.local_experts()
}

/// The rows that `rank` receives: by source, then token, once for all of a token's experts on it.
pub(crate) fn received<'a>(case: &Case, op: &'a Op, sources: &[bool], rank: usize) -> Vec<Row<'a>> {
    let mut rows = Vec::new();
    for source in (0..case.ranks).filter(|s| sources[*s]) {
        let part = &op.parts[source];
        for token in 0..part.tokens {
            let entry = |j: usize| {
                let id = *part.ids_of(op.k, token).get(j)?;
                let weight = if op.weighted { part.weights[token * op.k + j] } else { 0.0 };
                (id >= 0 && home(case, id) == rank).then(|| (id as usize % case.local_experts(), weight))
            };
            let entries: Vec<_> = (0..case.config.topk as usize).map(entry).collect();
            if entries.iter().any(Option::is_some) {
                let sideband = &part.sideband[token * op.sideband..][..op.sideband];
                rows.push(Row { source, token, wire: &wire_rows(case, op, part)[token], sideband, entries });
            }
        }
    }
    rows
}

/// Rows that `from` sends to `to`.
pub(crate) fn rows_sent(case: &Case, op: &Op, from: usize, to: usize) -> usize {
    let part = &op.parts[from];
    let goes = |t: &usize| part.ids_of(op.k, *t).iter().any(|id| *id >= 0 && home(case, *id) == to);
    (0..part.tokens).filter(goes).count()
}

/// Fills in blank outputs with what a dispatch that received `rows` must have written.
pub(crate) fn deliver(case: &Case, op: &Op, layout: Layout, rows: &[Row<'_>], out: &mut Outputs) {
    let (experts, most) = (case.local_experts(), case.rows());
    let mut lists: Vec<Vec<&Row<'_>>> = vec![Vec::new(); experts];
    let mut per_source = vec![0; case.ranks];
    for row in rows {
        let at = row.source * case.config.max_tokens as usize + per_source[row.source];
        per_source[row.source] += 1;
        for (expert, _) in row.entries.iter().flatten() {
            if let Some(list) = out.expert_rows.as_mut().filter(|_| layout == Layout::RankMajor) {
                list[expert * most + lists[*expert].len()] = at as u32;
            }
            if layout == Layout::ExpertMajor {
                put_row(case, op, row, *expert, lists[*expert].len(), out);
            }
            lists[*expert].push(row);
        }
        if layout == Layout::RankMajor {
            put_row(case, op, row, 0, at, out);
            let first = at * row.entries.len();
            for (j, entry) in row.entries.iter().enumerate() {
                if let Some(ids) = &mut out.row_experts {
                    ids[first + j] = entry.map_or(-1, |(expert, _)| expert as i32);
                }
                if let Some(weights) = &mut out.row_weights {
                    weights[first + j] = entry.map_or(0.0, |(_, weight)| weight);
                }
            }
        }
    }
    for (e, list) in lists.iter().enumerate() {
        if let Some(counts) = &mut out.counts {
            counts[e] = list.len() as u32;
        }
        if let Some(totals) = &mut out.expert_totals {
            totals[e] += list.len() as u64;
        }
        if let Some(totals) = &mut out.expert_totals_i32 {
            totals[e] = totals[e].wrapping_add(list.len() as i32);
        }
        for source in 0..case.ranks {
            let before = list.iter().filter(|row| row.source < source).count();
            let here = list.iter().filter(|row| row.source == source).count();
            if let Some(ranges) = &mut out.ranges {
                ranges[e * case.ranks + source] = [before as u32, here as u32];
            }
            if let Some(ranges) = &mut out.packed_ranges {
                ranges[e * case.ranks + source] = (before as u64) << 32 | here as u64;
            }
        }
    }
    if let Some(counts) = &mut out.source_counts {
        (0..case.ranks).for_each(|s| counts[s] = per_source[s] as u32);
    }
}

/// One row at place `at` of list `list`, where every list has room for `case.rows()`.
fn put_row(case: &Case, op: &Op, row: &Row<'_>, list: usize, at: usize, out: &mut Outputs) {
    let most = case.rows();
    let put = |to: &mut [u8], from: &[u8]| {
        to[(list * most + at) * from.len()..][..from.len()].copy_from_slice(from)
    };
    if let Some(rows) = &mut out.rows {
        put(rows, &row.wire.payload);
    }
    if let Some(sideband) = &mut out.sideband {
        put(sideband, row.sideband);
    }
    if let Some(tokens) = &mut out.source_token {
        tokens[list * most + at] = row.token as u32;
    }
    let Some(scales) = &mut out.scales else { return };
    let wire = &row.wire.scales;
    match op.payload {
        _ if out.row_major_scales => put(scales, wire),
        // Four exponents to a word, zero-padded: byte b%4 of word b/4.
        Payload::Fp8 { scale: Fp8Scale::Ue8m0 } => {
            let columns = wire.len().div_ceil(4);
            for byte in 0..columns * 4 {
                let word = (list * columns + byte / 4) * most + at;
                scales[word * 4 + byte % 4] = wire.get(byte).copied().unwrap_or(0);
            }
        }
        _ => {
            let size = match op.payload {
                Payload::Opaque { scale_bytes, .. } => scale_bytes as usize,
                _ => 4,
            };
            let columns = wire.len() / size;
            for (column, scale) in wire.chunks(size).enumerate() {
                scales[((list * columns + column) * most + at) * size..][..size].copy_from_slice(scale);
            }
        }
    }
}

/// The output of expert `expert` (numbered over all ranks) for a row. In half of the channels, which differ between
/// experts, it is a function of the row's bytes; in the others large terms cancel between experts, which reveals the
/// order of a sum.
pub(crate) fn expert(case: &Case, op: &Op, expert: usize, payload: &[u8], scales: &[u8]) -> Vec<u16> {
    let values: Vec<f32> = match op.payload {
        Payload::SameAsInput => words(payload).map(|bits| widen(case.config.dtype, bits)).collect(),
        Payload::Fp8 { scale } => dequantize(scale, payload, scales),
        Payload::Opaque { .. } => payload.iter().map(|b| f32::from(*b as i8) / 16.0).collect(),
        other => unreachable!("no case has {other}"),
    };
    let large = match case.config.combine_dtype {
        Float16::Bf16 => 2f32.powi(20),
        Float16::F16 => 2f32.powi(15),
    };
    let value = |c: usize| {
        let x = values[c % values.len()];
        let y = match (expert + c) % 4 {
            0 => x * 2f32.powi(expert as i32 % 5 - 2) + (expert as f32 + 1.0),
            1 => x / 64.0,
            2 => large,
            _ => -large,
        };
        narrow(case.config.combine_dtype, y)
    };
    (0..case.config.hidden as usize).map(value).collect()
}

/// The sum of `weight * row` in the given order, from +0, rounded once. Without weights: the sum of the rows.
pub(crate) fn reduce(case: &Case, rows: &[(Option<f32>, Vec<u16>)]) -> Vec<u16> {
    let to = case.config.combine_dtype;
    let channel = |c: usize| {
        let mut sum = 0.0f32;
        for (weight, row) in rows {
            let value = widen(to, row[c]);
            let term = weight.map_or(value, |w| w * value);
            sum += term;
        }
        narrow(to, sum)
    };
    (0..case.config.hidden as usize).map(channel).collect()
}

/// The weight of an expert's output at the expert's rank. Without weights at dispatch the callers in this test just add
/// up.
pub(crate) fn weight_there(op: &Op, weight: f32) -> Option<f32> {
    op.weighted.then_some(weight)
}

/// What combine must return to `rank` with only the answers of `answering`: `[n, hidden]`, and `[n]` contributions
/// arrived and expected.
pub(crate) fn combined(case: &Case, op: &Op, answering: &[bool], rank: usize) -> (Vec<u16>, Vec<[u16; 2]>) {
    let part = &op.parts[rank];
    let wire = wire_rows(case, op, part);
    let (mut out, mut contributions) = (Vec::new(), Vec::new());
    for token in 0..part.tokens {
        let ids = part.ids_of(op.k, token);
        let arrives = |id: i64| id >= 0 && answering[home(case, id)];
        let output = |j: usize| expert(case, op, ids[j] as usize, &wire[token].payload, &wire[token].scales);
        let rows: Vec<(Option<f32>, Vec<u16>)> = match op.mode {
            CombineMode::Ordered => {
                let weights = part.combine_weights.as_ref().unwrap_or(&part.weights);
                let routed = (0..op.k).filter(|j| arrives(ids[*j]));
                routed.map(|j| (Some(weights[token * op.k + j]), output(j))).collect()
            }
            _ => {
                let there = |peer: usize| -> Vec<(Option<f32>, Vec<u16>)> {
                    let routed = (0..op.k).filter(|j| arrives(ids[*j]) && home(case, ids[*j]) == peer);
                    routed.map(|j| (weight_there(op, part.weights[token * op.k + j]), output(j))).collect()
                };
                let peers = (0..case.ranks).map(there).filter(|rows| !rows.is_empty());
                peers.map(|rows| (None, reduce(case, &rows))).collect()
            }
        };
        out.extend(reduce(case, &rows));
        let arrived = ids.iter().filter(|id| arrives(**id)).count() as u16;
        contributions.push([arrived, ids.iter().filter(|id| **id >= 0).count() as u16]);
    }
    (out, contributions)
}
