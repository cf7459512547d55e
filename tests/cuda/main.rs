//! Buffers and communicators on GPUs: compared bit for bit with those of the host, and what only they do. Ranks are
//! threads of this process, one on each GPU, at most 8; with one GPU there is a single rank. Tests that need a GPU are
//! ignored where there is none, and stderr says why.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test panics where it fails")]

mod calls;
mod comms;
mod graph;
mod prefill;
mod prefill_calls;
mod recovery;
mod same;
mod subsets;
mod verdicts;
mod world;

use epwire::cudarc::driver::CudaContext;
use epwire::{Device, EpBuffer, EpConfig, Error};
use libtest_mimic::{Arguments, Trial};

type Test = fn(u32);

/// Each gets the number of GPUs.
const TESTS: &[(&str, Test)] = &[
    ("a_gpu_delivers_and_combines_what_the_host_does", same::a_gpu_delivers_and_combines_what_the_host_does),
    ("a_captured_step_replays_with_new_tokens", graph::a_captured_step_replays_with_new_tokens),
    (
        "a_stream_joins_a_capture_and_a_graph_waits_for_calls",
        graph::a_stream_joins_a_capture_and_a_graph_waits_for_calls,
    ),
    ("a_capture_gets_no_release_by_safe_code", graph::a_capture_gets_no_release_by_safe_code),
    (
        "whether_a_stream_is_captured_is_asked_on_its_gpu",
        graph::whether_a_stream_is_captured_is_asked_on_its_gpu,
    ),
    ("prefill_gives_what_the_host_gives", prefill::prefill_gives_what_the_host_gives),
    ("prefill_over_queues_gives_what_the_host_gives", prefill::prefill_over_queues_gives_what_the_host_gives),
    ("a_captured_prefill_replays_with_new_tokens", prefill_calls::a_captured_prefill_replays_with_new_tokens),
    ("a_captured_routing_may_be_dropped", prefill_calls::a_captured_routing_may_be_dropped),
    (
        "captures_into_one_routing_take_no_more_memory",
        prefill_calls::captures_into_one_routing_take_no_more_memory,
    ),
    ("a_routing_is_made_ahead_and_filled_anew", prefill_calls::a_routing_is_made_ahead_and_filled_anew),
    ("a_routing_dispatches_again_in_halves", prefill_calls::a_routing_dispatches_again_in_halves),
    ("tokens_are_counted_as_on_the_host", prefill_calls::tokens_are_counted_as_on_the_host),
    ("halves_of_prefill_may_be_dropped", prefill_calls::halves_of_prefill_may_be_dropped),
    ("giving_a_half_up_records_no_reading", prefill_calls::giving_a_half_up_records_no_reading),
    ("refused_calls_of_prefill_name_the_reason", prefill_calls::refused_calls_of_prefill_name_the_reason),
    ("completions_of_prefill_are_futures", prefill_calls::completions_of_prefill_are_futures),
    ("a_silent_rank_is_skipped_and_replaced", recovery::a_silent_rank_is_skipped_and_replaced),
    ("all_ranks_learn_whether_a_step_was_complete", verdicts::all_ranks_learn_whether_a_step_was_complete),
    ("a_checkpoint_is_refused_under_capture", verdicts::a_checkpoint_is_refused_under_capture),
    ("a_dropped_handle_gives_its_lane_back", calls::a_dropped_handle_gives_its_lane_back),
    ("a_bad_routing_id_is_recorded_and_not_followed", calls::a_bad_routing_id_is_recorded_and_not_followed),
    ("a_completion_is_a_future", calls::a_completion_is_a_future),
    ("a_stream_waits_for_a_completion", calls::a_stream_waits_for_a_completion),
    ("calls_of_host_buffers_are_refused", calls::calls_of_host_buffers_are_refused),
    ("a_view_is_good_for_its_stream_only", calls::a_view_is_good_for_its_stream_only),
    ("a_slice_may_be_dropped_after_the_call", calls::a_slice_may_be_dropped_after_the_call),
    ("a_call_does_not_hide_an_earlier_reader", calls::a_call_does_not_hide_an_earlier_reader),
    (
        "a_stream_that_is_only_wrapped_takes_its_own_slices",
        calls::a_stream_that_is_only_wrapped_takes_its_own_slices,
    ),
    ("a_buffer_keeps_a_stream_of_its_calls", calls::a_buffer_keeps_a_stream_of_its_calls),
    ("every_collective_gives_what_the_host_gives", comms::every_collective_gives_what_the_host_gives),
    (
        "sends_that_cross_in_a_group_do_not_wait_for_each_other",
        comms::sends_that_cross_in_a_group_do_not_wait_for_each_other,
    ),
    (
        "a_captured_collective_adds_up_what_is_there_at_its_replay",
        comms::a_captured_collective_adds_up_what_is_there_at_its_replay,
    ),
    ("a_work_on_a_gpu_is_a_future_and_may_be_dropped", comms::a_work_on_a_gpu_is_a_future_and_may_be_dropped),
    (
        "what_a_communicator_on_a_gpu_cannot_take_is_named",
        comms::what_a_communicator_on_a_gpu_cannot_take_is_named,
    ),
    ("memory_that_peers_read_gives_the_same_sums", comms::memory_that_peers_read_gives_the_same_sums),
    ("memory_that_is_registered_gives_the_same_sums", comms::memory_that_is_registered_gives_the_same_sums),
    ("ranks_that_call_different_collectives_are_told", comms::ranks_that_call_different_collectives_are_told),
    ("blocks_on_a_gpu_lie_where_those_of_the_host_do", comms::blocks_on_a_gpu_lie_where_those_of_the_host_do),
    (
        "a_communicator_on_a_gpu_has_subsets_on_it_and_on_the_host",
        subsets::a_communicator_on_a_gpu_has_subsets_on_it_and_on_the_host,
    ),
    (
        "a_subset_on_a_gpu_comes_between_the_calls_around_it",
        subsets::a_subset_on_a_gpu_comes_between_the_calls_around_it,
    ),
    ("masks_on_a_gpu_that_overlap_are_named", subsets::masks_on_a_gpu_that_overlap_are_named),
    ("a_subset_on_a_gpu_names_who_cannot_make_it", subsets::a_subset_on_a_gpu_names_who_cannot_make_it),
    ("a_subset_on_a_gpu_names_who_does_not_come", subsets::a_subset_on_a_gpu_names_who_does_not_come),
    (
        "a_subset_on_a_gpu_is_waited_for_as_long_as_the_deadline_says",
        subsets::a_subset_on_a_gpu_is_waited_for_as_long_as_the_deadline_says,
    ),
];

fn main() {
    let gpus = gpus();
    if let Err(reason) = &gpus {
        eprintln!("cuda: ignored: {reason}");
    }
    let mut trials: Vec<_> = TESTS
        .iter()
        .map(|&(name, test)| {
            let count = gpus.as_ref().copied().unwrap_or(0);
            let run = move || {
                test(count);
                Ok(())
            };
            Trial::test(name, run).with_ignored_flag(gpus.is_err())
        })
        .collect();
    let without = Trial::test("without_a_gpu_creating_says_what_is_missing", || {
        without_a_gpu_creating_says_what_is_missing();
        Ok(())
    });
    trials.push(without.with_ignored_flag(gpus.is_ok()));
    // One at a time: ranks of two tests on one GPU would wait for each other's SMs.
    let arguments = Arguments { test_threads: Some(1), ..Arguments::from_args() };
    libtest_mimic::run(&arguments, trials).exit();
}

fn alone() -> Result<EpBuffer, Error> {
    EpBuffer::unconnected(0, 1, EpConfig::new(1, 128, 1, 1).device(Device::Cuda(0)))
}

/// The number of GPUs, or why there are none.
fn gpus() -> Result<u32, String> {
    alone().map_err(|error| error.to_string())?;
    let count = CudaContext::device_count().map_err(|error| error.to_string())?;
    Ok(count.clamp(1, 8) as u32)
}

fn without_a_gpu_creating_says_what_is_missing() {
    let error = alone().unwrap_err();
    assert!(matches!(error, Error::NoPath(_)), "{error}");
    assert!(error.to_string().contains("driver"), "{error}");
}
