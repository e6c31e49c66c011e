"""Every metric of every process: its name, kind, labels and meaning. Only metrics listed here can be created.

Names follow Prometheus: the prefix ``freshet_``, base units (seconds, bytes) at the end, ``_total`` on counters.
"""

from typing import Literal, NamedTuple

PREFIX = "freshet_"
MetricKind = Literal["counter", "gauge", "histogram"]
DISPATCHER = "dispatcher"
SHARD = "shard"
WORKER = "worker"
API = "API"
SERVER = "server"
ALL = "all"


class MetricSpec(NamedTuple):
    """One metric."""

    name: str
    """Full name, as Prometheus has it."""
    kind: MetricKind
    process: str
    """Which processes have it."""
    labels: tuple[str, ...]
    text: str


def _metric(name: str, kind: MetricKind, process: str, text: str, *labels: str) -> MetricSpec:
    return MetricSpec(f"{PREFIX}{name}", kind, process, labels, text)


METRICS = (
    _metric("build_info", "gauge", ALL, "Always 1; the labels say which version runs.", "version", "python"),
    # ── progress ──────────────────────────────────────────────────────────────────────────────────────────────────────
    _metric("samples_total", "counter", DISPATCHER, "Samples trained by this process."),
    _metric("steps_total", "counter", DISPATCHER, "Steps trained by this process."),
    _metric("samples_per_second", "gauge", DISPATCHER, "Samples trained per second, over the latest seconds."),
    _metric("step_interval_seconds", "gauge", DISPATCHER, "Median time between the ends of two steps."),
    _metric("generation", "gauge", DISPATCHER, "Number of the current generation of members."),
    _metric("journal_cursor", "gauge", DISPATCHER, "End of the run's journal: its number of appends."),
    _metric("faults_total", "counter", DISPATCHER, "Losses after which the run went back to its last checkpoint."),
    # ── events ────────────────────────────────────────────────────────────────────────────────────────────────────────
    _metric("lag_events", "gauge", DISPATCHER, "Events in the stream that are not in a batch yet."),
    _metric("dead_letters_total", "counter", DISPATCHER, "Events that were rejected and kept as dead letters."),
    _metric("skipped_events_total", "counter", DISPATCHER, "Events skipped by the lag policy or lost to retention."),
    _metric("omitted_events_total", "counter", DISPATCHER, "Events without a click that down-sampling left out."),
    _metric("field_present_ratio", "gauge", DISPATCHER, "Share of the samples that have a value in a field.", "field"),
    _metric("fields_absent", "gauge", DISPATCHER, "Fields of the schema that are missing from all latest samples."),
    _metric("keys", "gauge", DISPATCHER, "Keys that are known and have a row."),
    _metric("keys_forgotten_total", "counter", DISPATCHER, "Keys forgotten because no sample had them for long."),
    _metric("keys_rare_total", "counter", DISPATCHER, "Keys of samples that had no row of their own yet."),
    _metric("rows_bytes", "gauge", DISPATCHER, "Bytes of the rows on all shards, by formula."),
    _metric("chunks_live", "gauge", DISPATCHER, "Chunks of rows that are not pruned, if rows are divided into any."),
    _metric("chunks_pruned_total", "counter", DISPATCHER, "Chunks of rows pruned because others were more useful."),
    _metric("chunks_brought_back_total", "counter", DISPATCHER, "Pruned chunks of rows that became useful again."),
    # ── quality ───────────────────────────────────────────────────────────────────────────────────────────────────────
    _metric("logloss", "gauge", DISPATCHER, "Test-then-train logloss over the whole run."),
    _metric("auc", "gauge", DISPATCHER, "Test-then-train AUC over the whole run."),
    _metric("calibration", "gauge", DISPATCHER, "Predicted clicks per click, over the whole run; 1 is ideal."),
    _metric("window_logloss", "gauge", DISPATCHER, "Logloss of the newest closed window of quality.window_samples."),
    _metric("window_auc", "gauge", DISPATCHER, "AUC of the newest closed window."),
    _metric("window_calibration", "gauge", DISPATCHER, "Predicted clicks per click of the newest closed window."),
    _metric("slice_logloss", "gauge", DISPATCHER, "Logloss of a frequent value in that window.", "field", "key"),
    _metric("slice_auc", "gauge", DISPATCHER, "AUC of a frequent value in that window.", "field", "key"),
    _metric("slice_calibration", "gauge", DISPATCHER, "The same for predicted clicks per click.", "field", "key"),
    _metric("label_logloss", "gauge", DISPATCHER, "The same for each label after the main one.", "label"),
    _metric("label_auc", "gauge", DISPATCHER, "AUC for each label after the main one.", "label"),
    _metric("label_calibration", "gauge", DISPATCHER, "Calibration for each label after the main one.", "label"),
    _metric("field_drift_ratio", "gauge", DISPATCHER, "Distance of a field's values in two windows, 0 to 1.", "field"),
    _metric("field_alarms_total", "counter", DISPATCHER, "Alarms because values of a field changed suddenly."),
    _metric("label_alarms_total", "counter", DISPATCHER, "Alarms because the click rate changed."),
    _metric("not_finite_total", "counter", DISPATCHER, "Predictions that were not finite."),
    # ── decisions ─────────────────────────────────────────────────────────────────────────────────────────────────────
    _metric("decide_seconds", "histogram", DISPATCHER, "Time to decide which worker trains which sample."),
    _metric("decisions_shortened_total", "counter", DISPATCHER, "Decisions that were shortened to meet the deadline."),
    _metric("deadline_misses_total", "counter", DISPATCHER, "Decisions that took longer than the workers were busy."),
    _metric("alpha", "gauge", DISPATCHER, "Share of exact assignment in force, from 0 to 1."),
    _metric("link_bytes_per_second", "gauge", DISPATCHER, "Measured speed of a worker's downlink.", "worker"),
    _metric("uplink_bytes_per_second", "gauge", DISPATCHER, "Measured speed of a worker's uplink.", "worker"),
    _metric("worker_parked", "gauge", DISPATCHER, "1 if a worker is parked (gets no samples), else 0.", "worker"),
    # ── traffic ───────────────────────────────────────────────────────────────────────────────────────────────────────
    _metric(
        "worker_bytes_total",
        "counter",
        DISPATCHER,
        "Bytes moved since the start of the run: pulled and pushed rows, reduced (rows in a ring), dense_up and "
        "dense_down, order (sent by the dispatcher), report (sent to it).",
        "worker",
        "kind",
    ),
    _metric(
        "worker_rows_total",
        "counter",
        DISPATCHER,
        "Rows moved since the start of the run: miss_pulls, update_pushes, evict_pushes, behind_pushes (before a "
        "checkpoint), flush_pushes, all_reduces.",
        "worker",
        "kind",
    ),
    # ── checkpoints
    # ──────────────────────────────────────────────────────────────────────────────────────────────────────────
    _metric("checkpoints_total", "counter", DISPATCHER, "Checkpoints that were taken."),
    _metric("checkpoints_failed_total", "counter", DISPATCHER, "Checkpoints that could not be taken."),
    _metric("checkpoint_seconds", "histogram", DISPATCHER, "Time from the beginning of a checkpoint to its manifest."),
    _metric("checkpoint_step", "gauge", DISPATCHER, "Step of the newest checkpoint."),
    # ── snapshots that are served ─────────────────────────────────────────────────────────────────────────────────────
    _metric("versions_held_total", "counter", DISPATCHER, "Snapshots that were held back from being served."),
    _metric("version_held", "gauge", DISPATCHER, "1 if the newest snapshot is held back, else 0."),
    _metric("servers", "gauge", DISPATCHER, "Servers that have reported in the latest seconds."),
    _metric("served_step", "gauge", DISPATCHER, "Step of the served snapshot."),
    _metric("served_timeline", "gauge", DISPATCHER, "Timeline of the served snapshot."),
    _metric("served_age_seconds", "gauge", DISPATCHER, "Time since the newest event in the served snapshot."),
    _metric("events_ahead_total", "counter", DISPATCHER, "Trained events whose time lies in the future."),
    _metric("freshness_seconds", "gauge", DISPATCHER, "Time from an event's arrival to its first answer.", "quantile"),
    # ── workers and shards ────────────────────────────────────────────────────────────────────────────────────────────
    _metric(
        "worker_phase_seconds",
        "histogram",
        WORKER,
        "Time of a step by phase: push, pull, forward, backward, reduce, rows.",
        "phase",
    ),
    _metric("ps_messages_total", "counter", SHARD, "Messages that a shard has processed."),
    _metric("ps_rows", "gauge", SHARD, "Rows that a shard holds."),
    _metric(
        "refused_messages_total",
        "counter",
        f"{SHARD}, {DISPATCHER}",
        "Messages that were refused, by type; unreadable if the type is not known.",
        "message",
    ),
    # ── the control plane ─────────────────────────────────────────────────────────────────────────────────────────────
    _metric(
        "api_requests_total",
        "counter",
        f"{API}, {SERVER}",
        "Requests that were answered, by method, path as in OpenAPI, and status.",
        "method",
        "route",
        "status",
    ),
    _metric(
        "api_request_seconds",
        "histogram",
        f"{API}, {SERVER}",
        "Time from the head of a request to the end of its answer, without event streams.",
        "method",
        "route",
    ),
    _metric("api_projection_lag_frames", "gauge", API, "Appends to a journal that SQL does not have yet.", "run"),
    _metric("api_pending_commands", "gauge", API, "Commands that their run has not answered yet.", "run"),
    # ── serving ───────────────────────────────────────────────────────────────────────────────────────────────────────
    _metric("serving_predictions_total", "counter", SERVER, "Samples that were answered."),
    _metric("serving_batches_total", "counter", SERVER, "Batches in which samples were computed together."),
    _metric("serving_swaps_total", "counter", SERVER, "Snapshots that replaced another one."),
    _metric("serving_load_seconds", "histogram", SERVER, "Time to load a snapshot from its files."),
    _metric("serving_score_seconds", "histogram", SERVER, "Time to score samples for the gate."),
    _metric("serving_delivered_files_total", "counter", SERVER, "Files received directly from the shards."),
    _metric("serving_damaged_checkpoints_total", "counter", SERVER, "Attempts to load a damaged checkpoint."),
    _metric("serving_step", "gauge", SERVER, "Step of the served snapshot."),
    _metric("serving_age_seconds", "gauge", SERVER, "Time since the served snapshot was taken."),
    _metric("serving_rows", "gauge", SERVER, "Rows of the served snapshot."),
    _metric("serving_bytes", "gauge", SERVER, "Memory of both copies of the model."),
    # ── delayed labels ────────────────────────────────────────────────────────────────────────────────────────────────
    _metric("logged_predictions_total", "counter", SERVER, "Served predictions that were logged, for later labels."),
    _metric("unlogged_predictions_total", "counter", SERVER, "Predictions not logged: the disk was full or too slow."),
    _metric(
        "served_labels_total",
        "counter",
        SERVER,
        "Labels of served predictions by outcome: joined, missing (not in time), unknown (matches no logged "
        "prediction), duplicate, forgotten (its prediction was dropped to save memory).",
        "outcome",
    ),
    _metric("served_waiting", "gauge", SERVER, "Logged predictions whose label may still arrive."),
    _metric("served_logloss", "gauge", SERVER, "Logloss of served predictions with a label."),
    _metric("served_calibration", "gauge", SERVER, "Predicted clicks per click, of those predictions."),
)
BY_NAME = {metric.name: metric for metric in METRICS}
