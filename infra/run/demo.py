"""The defaults of ``freshet demo``: uneven links, two shards, a separate log.

The policy follows from the links, as with ``freshet up``.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from infra.run.defaults import up_settings
from infra.run.settings import Settings, load_settings

WORKERS = 4
SHARDS = 2
FAST_GBIT = 5.0
SLOW_GBIT = 0.5
LOG_BYTES = 1 << 30
"""Bytes of events that a demo with a rate keeps, over all partitions: a quarter of an hour at the default rate."""


def demo_settings(
    config: Path | None,
    overrides: Iterable[str],
    defaults: Mapping[str, Any],
    keep_all: bool,
    own_topics: bool = False,
) -> Settings:
    """Settings of a demo; its defaults depend on folder, workers and partitions, which the user may set.

    own_topics: topics are named after the run, because others may use the same broker.
    """
    chosen = list(overrides)
    fixed = {**defaults, "ps": {"shards": SHARDS}}
    # Links must match the number of workers, which is only known once settings are loaded without them.
    first = load_settings(
        config, [*chosen, "dispatch.links_gbit=", "dispatch.uplinks_gbit="], {**fixed, "dispatch": {"workers": WORKERS}}
    )
    workers = first.dispatch.workers
    links = (FAST_GBIT,) * (workers - workers // 2) + (SLOW_GBIT,) * (workers // 2)
    stream: dict[str, Any] = {"schema_name": "synthetic", "folder": first.folder / "log"}
    if own_topics:
        stream |= {"topic": f"{first.run}-clicks", "dead_letter_topic": f"{first.run}-dead-letters"}
    if not keep_all:
        stream["retention_bytes"] = LOG_BYTES // first.stream.partitions
    return up_settings(
        config, chosen, {**fixed, "stream": stream, "dispatch": {"workers": WORKERS, "links_gbit": links}}
    )
