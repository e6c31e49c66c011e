"""Settings of the dispatcher: how it decides, with how many workers, over which links."""

import math
from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator, model_validator

from dispatch.placement.assign.choices import OptBackend
from dispatch.placement.capacity.bounds import LARGEST_SHARE, LEAST_SHARE, ShareBounds
from dispatch.placement.policies.registry import parse_spec
from infra.base.config import PRIVATE, Section, check_endpoint
from infra.base.errors import ConfigError
from infra.base.link_gbit import LinkGbit
from ingest.schema import Schema
from ps.phases import MOST_WORKERS


class QualityConfig(Section):
    """The ``[quality]`` section: what is measured of the predictions that are made before training."""

    slices: tuple[str, ...] = Field((), max_length=8)
    """Tables of the schema, of one value each, by whose most frequent values quality is also measured."""
    slice_values: int = Field(8, ge=1, le=32)
    """Values of each of them that are shown, the most frequent ones."""
    window_samples: int = Field(16_384, ge=256, le=2**40)
    """Samples of a window of quality over time; windows become longer when there are more than 64."""

    label_change: float = Field(0.25, ge=0.0, le=10.0, allow_inf_nan=False)
    """Relative change of the click rate that raises an alarm: 0.25 is a rise from 4 to 5 %, or a fall from 4 to 3 %.
    0: none does.
    """
    field_change: float = Field(0.3, ge=0.0, le=1.0)
    """Jensen-Shannon distance between the values of a table in two neighbouring windows that raises an alarm, from 0
    (equal) to 1 (nothing in common). 0: none does.
    """

    def places(self, schema: Schema) -> dict[str, int]:
        """Where the keys of the sliced tables are in a sample; raises ConfigError if the schema has no such table."""
        single = [table.name for table in schema.tables if table.values == 1]
        if wrong := [name for name in self.slices if name not in single]:
            raise ConfigError(
                f"quality.slices names {', '.join(wrong)}; expected tables of schema {schema.name!r} with one value: "
                f"{', '.join(single)}; correct quality.slices"
            )
        return {name: schema.columns.index(name) for name in self.slices}


class MemoryConfig(Section):
    """The ``[memory]`` section: which keys are worth a row."""

    expire_steps: int = Field(0, ge=0, lt=2**31)
    """Steps without a sample of a key after which it is forgotten, with its row; a sixteenth later at most. If it comes
    again, it starts anew. 0: no key is ever forgotten.
    """
    expire_hours: float = Field(0.0, ge=0.0, le=1e6, allow_inf_nan=False)
    """Instead of that: the hours after which it is forgotten, by the times of events. 0: never."""
    admit_after: int = Field(1, ge=1, le=255)
    """The sample with which a key gets a row: 3 is the third that has the key. Until then it is rare, and the rare keys
    of a field share one row. 1: every key gets a row at once.
    """
    admit_share: float = Field(1.0, gt=0.0, le=1.0)
    """Instead of that: the probability with which a key gets a row in a step that has it. 1: every key gets one at
    once.
    """
    filter_mb: int = Field(64, ge=1, le=65_536)
    """Memory in which the dispatcher counts keys without a row, in MiB, if admit_after is above 1. A MiB remembers
    about the last 130,000 samples of such keys.
    """
    budget_mb: float = Field(0.0, ge=0.0, le=1e9, allow_inf_nan=False)
    """Memory for chunks of rows on all shards together, in MiB, with the optimizer's state: the least useful chunks are
    pruned, see rows.chunks. Besides that a shard needs some bytes for every known key. 0: no limit.
    """
    prune_share: float = Field(0.0, ge=0.0, lt=1.0)
    """Instead of that: the share of all chunks that is pruned. 0: none."""
    prune_steps: int = Field(1000, ge=1, lt=2**31)
    """Steps after which it is decided again which chunks are pruned."""
    prune_shape: str = "dynamic"
    """How much is pruned of the first chunks of rows, the second ones and so on: 'dynamic' compares all chunks with
    each other; 'linear', 'power:A' or a number for each, separated by commas, give the relation of their pruned shares.
    """
    prune_spare: float = Field(0.1, ge=0.0, lt=1.0)
    """Share of the budget that is left free for new keys each time; a key that comes when there is none left begins
    with all chunks pruned.
    """
    prune_enforce: float = Field(0.01, ge=0.0, le=1.0)
    """Share of the chunks that must be on the wrong side of the threshold before any is pruned."""
    columns: float = Field(1.0, gt=0.0, le=1.0)
    """Share of the embedding columns that all rows keep, in each chunk those with the largest gradients so far, decided
    once, after prune_steps steps: the same memory then holds more chunks. 1: all.
    """

    @model_validator(mode="after")
    def _check_choices(self) -> "MemoryConfig":
        if self.expire_steps and self.expire_hours:
            raise ConfigError(
                f"keys cannot be forgotten both after {self.expire_steps} steps and after {self.expire_hours:g} hours; "
                "expected one of the two; set memory.expire_steps or memory.expire_hours to 0"
            )
        if self.admit_after > 1 and self.admit_share < 1.0:
            raise ConfigError(
                f"keys cannot be admitted both after {self.admit_after} samples and with probability "
                f"{self.admit_share:g}; expected one of the two; set memory.admit_after or memory.admit_share to 1"
            )
        if self.budget_mb and self.prune_share:
            raise ConfigError(
                f"chunks cannot be pruned both to {self.budget_mb:g} MiB and by a share of {self.prune_share:g}; "
                "expected one of the two; set memory.budget_mb or memory.prune_share to 0"
            )
        return self

    def check_expiry(self, lookahead: int) -> None:
        """Raises ConfigError if keys would be forgotten while steps that use them are under way."""
        if 0 < self.expire_steps <= lookahead + 1:
            raise ConfigError(
                f"keys cannot be forgotten after {self.expire_steps} steps while {lookahead + 1} are under way; "
                "expected more steps, or 0 to keep them all; raise memory.expire_steps, or lower dispatch.lookahead"
            )

    @property
    def filter_bytes(self) -> int:
        """The largest power of two within filter_mb."""
        return 1 << ((self.filter_mb << 20).bit_length() - 1)


class DispatchConfig(Section):
    """The ``[dispatch]`` section."""

    policy: str = "esd:1"
    """Which worker trains which sample: random, round_robin, laia, laia_adaptive, het, fae:SHARE:PROFILE_STEPS,
    esd:ALPHA:CRITERION, joint:ROUNDS:ALPHA; the last two may end in :elastic, which gives workers behind slow links
    fewer samples, and then in :hot, which replicates rows in a ring where that costs less.
    Or one of your own, by the name of an entry point or as module:Name, and its parameters."""
    alpha: Literal["auto", "fixed"] | None = None
    """Who sets the share of exact solving: the policy (fixed), or the dispatcher by how contended the machine is
    (auto), up to the policy's alpha. A value set by a person during the run takes precedence. Not set: auto if the
    dispatcher finds a GPU and cupy, fixed otherwise.
    """
    alpha_dwell_seconds: float = Field(10.0, ge=0.1, le=86_400.0, allow_inf_nan=False)
    """Least time between two changes of alpha that the dispatcher makes by itself. If an increase has to be undone, the
    wait before the next one doubles, up to 32 times this.
    """
    opt_backend: OptBackend = "auto"
    """Where exact assignment runs: on the CPU, on a GPU (cuda, or hungarian, the papers' method, which is slow), or
    where it is faster, measured at start (auto). Without a GPU and cupy, auto uses the CPU: if alpha is not set either,
    decisions are then the same bit for bit as with cpu and fixed; cuda and hungarian are refused.
    """
    threads: int = Field(0, ge=0, le=256)
    """Threads among which the dispatcher divides a decision for several workers; 0: half of the cores that
    are not dealt out to workers on the CPU, at most 8, if OpenMP is installed (libgomp), and one if not. More than
    there are cores are never used. No decision depends on it.
    """
    workers: int = Field(4, ge=1, le=MOST_WORKERS)
    """Workers that the first generation waits for."""
    cache_rows: int = Field(65_536, ge=1, lt=2**31)
    """Rows that each worker's cache holds; at least as many as one micro-batch uses."""
    eviction: Literal["lru", "lfu", "emark"] = "emark"
    """Which rows leave a full cache first: the longest unused, the least often used, or those with the lowest mark."""
    links_gbit: tuple[float, ...] = ()
    """Speed of each worker's link in Gbit/s; empty: all equal and not shaped."""
    uplinks_gbit: tuple[float, ...] = ()
    """Speed of each worker's uplink in Gbit/s, if dispatch.links_gbit says that of its downlink alone; empty: both
    directions are equally fast.
    """
    link_costs: Literal["auto", "configured", "measured"] = "auto"
    """Where the cost of a link comes from: the speed that its worker is configured with, or its measured transfers.
    auto: measured if no worker has a configured speed and the policy is elastic, which depends on measured times
    anyway.
    """
    probe_seconds: float = Field(30.0, ge=0, le=86_400)
    """Longest time between two measurements of the link of a worker without samples, by fetching and sending 64 KiB.
    They are made only if link costs are measured. 0: none are made, and such a worker counts as being as fast as it
    last was.
    """
    least_share: tuple[float, ...] = ()
    """Fewest samples that an elastic policy gives a worker, in equal shares of the batch; one number for all workers or
    one for each. A worker with 0 may be parked: it gets no samples while the others are faster without it; a larger
    number forbids that. Empty: 0.
    """
    largest_share: tuple[float, ...] = (LARGEST_SHARE,)
    """Most samples that an elastic policy gives a worker, in the same unit."""
    choose: Literal["clock", "model", "off"] = "clock"
    """How an elastic policy chooses who takes part: by measured steps (clock), where sets that a model proposes are
    tried and kept if their steps are faster; by the model alone (model); or everyone takes part (off).
    """
    endpoint: str = "tcp://127.0.0.1:*"
    """Where the dispatcher listens for workers; the port * means any free port."""
    status_endpoint: str = "tcp://127.0.0.1:*"
    """Where the dispatcher publishes its status."""
    control_endpoint: str = PRIVATE
    """Where the dispatcher takes commands (membership, pause, resume, stop, settings). private: a Unix socket that only
    the owner of the run can reach. If the API is on another machine, in another container or run by another user, set
    tcp://HOST:PORT, with keys.
    """
    feed_endpoint: str = PRIVATE
    """Where the dispatcher sends its journal to the control plane, record by record, and announces new snapshots to
    servers; private or tcp://HOST:PORT, as above.
    """
    journal_bytes: int = Field(256 << 20, ge=0)
    """Bytes of journal kept on disk for a control plane that has not read it yet; what a recovery
    needs is always kept.
    """
    journal_topic: str = Field("", pattern=r"^[a-zA-Z0-9._-]{0,249}$")
    """Topic on Kafka in which every record of the journal is written, too, before anybody acts on it: 'freshet restore'
    makes the run's folder from it, on another machine. It is created if it is missing. Empty: the folder has the only
    copy.
    """
    lookahead: int = Field(1, ge=0, le=16)
    """Steps decided and ordered ahead of the one that is being trained."""
    deadline: bool = False
    """Whether decisions that would take longer than a step are shortened. If false, no decision depends on the clock,
    except those of elastic policies.
    """
    silence_seconds: float = Field(5.0, gt=0, le=86_400)
    """How long a worker or a shard may be silent before it counts as lost because its process is stopped or its network
    is down. A busy process is not silent: its signs of life do not depend on what it is doing. Must be less than
    trainer.pull_timeout_seconds, so that the lost process is the one that is named.
    """
    replace_seconds: float = Field(60.0, gt=0)
    """How long to wait for the replacement of a lost worker. After that the others continue without it, and the steps
    since the last checkpoint are decided again.
    """
    report_seconds: float = Field(120.0, gt=0)
    """How long a step's reports may take before its workers count as lost."""
    drain_seconds: float = Field(30.0, gt=0)
    """The same as report_seconds, once a stop has been requested."""

    @field_validator("policy")
    @classmethod
    def _check_policy(cls, policy: str) -> str:
        return str(parse_spec(policy))

    @field_validator("endpoint", "status_endpoint")
    @classmethod
    def _check_endpoint(cls, endpoint: str) -> str:
        return check_endpoint(endpoint)

    @field_validator("control_endpoint", "feed_endpoint")
    @classmethod
    def _check_private_endpoint(cls, endpoint: str) -> str:
        return check_endpoint(endpoint, may_be_private=True)

    @model_validator(mode="after")
    def _check_links(self) -> "DispatchConfig":
        wrong_speed = any(not math.isfinite(link) or link <= 0 for link in self.links_gbit)
        if wrong_speed or len(self.links_gbit) not in (0, self.workers):
            raise ConfigError(
                f"link speeds cannot be used; got {self.links_gbit} for {self.workers} workers; expected one finite "
                f"speed above 0 Gbit/s per worker, or none; correct dispatch.links_gbit or dispatch.workers"
            )
        wrong_uplink = any(not math.isfinite(link) or link <= 0 for link in self.uplinks_gbit)
        if wrong_uplink or len(self.uplinks_gbit) not in (0, len(self.links_gbit)):
            raise ConfigError(
                f"uplink speeds cannot be used; got {self.uplinks_gbit} beside the links {self.links_gbit}; expected "
                f"one finite speed above 0 Gbit/s per link, or none; correct dispatch.uplinks_gbit or links_gbit"
            )
        self.share_bounds.check(self.workers)
        return self

    @property
    def links(self) -> tuple[LinkGbit, ...]:
        """Speed of each worker's link in either direction; empty: not given."""
        uplinks = self.uplinks_gbit or self.links_gbit
        return tuple(map(LinkGbit, self.links_gbit, uplinks))

    @property
    def share_bounds(self) -> ShareBounds:
        return ShareBounds(self.least_share or (LEAST_SHARE,), self.largest_share)

    def with_sockets(self, folder: Path) -> "DispatchConfig":
        """Returns a copy with the addresses of private sockets, which are in this folder."""
        names = {"control_endpoint": "control", "feed_endpoint": "feed"}
        private = {each: f"ipc://{folder / name}" for each, name in names.items() if getattr(self, each) == PRIVATE}
        return self.model_copy(update=private)

    def check_parking(self) -> None:
        """Raises ConfigError if workers may be parked but the policy never parks anyone.

        Not checked with the others, because the policy may be a default that is replaced later.
        """
        if 0 in self.least_share and not parse_spec(self.policy).needs.elastic:
            raise ConfigError(
                f"no worker can be parked; dispatch.least_share is {self.least_share} and policy {self.policy!r} gives "
                f"all workers equal shares; expected a policy that ends in :elastic; correct dispatch.policy, or unset "
                f"dispatch.least_share"
            )
