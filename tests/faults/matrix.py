"""The fault matrix: what is done to a run, how it ends, what is on disk then, and what the same command does next.

Each row names the tests that show it. docs/reliability.md has the rows as a table; a test holds the two together.
"""

from __future__ import annotations

from dataclasses import dataclass

RUNS, LAUNCHER, NODES = (
    "faults/test_matrix_runs.py",
    "distributed/test_local_launcher.py",
    "distributed/test_node_command.py",
)
DAMAGED, RESUME, LEASE = (
    "faults/test_damaged_checkpoints.py",
    "unit/engine/test_resume.py",
    "unit/run_dir/test_lease.py",
)
SAVES, RESTARTS, STORE = "faults/test_save_kills.py", "faults/test_restarts.py", "unit/persist/test_run_store.py"
MEMORY, PASSES = "faults/test_out_of_memory.py", "unit/engine/test_passes.py"
STREAM, FEEDER = "unit/engine/test_streaming.py", "unit/data/cache/stream/test_feeder.py"
PAYLOADS, PROCESSES = "faults/test_payloads.py", "unit/launch/test_processes.py"


@dataclass(frozen=True)
class Row:
    """One way to go wrong. `code`: exit codes of the start that it happens to; 0 where it goes on."""

    inject: str
    code: str
    words: str
    disk: str
    next: str
    proofs: tuple[str, ...]


MATRIX: tuple[Row, ...] = (
    Row(
        "SIGTERM, SIGINT or SIGHUP to one rank in a step",
        "75",
        "stopped by SIGTERM and saved at step n",
        "a checkpoint of the step that was under way",
        "goes on from it, to the last bit",
        (
            f"{RUNS}::test_sigterm_to_one_rank_in_a_step",
            f"{RESUME}::test_stopped_at_every_step_and_resumed_is_bit_exact",
            "unit/engine/test_signals.py::test_a_closed_terminal_is_a_stop_and_nohup_stays_deaf",
        ),
    ),
    Row(
        "SIGTERM in start-up, a save or an evaluation",
        "75",
        "stopped by SIGTERM before the first step; or saved at step n",
        "nothing half-committed",
        "starts, or makes the evaluation that was left out",
        (
            "faults/test_stop_in_startup.py::test_a_stop_at_any_moment_of_start_up_is_a_stop",
            "faults/test_stop_in_evaluation.py::test_an_evaluation_is_left_out_and_made_later",
        ),
    ),
    Row(
        "SIGTERM, then SIGKILL in the save: the grace period was too short",
        "137",
        "none",
        "the checkpoint before it is whole",
        "goes on from that one",
        (f"{RUNS}::test_killed_in_the_save_that_sigterm_has_asked_for",),
    ),
    Row(
        "SIGKILL to any rank in any step",
        "70",
        "rank r on host: process r was killed by SIGKILL; the others leave with 69",
        "the newest checkpoint",
        "goes on from it; with --max-restarts by itself",
        (
            f"{RUNS}::test_a_killed_rank_is_noticed_by_the_others",
            f"{RUNS}::test_killed_in_every_step",
            f"{RUNS}::test_killed_anywhere_between_here_and_the_end",
            f"{RESTARTS}::test_a_run_that_dies_is_suspended_and_hangs_ends_as_if_undisturbed",
        ),
    ),
    Row(
        "SIGKILL at 64 points of a save: calls, and bytes of its files",
        "137",
        "none",
        "the checkpoint is whole or is not there; `last` is whole",
        "removes what is left of it, goes on from the newest",
        (f"{SAVES}::test_killed_at_points_through_a_save",),
    ),
    Row(
        "SIGKILL to the launcher",
        "137",
        "none",
        "the newest checkpoint; no process is left",
        "goes on from it",
        (f"{LAUNCHER}::test_a_killed_launcher_leaves_no_orphans",),
    ),
    Row(
        "a volume that takes no more bytes",
        "74",
        "the checkpoint was not saved; older ones are intact",
        "older checkpoints, nothing temporary",
        "goes on once there is room",
        (
            f"{RUNS}::test_a_volume_that_takes_no_more_bytes",
            "faults/test_full_disk.py::test_the_record_of_a_run_that_cannot_be_written_ends_it",
            "unit/engine/test_saving.py::test_a_volume_without_room_is_found_before_anything_is_written",
        ),
    ),
    Row(
        "a file of the newest checkpoint is cut off",
        "0",
        "checkpoint step-n is damaged and is not used: b bytes where a were saved",
        "it is set aside as damaged-step-n",
        "goes on from the one before",
        (
            f"{RUNS}::test_changed_bytes_of_the_newest_checkpoint",
            f"{DAMAGED}::test_a_run_without_an_intact_checkpoint_begins_again_and_says_so",
        ),
    ),
    Row(
        "one bit of a checkpoint flips, its manifest included",
        "0",
        "checkpoint step-n is damaged and is not used",
        "it is set aside as damaged-step-n",
        "goes on from the one before",
        (
            f"{RUNS}::test_changed_bytes_of_the_newest_checkpoint",
            f"{DAMAGED}::test_the_result_is_made_from_the_best_checkpoint_that_is_intact",
            "unit/run_dir/test_atomic.py::test_no_flipped_bit_of_a_manifest_passes",
        ),
    ),
    Row(
        "the generators of one rank are missing",
        "0",
        "checkpoint step-n is damaged and is not used: a file of the checkpoint is missing",
        "it is set aside as damaged-step-n",
        "goes on from the one before",
        (f"{RUNS}::test_a_missing_file_of_generators",),
    ),
    Row(
        "two runs in one directory",
        "74",
        "is held by process p on host",
        "as the first run has it",
        "the same, as long as the first one lives",
        (
            f"{LEASE}::test_a_second_run_is_refused_at_once_and_told_who_holds_it",
            "unit/test_preflight.py::test_a_run_directory_that_is_in_use",
        ),
    ),
    Row(
        "the lease of a dead process, or of a silent host",
        "0",
        "none",
        "the new owner's lease; the old one cannot commit",
        "is the new owner",
        (
            f"{LEASE}::test_the_directory_of_a_dead_process_is_free",
            f"{LEASE}::test_a_silent_owner_elsewhere_loses_it",
            f"{LEASE}::test_an_owner_that_lost_the_directory_may_not_commit",
        ),
    ),
    Row(
        "a loss or gradient that is no number",
        "70",
        "step n: the loss is nan, with the rows",
        "checkpoints from before it",
        "comes to the same step; train.max_nonfinite_steps skips it",
        (
            f"{RUNS}::test_a_loss_that_is_no_number",
            "unit/engine/test_step.py::test_a_non_finite_loss_ends_the_run_and_names_step_and_rows",
        ),
    ),
    Row(
        "poisoned rows: no JSON, NUL, 10 MB, nothing trained",
        "65",
        "train.jsonl:n and what is wrong, all at once",
        "no run directory",
        "the same until the rows are mended; data check sets them aside",
        ("e2e/test_bad_input.py::*", "unit/data/inspect/test_validate.py::test_no_row_of_any_format_is_lost"),
    ),
    Row(
        "SIGSTOP to one rank",
        "69",
        "rank r on host was suspended (SIGSTOP) while the others waited",
        "the newest checkpoint; the stacks of all ranks in logs/hang-step-n",
        "goes on from it; with --max-restarts by itself, within a minute",
        (
            f"{RESTARTS}::test_a_run_that_dies_is_suspended_and_hangs_ends_as_if_undisturbed",
            f"{PROCESSES}::test_processes_that_wait_for_a_suspended_one_are_ended",
        ),
    ),
    Row(
        "a rank hangs and holds the interpreter's lock",
        "69",
        "step n has not ended after s seconds: the others wait for rank r on host at file:line",
        "the newest checkpoint; the stacks of all ranks in logs/hang-step-n",
        "goes on from it; with --max-restarts by itself",
        (
            f"{RESTARTS}::test_a_run_that_dies_is_suspended_and_hangs_ends_as_if_undisturbed",
            "unit/launch/test_hang.py::test_no_step_is_late_before_thirty_seconds",
            "faults/test_hung_rank.py::test_the_others_do_not_wait_for_ever",
        ),
    ),
    Row(
        "a rank three times as slow as the others",
        "0",
        "rank r on host takes x times as long for its passes as the others",
        "straggler in metrics.jsonl, stragglers in report.json",
        "nothing is left to do",
        (f"{RUNS}::test_a_slow_rank_is_named", "unit/engine/test_pace.py::test_a_slow_rank_is_named_with_its_host"),
    ),
    Row(
        "the clock jumps by an hour, forth and back; checkpoints have any time of change",
        "0",
        "none",
        "as ever: order is by step, intervals by the monotonic clock",
        "goes on, to the last bit",
        (f"{RUNS}::test_a_clock_that_jumps",),
    ),
    Row(
        "a node does not come",
        "69",
        "node n did not come in s seconds",
        "nothing new",
        "waits for it again",
        (f"{NODES}::test_who_does_not_come_is_named_once", f"{NODES}::test_without_node_0"),
    ),
    Row(
        "an output directory that cannot be written",
        "74",
        "the place and the way out, before the model is loaded",
        "nothing",
        "the same until it can be written",
        (
            f"{RUNS}::test_a_place_that_cannot_be_written",
            "unit/test_preflight.py::test_a_run_directory_that_cannot_be_written",
        ),
    ),
    Row(
        "a rank is killed for its memory",
        "70",
        "rank r on host: process r was killed by SIGKILL; hint: the machine may be out of memory",
        "the newest checkpoint",
        "goes on from it; given up after three restarts that bring nothing new",
        (
            f"{RESTARTS}::test_a_run_that_dies_is_suspended_and_hangs_ends_as_if_undisturbed",
            "unit/launch/test_restarts.py::test_it_is_given_up_with_the_last_cause",
        ),
    ),
    Row(
        "three restarts in a row without a new checkpoint",
        "that of the last failure",
        "3 restarts in a row have brought nothing new",
        "restarts.jsonl with the cause of each",
        "begins to count anew",
        (
            "unit/launch/test_restarts.py::test_restarts_end_at_their_number_and_where_nothing_new_is_saved",
            "unit/launch/node/test_attempts.py::test_failures_end_at_max_restarts",
        ),
    ),
    Row(
        "another number of processes, or another sharding",
        "0",
        "continuing with the same weights, optimizer and rows, not bit-exactly: what differs",
        "as ever",
        "goes on with the same rows in the same order",
        (
            "distributed/test_layout_changes.py::test_replicas_and_fsdp",
            "distributed/test_layout_changes.py::test_zero_with_the_others",
            f"{RESUME}::test_bit_exactly_is_said_only_where_it_is",
        ),
    ),
    Row(
        "the data changed",
        "78",
        "the training data changed since the checkpoint, with the override",
        "as before",
        "the same; --allow-change data goes on",
        (f"{RESUME}::test_changed_data_is_refused_unless_allowed",),
    ),
    Row(
        "the spec changed",
        "78",
        "each field that matters, before and now, with the override",
        "as before",
        "the same; harmless changes pass",
        (
            f"{RESUME}::test_another_runs_directory_is_refused_with_the_override_named",
            f"{RESUME}::test_harmless_changes_pass",
        ),
    ),
    Row(
        "the base, the tokenizer or its template changed",
        "78",
        "what changed since the checkpoint, with the override",
        "as before",
        "the same; --allow-change goes on",
        (f"{RESUME}::test_a_changed_byte_of_the_base_is_refused_unless_allowed",),
    ),
    Row(
        "a tracker fails",
        "0",
        "it is left out from here on, once",
        "metrics.jsonl is whole",
        "tries the tracker again",
        ("faults/test_full_disk.py::test_a_tracker_that_cannot_write_is_left_out",),
    ),
    Row(
        "an object store fails, or is slow",
        "on this machine that of the run, on a cluster 74 at the end",
        "the object store failed, with its words",
        "checkpoints are committed here first",
        "copies what the store lacks",
        (
            f"{STORE}::test_a_last_copy_that_fails_is_no_success",
            f"{STORE}::test_a_restore_that_was_cut_off_is_made_again",
            f"{STORE}::test_a_store_that_fails_for_a_while_is_spoken_of_once_and_made_up_for",
            "e2e/test_copied_results.py::test_through_an_outage_and_without_its_directory",
        ),
    ),
    Row(
        "rows of a stream: the process that reads them is killed",
        "70",
        "the process that reads the stream ahead was killed by signal 9",
        "a checkpoint of the last step that had its rows; no window is left",
        "goes on from it with the rows that come next",
        (
            f"{STREAM}::test_a_feeder_that_is_killed_ends_the_run_with_all_that_was_trained",
            f"{STREAM}::test_stopped_again_and_again_it_ends_the_same_to_the_last_bit",
            f"{STREAM}::test_a_stop_while_rows_are_waited_for_is_answered",
        ),
    ),
    Row(
        "rows of a stream: the place refuses, cuts answers off, or stays away",
        "0; 69 where it stays away",
        "how often it was asked and what it said",
        "as above",
        "the same: the same steps as from files here",
        (
            "e2e/test_s3.py::test_a_stream_from_s3_is_that_of_the_same_files_through_outages_and_a_stop",
            "e2e/test_s3.py::test_a_run_on_rows_in_s3_is_that_on_the_same_files_here",
            f"{FEEDER}::test_a_place_that_stays_away_is_an_error_of_the_service",
        ),
    ),
    Row(
        "rows of a stream: bad ones come late, or files changed since the checkpoint",
        "65; 78",
        "file:line of each; or that the data are others, with the override",
        "all steps before them are saved",
        "the same until they are mended, or allowed",
        (
            f"{STREAM}::test_bad_rows_end_the_run_once_they_are_due_with_all_before_them_saved",
            f"{STREAM}::test_files_that_come_or_change_are_other_data",
            f"{FEEDER}::test_rows_that_changed_behind_an_unchanged_listing_are_noticed",
        ),
    ),
    Row(
        "symlinks, `../` and absolute paths in data, archives, indexes, manifests and names",
        "65, 74 or 78",
        "which path, and that it leads out",
        "nothing outside of its place",
        "the same",
        (
            "unit/datasets/test_resolve.py::test_members_that_would_leave_the_folder",
            "unit/datasets/test_resolve.py::test_nothing_is_written_through_a_link",
            "unit/model/test_source.py::test_an_index_that_names_files_elsewhere",
            "unit/run_dir/test_atomic.py::test_a_manifest_of_the_first_format_has_no_seal_and_names_no_file_outside",
            "unit/cli/test_seed_flags.py::test_an_output_that_is_no_run_name",
        ),
    ),
    Row(
        "pickles that run code, in every file that is read",
        "0, 65, 74 or 78",
        "what the file is not",
        "as before; no code was run",
        "the same, or goes on from the checkpoint before",
        (
            f"{PAYLOADS}::test_in_every_file_of_a_checkpoint_and_of_the_run",
            f"{PAYLOADS}::test_in_every_file_of_a_model",
            f"{PAYLOADS}::test_in_every_file_of_the_cache",
            f"{PAYLOADS}::test_in_files_that_stand_beside",
            f"{PAYLOADS}::test_as_data",
            f"{PAYLOADS}::test_nothing_of_ours_looks_up_what_a_pickle_names",
            "unit/model/test_source.py::test_pickled_weights_are_refused_unless_trusted",
        ),
    ),
    Row(
        "secrets in environment, spec, arguments, URLs and tracebacks",
        "0 or 78",
        "[hidden]",
        "in no log, manifest, report or error",
        "the same",
        (
            "e2e/test_canary.py::test_a_run_keeps_nothing_of_the_environments_secrets",
            "e2e/test_canary.py::test_no_command_shows_one",
            "unit/test_security.py::test_secrets_are_hidden_by_their_shape",
            "unit/test_security.py::test_a_spec_with_a_secret_in_a_url_is_refused_without_it",
            f"{NODES}::test_a_secret_in_the_environment_is_shown_nowhere",
        ),
    ),
    Row(
        "exit codes, eviction and lost nodes, as a cluster sees them",
        "2, 65, 77, 78 end the run; the rest is tried again",
        "podFailurePolicy: FailJob on these codes, Ignore DisruptionTarget",
        "golden manifests",
        "a new pod goes on",
        (
            "unit/launch/test_render_golden.py::test_the_text_is_the_golden_one",
            f"{NODES}::test_a_killed_node_is_replaced_and_the_other_waits_in_place",
        ),
    ),
    Row(
        "a pass runs out of memory, in a process of its own or a replica",
        "0",
        "step n: out of memory; made again in passes of up to t tokens",
        "out_of_memory in metrics.jsonl; pass-limit.json",
        "begins with these smaller passes",
        (
            f"{MEMORY}::test_a_replica_makes_its_passes_again_and_all_cut_smaller_from_then_on",
            f"{MEMORY}::test_under_a_limit_of_the_system",
            f"{PASSES}::test_the_step_is_made_again_in_smaller_passes_and_later_starts_begin_with_them",
            f"{PASSES}::test_an_evaluation_is_made_again_in_smaller_passes",
        ),
    ),
    Row(
        "a pass runs out of memory under fsdp, hsdp, zero2 or zero3, or in an evaluation of several ranks",
        "70",
        "rank r, device: out of memory; hint: start it again: it goes on in passes of up to t tokens",
        "the newest checkpoint; pass-limit.json",
        "goes on from it with smaller passes; with --max-restarts by itself",
        (f"{MEMORY}::test_where_passes_are_collectives_the_next_start_has_smaller_ones",),
    ),
    Row(
        "less memory than the run needs by estimate, or than one row takes",
        "78; 70 where others use it",
        "the run is expected to need x GB, and there are y GB; or out of memory; with settings that take less",
        "no checkpoint is made or changed; by estimate, before the model is loaded",
        "the same until the spec or the device is another one",
        (
            "unit/model/test_fitting.py::test_it_is_refused_before_the_model_is_loaded",
            "unit/model/test_fitting.py::test_memory_that_others_use_may_be_waited_for",
            f"{PASSES}::test_where_no_pass_can_be_smaller_it_is_an_error_with_ways_out",
        ),
    ),
    Row(
        "a node does not mount the volume that the others write to",
        "74",
        "rank r on host does not see what rank 0 writes on host",
        "nothing new",
        "the same until all nodes mount it",
        ("distributed/test_one_volume.py::test_a_node_with_a_directory_of_its_own",),
    ),
)


def table() -> str:
    """The rows as Markdown."""
    lines = [
        "| # | what is done to it | exit code | what it says | on disk | the same command next |",
        "|---|---|---|---|---|---|",
    ]
    for number, row in enumerate(MATRIX, 1):
        lines.append(f"| {number} | {row.inject} | {row.code} | {row.words} | {row.disk} | {row.next} |")
    return "\n".join(lines) + "\n"
