"""Settings of the stream: where events come from, what they look like, how batches are formed."""

from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from infra.base.config import Section
from infra.base.errors import ConfigError


class StreamConfig(Section):
    """The ``[stream]`` section."""

    source: Literal["log", "kafka"] = "log"
    """Where events come from: the embedded log of this machine, or Kafka ([kafka])."""
    topic: str = Field("clicks", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")
    """Name of the topic that carries the events."""
    dead_letter_topic: str = Field("dead-letters", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")
    """Name of the topic that receives rejected events."""
    folder: Path = Path("runs/log")
    """Folder of the embedded log; every topic is a folder inside it."""
    partitions: int = Field(2, ge=1, le=1024)
    """Partitions a new topic is created with."""
    schema_name: str = "synthetic"
    """A built-in schema (criteo, avazu, movielens, synthetic) or the path of a TOML file."""
    batch: int = Field(512, ge=1, le=1_000_000)
    """Samples of one batch, over all workers."""
    linger_seconds: float = Field(1.0, ge=0)
    """How long a partial batch waits for more events before it goes out as it is."""
    prefetch: int = Field(4, ge=1, le=1024)
    """Batches the loader keeps ready; when they are not taken it stops reading."""
    read_bytes: int = Field(1 << 20, ge=1024)
    """Bytes asked of a partition in one read."""
    on_out_of_range: Literal["stop", "earliest", "newest"] = "stop"
    """Where to go on when retention has removed what comes next: nowhere, or at the oldest or the newest record."""
    on_absent_field: Literal["warn", "stop"] = "warn"
    """What to do when none of many events has a field of the schema: warn, or stop, before any of them is trained if
    they are there at the start."""
    absent_window: int = Field(1000, ge=1)
    """How many events that is."""
    lag_policy: Literal["catch_up", "skip_to_newest"] = "catch_up"
    """What to do when training falls behind: read everything, or leave out what is older than the newest record."""
    lag_bound: int = Field(1_000_000, ge=1)
    """Events that may wait in the topic before skip_to_newest leaves them out."""
    segment_bytes: int = Field(64 << 20, ge=4096)
    """Size at which the embedded log starts a new segment file."""
    retention_bytes: int | None = Field(None, ge=4096)
    """Bytes a partition of either topic may keep; whole old segments beyond it are removed. None keeps everything."""
    retention_cap_bytes: int | None = Field(None, ge=4096)
    """Bytes a partition may keep where a run may have to read them again, behind its oldest checkpoint; beyond them
    even those are removed, with a warning. None: four times retention_bytes."""

    @property
    def skip_above(self) -> int | None:
        """The lag above which events are left out; None: never."""
        return self.lag_bound if self.lag_policy == "skip_to_newest" else None

    @model_validator(mode="after")
    def check_topics(self) -> "StreamConfig":
        if self.topic == self.dead_letter_topic:
            raise ConfigError(
                f"topic and dead_letter_topic are both {self.topic!r}: rejected events would be read as events; "
                "expected two names; change one"
            )
        return self
