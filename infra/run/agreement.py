"""Which settings must be the same in every process of a run, and which may differ: this is the only place that decides.

A worker that learns at another rate, or a shard that starts rows from another seed, would spoil the model silently. So
a worker sends the values below when it joins, the dispatcher when it opens a generation on a shard, and a process with
another value refuses. A new setting belongs to one of the three tables; a test fails until it does.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any, get_type_hints

import msgspec
import xxhash

from dispatch.protocol import FROM_DISPATCHER, TO_DISPATCHER
from infra.base.agreement import Agreement
from infra.base.plugins import MODELS, code_digest, find_plugin
from infra.base.telemetry import code_version
from infra.base.wire import Header
from infra.run.settings import EARLIER, Settings
from ps.protocol import FROM_SHARD, TO_SHARD

VERSION = "the version of Freshet"
MODEL_CODE = "the digest of the model's code"
"""Of a model that is not Freshet's own: its package may differ from one machine to the next."""
MESSAGES = "the digest of messages"
"""Distinguishes two states of the code between versions."""

SHARDS_AND_WORKERS = (
    "seed",
    "stream.batch",  # scales the start of accumulators, and the gradients of rows
    "rows.dim",
    "rows.wide",
    "rows.float_dtype",
    "rows.optimizer",
    "rows.rate",
    "rows.wide_rate",
    "rows.initial_accumulator",
    "rows.wide_accumulator",
    "rows.init_std",
    "rows.eps",
    "rows.chunks",
    "rows.utility",
    "rows.half_life_steps",
    "ps.shards",
    "model.dense_optimizer",
    "model.dense_rate",
)
"""Compared by everyone."""

WORKERS = (
    "stream.crosses",
    "stream.schema_name",  # compared by content: a path may differ from one machine to the next
    "model.name",
    "model.mlp",
    "model.cross_layers",
    "model.cross",
    "model.cross_rank",
    "model.scale_rate",
    "model.base_rate",
    "model.label_smoothing",
    "trainer.reduce",
    "trainer.unencrypted_reduce",
)
"""Compared between the dispatcher and the workers; shards do not use them."""

STREAM = ("stream.source", "stream.topic")
"""Besides those above, settings that must not change when a run is resumed."""
FREE = (VERSION, MESSAGES, MODEL_CODE, "ps.shards", "trainer.unencrypted_reduce")
"""Of those above, settings that may change when a run is resumed: no bit of the model depends on them, or should."""

MAY_DIFFER: Mapping[str, tuple[str, ...]] = {
    "every message carries it, and another run's is refused": ("run",),
    "a place on one machine": ("folder", "curve_folder"),
    "an address, which may look different from each machine": (
        "dispatch.endpoint",
        "dispatch.status_endpoint",
        "dispatch.control_endpoint",
        "dispatch.feed_endpoint",
        "ps.endpoints",
        "ps.publisher_endpoints",
        "checkpoints.url",
    ),
    "read by the dispatcher alone, which tells workers and shards what concerns them": (
        "dispatch.policy",
        "dispatch.alpha",
        "dispatch.alpha_dwell_seconds",
        "dispatch.opt_backend",
        "dispatch.threads",
        "dispatch.workers",
        "dispatch.cache_rows",
        "dispatch.eviction",
        "dispatch.links_gbit",
        "dispatch.uplinks_gbit",
        "dispatch.link_costs",
        "dispatch.probe_seconds",
        "dispatch.least_share",
        "dispatch.largest_share",
        "dispatch.choose",
        "dispatch.journal_bytes",
        "dispatch.journal_topic",
        "dispatch.lookahead",
        "dispatch.deadline",
        "dispatch.silence_seconds",
        "dispatch.replace_seconds",
        "dispatch.report_seconds",
        "dispatch.drain_seconds",
        "memory.expire_steps",
        "memory.expire_hours",
        "memory.admit_after",
        "memory.admit_share",
        "memory.filter_mb",
        "memory.budget_mb",
        "memory.prune_share",
        "memory.prune_steps",
        "memory.prune_shape",
        "memory.prune_spare",
        "memory.prune_enforce",
        "memory.columns",
        "quality.slices",
        "quality.slice_values",
        "quality.window_samples",
        "quality.label_change",
        "quality.field_change",
        "checkpoints.seconds",
        "checkpoints.kept",
        "checkpoints.deltas",
        "checkpoints.write_behind",
        "ps.link_gbit",
    ),
    "read by the dispatcher and by producers of events alone": (
        "stream.source",
        "stream.topic",
        "stream.dead_letter_topic",
        "stream.folder",
        "stream.partitions",
        "stream.first_batch",
        "stream.batch_growth",
        "stream.linger_seconds",
        "stream.prefetch",
        "stream.read_bytes",
        "stream.on_out_of_range",
        "stream.lag_policy",
        "stream.lag_bound",
        "stream.on_absent_field",
        "stream.absent_window",
        "stream.segment_bytes",
        "stream.retention_bytes",
        "stream.retention_cap_bytes",
        "kafka.*",
    ),
    "a property of one machine": (
        "ps.chunk_rows",
        "ps.held_bytes",
        "trainer.device",
        "trainer.graphs",
        "trainer.threads",
        "trainer.shared_cores",
        "trainer.shape_link",
    ),
    "how patient one process is": (
        "trainer.reduce_timeout_seconds",
        "trainer.pull_timeout_seconds",
        "trainer.silence_seconds",
    ),
    "read by the control plane alone": ("api.*",),
    "read by serving, and by the dispatcher, which publishes for it": ("serving.*",),
    "logs and metrics of one process": ("telemetry.*",),
    "read by the supervisor of a run on a Ray cluster alone": ("ray.*",),
}
"""Settings that may differ, by the reason."""


def agreement_of(settings: Settings) -> Agreement:
    """What a process with these settings must share with the others of its run."""
    code = {VERSION: code_version(), MESSAGES: messages_digest()}
    everyone = code | {name: _text(settings, name) for name in SHARDS_AND_WORKERS}
    workers = everyone | {name: _text(settings, name) for name in WORKERS}
    if settings.model.is_plugged:
        workers |= {MODEL_CODE: code_digest(find_plugin("model", MODELS, settings.model.name))}
    frozen = {name: value for name, value in workers.items() if name not in FREE and not _is_as_ever(settings, name)}
    frozen |= {name: _text(settings, name) for name in STREAM}
    earlier = {f"{section}.{name}": _as_text(value) for section in EARLIER for name, value in EARLIER[section].items()}
    return Agreement(workers=workers, shards=everyone, frozen=frozen, earlier=earlier)


def _is_as_ever(settings: Settings, name: str) -> bool:
    """Whether a setting says to do what releases did that did not have it; the runs they began do not know it."""
    section, _, field = name.rpartition(".")
    earlier = EARLIER.get(section, {})
    return field in earlier and getattr(getattr(settings, section), field) == earlier[field]


def messages_digest() -> str:
    """16 hex digits, equal if every message has the same fields and arrays."""
    kinds = (*TO_SHARD, *FROM_SHARD, *TO_DISPATCHER, *FROM_DISPATCHER)
    return xxhash.xxh3_64_hexdigest(msgspec.json.encode([_layout(kind) for kind in kinds]))


@cache
def _layout(kind: type[Header]) -> tuple[str, tuple[str, ...], list[tuple[str, str]]]:
    hints = get_type_hints(kind.ARRAYS, include_extras=True)
    return kind.__name__, kind.__struct_fields__, [(name, hint.__metadata__[0]) for name, hint in hints.items()]


def _text(settings: Settings, name: str) -> str:
    if name == "stream.schema_name":
        schema = settings.event_schema
        return f"{schema.fields} keys and {schema.dense} dense inputs a sample, fingerprint {schema.fingerprint}"
    if name == "rows.wide_rate":  # as it is used: it may follow from the schema, which shards do not compare
        return msgspec.json.encode(settings.scaled_rows.wide_rate).decode()
    section, _, field = name.rpartition(".")
    return _as_text(getattr(getattr(settings, section) if section else settings, field))


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
