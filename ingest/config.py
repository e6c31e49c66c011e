"""Settings of the stream: where events come from, what they look like, how batches are formed."""

from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator, model_validator

from infra.base.config import Section
from infra.base.errors import ConfigError
from infra.base.plugins import SOURCES, find_plugin

SOURCE_NAMES = ("log", "kafka")


class StreamConfig(Section):
    """The ``[stream]`` section."""

    source: str = "log"
    """Where events come from: the embedded log of this machine (log), or Kafka (kafka, with the section [kafka]); or a
    source of your own, by the name of an entry point or as module:Name.
    """
    topic: str = Field("clicks", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")
    """Name of the topic that carries the events."""
    dead_letter_topic: str = Field("dead-letters", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")
    """Name of the topic that receives rejected events."""
    folder: Path = Path("runs/log")
    """Folder of the embedded log; every topic is a folder inside it."""
    partitions: int = Field(2, ge=1, le=1024)
    """Number of partitions of a new topic."""
    schema_name: str = "synthetic"
    """A built-in schema (criteo, avazu, movielens, synthetic) or the path of a TOML file."""
    crosses: bool = True
    """Whether samples have the keys of the schema's crosses."""
    batch: int = Field(512, ge=1, le=1_000_000)
    """Samples of one batch, over all workers."""
    first_batch: int = Field(32, ge=0, le=1_000_000)
    """Samples of the first batches of a run; later ones grow up to stream.batch, since small batches learn faster from
    few samples. 0: every batch has stream.batch samples.
    """
    batch_growth: int = Field(64, ge=1, le=1_000_000)
    """How fast batches grow: after n samples the next batch has n / batch_growth, but not fewer than first_batch."""
    linger_seconds: float = Field(1.0, ge=0)
    """How long a partial batch waits for more events before it is trained as it is."""
    prefetch: int = Field(4, ge=1, le=1024)
    """Batches that the loader keeps ready; it stops reading while that many are waiting."""
    read_bytes: int = Field(1 << 20, ge=1024)
    """Bytes requested from a partition in one read."""
    on_out_of_range: Literal["stop", "earliest", "newest"] = "stop"
    """What to do if retention has removed the next record: stop, or continue at the oldest or the newest record."""
    on_absent_field: Literal["warn", "stop"] = "warn"
    """What to do if none of many events has a field of the schema: warn, or stop, before any of them is trained if they
    are already there at the start.
    """
    absent_window: int = Field(1000, ge=1)
    """Number of events in which a field must be missing to be reported."""
    lag_policy: Literal["catch_up", "skip_to_newest"] = "catch_up"
    """What to do if training falls behind: read everything, or skip to the newest record."""
    lag_bound: int = Field(1_000_000, ge=1)
    """Events that may wait in the topic before skip_to_newest skips them."""
    segment_bytes: int = Field(64 << 20, ge=4096)
    """Size at which the embedded log starts a new segment file."""
    retention_bytes: int | None = Field(None, ge=4096)
    """Bytes that a partition of either topic may keep; beyond that, whole old segments are removed. Not set: keeps
    everything.
    """
    retention_cap_bytes: int | None = Field(None, ge=4096)
    """Bytes that a partition may keep if a run may have to read them again because they are newer than its oldest
    checkpoint; beyond that even those are removed, with a warning. Not set: four times retention_bytes.
    """

    @field_validator("source")
    @classmethod
    def _check_source(cls, source: str) -> str:
        if source not in SOURCE_NAMES:
            find_plugin("source", SOURCES, source, SOURCE_NAMES)
        return source

    @property
    def is_plugged(self) -> bool:
        """Whether the source is not one of Freshet's own."""
        return self.source not in SOURCE_NAMES

    @property
    def skip_above(self) -> int | None:
        """The lag above which events are skipped; None: never."""
        return self.lag_bound if self.lag_policy == "skip_to_newest" else None

    @model_validator(mode="after")
    def check_topics(self) -> "StreamConfig":
        if self.topic == self.dead_letter_topic:
            raise ConfigError(
                f"topic and dead_letter_topic are both {self.topic!r}: rejected events would be read as events; "
                "expected two names; change one"
            )
        return self
