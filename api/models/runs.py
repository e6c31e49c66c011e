"""Runs, what may be changed about them, and the results of changes."""

import json
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, StringConstraints, computed_field, model_validator

from api.models.fields import EARLIER_CURSOR, Gbit, ProcessName
from dispatch.commands.desired import ShareLimits
from dispatch.commands.link import LinkCommand
from dispatch.commands.protocol import Outcome
from dispatch.commands.registry import COMMANDS, shown_value
from dispatch.commands.spec import ShownValue
from dispatch.commands.supervision import ADD
from infra.web.answers import Answer, Body, Reason


class SharesReading(Answer):
    """Bounds of one worker's part of a batch, in equal shares."""

    least: float
    largest: float


CommandValue = SharesReading | float | bool | str | None
"""The value of a command. alpha: a number, or auto; policy: as in dispatch.policy; deadline: whether there is one;
skip_above: events, or none; link: Gbit/s.
"""


class RunOutline(Answer):
    """A run in a list."""

    name: str
    state: str
    """waiting, replaying, training, paused, draining or done while its dispatcher answers; starting before it has
    answered for the first time; otherwise silent, stopped or ended.
    """
    cursor: int
    """End of its journal, which is also the ETag."""
    step: int | None
    samples: int | None
    is_here: bool
    """Whether its folder is here; of others, there is the history alone."""

    @computed_field(**EARLIER_CURSOR)
    def version(self) -> int:
        return self.cursor


class RunDetails(RunOutline):
    """A run as its dispatcher last described it."""

    folder: str
    topic: str
    status: dict[str, Any] | None
    """The status that the dispatcher published last; null before the first one."""
    is_live: bool
    """Whether the status is at most a few seconds old."""


class NewRun(Body):
    """A run to start."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"name": "clicks", "settings": {"dispatch.workers": 2}}]})

    name: ProcessName
    settings: Annotated[
        dict[
            Annotated[str, StringConstraints(pattern=r"^[a-z_]+(\.[a-z_]+)?$", max_length=64)],
            int | float | bool | Annotated[str, StringConstraints(max_length=1000)],
        ],
        Field(default_factory=dict, max_length=200, description="Values by setting; text as in --set."),
    ]

    def as_text(self) -> dict[str, str]:
        """The settings as ``--set`` takes them."""
        return {name: value if isinstance(value, str) else json.dumps(value) for name, value in self.settings.items()}


class StartedRun(Answer):
    """A run that is being started."""

    name: str


class Why(Body):
    """A command without a value."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"reason": "maintenance of the links"}]})

    reason: Reason


class SetAlpha(Body):
    """The α to use from the next step on."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"value": 0.25, "reason": "the GPU is shared today"}]})

    value: Annotated[float, Field(ge=0, le=1)] | Literal["auto"]
    reason: Reason


class AlphaReading(Answer):
    """The share that is solved exactly, and why."""

    set_value: float | None
    """Value set by a person; null: the dispatcher decides."""
    value: float | None
    """Value in force at the newest step; null: not known yet."""
    mode: Literal["fixed", "manual", "auto"]
    """fixed: as the policy says; manual: a person's value; auto: the dispatcher adjusts it to contention."""
    backend: str | None
    """Where exact assignment runs: cpu or cuda; null: not known yet."""
    reason: str
    """Reason for the last change."""
    readings: dict[str, float | None]
    """Readings that the dispatcher's last decision was based on."""
    changed_at: float | None
    """Time of the last change, in seconds since 1970."""


class ChangeSettings(Body):
    """One setting to change during the run."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"policy": "joint:elastic", "reason": "links differ"}]})

    policy: Annotated[str, StringConstraints(min_length=1, max_length=100)] | None = None
    """As dispatch.policy."""
    deadline: bool | None = None
    """Whether decisions that would take longer than a step are shortened."""
    skip_above: Annotated[int, Field(ge=1, le=1 << 60)] | Literal["none"] | None = None
    """Lag in events above which the oldest are skipped; "none": never."""
    reason: Reason

    @model_validator(mode="after")
    def _one(self) -> "ChangeSettings":
        _check_one(self, "policy", "deadline", "skip_above")
        return self


class EffectiveSettings(Answer):
    """Settings of a run, with secrets masked."""

    started_with: dict[str, Any]
    """Settings at the start of the run."""
    changed: dict[str, CommandValue]
    """The newest value of every setting that was changed during the run."""


class AddWorker(Body):
    """A worker to start on the machine of the run's supervisor."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"name": "worker-7", "link_gbit": 0.5}]})

    name: ProcessName | None = None
    """Name of the worker; by default the next free one."""
    link_gbit: Gbit | None = None
    uplink_gbit: Gbit | None = None
    """Speed of what it sends; null: that of its link."""
    reason: Reason

    @model_validator(mode="after")
    def _both(self) -> "AddWorker":
        _check_uplink(self.link_gbit, self.uplink_gbit)
        return self


class Shares(Body):
    """How many samples of a batch a worker may get, in equal shares."""

    least: Annotated[float, Field(ge=0, le=1000)]
    largest: Annotated[float, Field(ge=0, le=1000)]

    @model_validator(mode="after")
    def _order(self) -> "Shares":
        if self.least > self.largest:
            raise ValueError("least is above largest")
        return self


class ChangeWorker(Body):
    """One thing to change about a worker."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"link_gbit": 0.5, "reason": "moved to the new switch"}]})

    link_gbit: Gbit | Literal["unknown"] | None = None
    uplink_gbit: Gbit | None = None
    """Given with link_gbit: the speed of what it sends; null: that of its link."""
    shares: Shares | None = None
    reason: Reason

    @model_validator(mode="after")
    def _one(self) -> "ChangeWorker":
        _check_one(self, "link_gbit", "shares")
        _check_uplink(self.link_gbit, self.uplink_gbit)
        return self


def _check_uplink(link_gbit: float | str | None, uplink_gbit: float | None) -> None:
    if uplink_gbit is not None and not isinstance(link_gbit, float):
        raise ValueError("uplink_gbit is given without the speed of the link; expected link_gbit, too")


def _check_one(body: Body, *names: str) -> None:
    """Checks that exactly one is given: each change is a separate command, which succeeds or fails on its own."""
    given = [name for name in names if getattr(body, name) is not None]
    if len(given) != 1:
        raise ValueError(
            f"{len(given)} of {', '.join(names)} are given; expected exactly one; send one request for each"
        )


class GiveCommand(Body):
    """A command by its name."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"verb": "link", "worker": "worker-3", "value": 0.5, "reason": "a new switch"}]}
    )

    verb: Annotated[str, Field(json_schema_extra={"enum": list(COMMANDS)})]
    worker: ProcessName | None = None
    """The worker that it concerns; null: the whole run."""
    value: Shares | int | float | bool | Annotated[str, StringConstraints(max_length=100)] | None = None
    """The value that it sets, in the same form as in answers; null: none."""
    reason: Reason

    def shown_value(self) -> ShownValue:
        value = self.value
        return ShareLimits(value.least, value.largest) if isinstance(value, Shares) else value


class WorkerReading(Answer):
    """One worker of a run."""

    name: str
    state: str
    """waiting, training, parked, draining or lost; away: it does not take part now; unknown: the dispatcher does not
    say.
    """
    process: str | None
    """State in its supervisor's view; null: not supervised here."""
    link_gbit: float | None
    """Configured speed of the link; null: not limited or not known."""
    uplink_gbit: float | None
    """Configured speed of the uplink; null: that of the link."""
    measured_gbit: float | None
    measured_uplink_gbit: float | None
    is_parked: bool
    share: float | None
    """Share of the samples trained so far."""
    seconds: dict[str, float]
    """Seconds of the latest steps, by phase."""
    traffic: dict[str, int]
    """Samples, rows and bytes by kind, since the start of the run."""


class CommandReading(Answer):
    """A command and its result."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "id": "1c5a0f6ad1c94c0c8c9b2f5d4c8f9a10",
                    "run": "clicks",
                    "verb": "alpha",
                    "worker": None,
                    "value": 0.25,
                    "expected": None,
                    "actor": "ann",
                    "reason": "the GPU is shared today",
                    "state": "done",
                    "outcome": "accepted",
                    "text": "alpha is 0.25 from step 813 on",
                    "cursor": 911,
                    "version": 911,
                    "created_at": 1763251200.0,
                    "done_at": 1763251200.02,
                }
            ]
        }
    )

    id: str
    run: str
    verb: str
    worker: str | None
    """The worker that it concerns; null: none."""
    value: CommandValue
    """The value that it sets; null: none."""
    expected: int | None
    """The cursor that it was given at; null: any."""
    actor: str
    reason: str
    state: Literal["pending", "done", "refused"]
    outcome: Outcome | None
    """accepted; refused; outdated: something was changed after the cursor it was given at; null: not answered yet."""
    text: str
    """The answer, for people."""
    cursor: int | None
    """Cursor of the command in the journal; null: it is not there."""
    created_at: float
    done_at: float | None

    @computed_field(**EARLIER_CURSOR)
    def version(self) -> int | None:
        return self.cursor

    @model_validator(mode="before")
    @classmethod
    def _read(cls, stored: Any) -> Any:
        """Replaces the texts and numbers of the database by typed values."""
        if isinstance(stored, dict):
            return stored
        return {name: getattr(stored, name) for name in cls.model_fields} | {
            "worker": stored.worker or None,
            "value": value_of(stored.verb, stored.value),
            "expected": None if stored.expected < 0 else stored.expected,
        }


def value_of(verb: str, written: str) -> CommandValue:
    """The value that a command sets, as recorded; if it cannot be parsed, as in a refused command, it stays text."""
    value = shown_value(LinkCommand.name if verb == ADD else verb, written)  # for add, the value is its link's speed
    return SharesReading.model_validate(value) if isinstance(value, ShareLimits) else value
