"""Whether a command can be carried out, and what it sets, in normal form."""

from collections.abc import Sequence
from dataclasses import replace
from math import isfinite

from dispatch.control.protocol import Command
from dispatch.errors import CommandRefused, DispatchError
from dispatch.job import DispatchJob, check_job
from dispatch.journal.desired import AUTO, NONE, Desired, ShareLimits, parse_shares
from dispatch.peers.roster import Roster
from dispatch.placement.capacity.bounds import ShareBounds
from dispatch.placement.capacity.room import check_cache
from dispatch.placement.errors import PlacementError
from dispatch.placement.policies.registry import parse_spec
from infra.base.errors import ConfigError

FASTEST_GBIT = 1e6
MOST_EVENTS = 10**15


class CommandCheck:
    """Looks at commands to one run."""

    def __init__(self, job: DispatchJob, roster: Roster) -> None:
        self._job = job
        self._roster = roster

    def value(self, command: Command, desired: Desired) -> str:
        """What a command sets, in normal form; raises CommandRefused if it cannot be carried out.

        desired: what is wanted so far.
        """
        match command.verb:
            case "drain" | "remove":
                self._check_leaving(command.worker)
            case "alpha":
                return self._alpha(command.value, desired)
            case "policy":
                return self._policy(command.value)
            case "deadline":
                return _one_of(command, "true", "false")
            case "skip_above":
                return _skip_above(command.value)
            case "link":
                self._check_known(command.worker)
                return _link(command.value)
            case "shares":
                self._check_known(command.worker)
                return self._shares(command, desired)
        return ""

    def _names(self) -> list[str]:
        return [member.name for member in self._roster.everyone]

    def _check_known(self, worker: str) -> None:
        names = self._names()
        if worker not in names:
            raise CommandRefused(f"there is no worker {worker!r}; expected one of {', '.join(sorted(names)) or 'none'}")

    def _check_leaving(self, worker: str) -> None:
        self._check_known(worker)
        if not [name for name in self._names() if name != worker and not self._roster.is_leaving(name)]:
            raise CommandRefused(f"worker {worker!r} is the last one; expected another that stays; add one first")

    def _alpha(self, written: str, desired: Desired) -> str:
        value = _alpha(written)
        policy = desired.policy or self._job.dispatch.policy
        most = parse_spec(policy).needs.alpha
        if value != AUTO and float(value) > most:
            raise CommandRefused(
                f"alpha cannot be {value}: policy {policy!r} has {most:g}, the most that it solves exactly; expected "
                "no more than that; set a policy with more first"
            )
        return value

    def _policy(self, written: str) -> str:
        try:
            spec = parse_spec(written)
            workers = max(self._job.dispatch.workers, len(self._names()))
            update = {"policy": str(spec), "workers": workers}
            asked = replace(self._job, dispatch=self._job.dispatch.model_copy(update=update))
            check_job(asked, spec.needs.elastic, spec.needs.hot_share)
        except (ConfigError, DispatchError, PlacementError) as error:
            raise CommandRefused(f"the policy stays as it is: {error}") from error
        return str(spec)

    def _shares(self, command: Command, desired: Desired) -> str:
        policy = desired.policy or self._job.dispatch.policy
        if not parse_spec(policy).needs.elastic:
            raise CommandRefused(
                f"shares cannot be bounded: policy {policy!r} gives all workers equal shares; expected one that ends "
                "in :elastic; set another policy first"
            )
        try:
            shares = parse_shares(command.value)
        except ValueError as error:
            raise CommandRefused(
                f"shares cannot be {command.value!r}; expected LEAST:LARGEST in equal shares of the batch, as in 0.5:2"
            ) from error
        self._check_bounds(replace_shares(desired, command.worker, shares))
        return f"{shares.least:g}:{shares.largest:g}"

    def _check_bounds(self, desired: Desired) -> None:
        job = self._job
        names = [member.name for member in self._roster.members] or self._names()
        try:
            bounds = wanted_bounds(job.dispatch.share_bounds, desired, names)
            check_cache(job.dispatch.cache_rows, job.stream.batch, len(names), job.schema.fields, bounds)
        except (ConfigError, DispatchError, PlacementError) as error:
            raise CommandRefused(f"shares stay as they are: {error}") from error


def wanted_bounds(configured: ShareBounds, desired: Desired, names: Sequence[str]) -> ShareBounds:
    """Bounds of these workers; raises ConfigError if they hold no batch."""
    least_n, largest_n = (list(map(float, shares)) for shares in configured.of(len(names)))
    for number, name in enumerate(names):
        if (own := desired.shares.get(name)) is not None:
            least_n[number], largest_n[number] = own.least, own.largest
    bounds = ShareBounds(tuple(least_n), tuple(largest_n))
    bounds.check(len(names))
    return bounds


def replace_shares(desired: Desired, worker: str, shares: ShareLimits) -> Desired:
    """The same with bounds of one worker."""
    return Desired(policy=desired.policy, shares={**desired.shares, worker: shares})


def _number(written: str) -> float:
    """NaN for what is no finite number."""
    try:
        number = float(written)
    except ValueError:
        return float("nan")
    return number if isfinite(number) else float("nan")


def _alpha(written: str) -> str:
    alpha = _number(written)
    if written == AUTO:
        return AUTO
    if not 0.0 <= alpha <= 1.0:
        raise CommandRefused(f"alpha cannot be {written!r}; expected a number from 0 to 1, or {AUTO}")
    return f"{alpha:g}"


def _link(written: str) -> str:
    gbit = _number(written)
    if not 0.0 <= gbit <= FASTEST_GBIT:
        raise CommandRefused(
            f"a link cannot have {written!r} Gbit/s; expected a number from 0 (not known) to {FASTEST_GBIT:g}"
        )
    return f"{gbit:g}"


def _skip_above(written: str) -> str:
    if written == NONE:
        return NONE
    events = int(written) if written.isascii() and written.isdecimal() and len(written) <= 15 else 0
    if not 1 <= events <= MOST_EVENTS:
        raise CommandRefused(
            f"events cannot be left out above {written!r}; expected a whole number from 1 to {MOST_EVENTS}, or {NONE}"
        )
    return str(events)


def _one_of(command: Command, *allowed: str) -> str:
    if command.value not in allowed:
        raise CommandRefused(f"{command.verb} cannot be {command.value!r}; expected {' or '.join(allowed)}")
    return command.value
