"""What people want of a run follows from the records alone, however often and from wherever they are read."""

import random

import msgspec

from dispatch.commands.desired import Desired, ShareLimits
from dispatch.journal.desired import desired_after, desired_after_all
from dispatch.journal.records import AlphaChanged, AnyRecord, Commanded, GenerationStarted, Stopped


def told(verb: str, worker: str = "", value: str = "") -> Commanded:
    return Commanded("k", verb, worker, 7, "", value)


def started(*members: str) -> GenerationStarted:
    return GenerationStarted(2, members, True, 0, None, "members changed")


def test_the_newest_of_each_counts() -> None:
    records = [
        told("alpha", value="0.25"),
        told("policy", value="laia"),
        told("alpha", value="0.5"),
        told("deadline", value="true"),
        told("skip_above", value="none"),
        told("link", "w-0", "0.5"),
        told("link", "w-1", "0"),
        told("link", "w-0", "2"),
        told("shares", "w-1", "0.5:2"),
        told("pause"),
    ]
    assert desired_after_all(Desired(), records) == Desired(
        is_paused=True,
        alpha=0.5,
        policy="laia",
        deadline=True,
        skip_above="none",
        links={"w-0": 2.0, "w-1": 0.0},
        shares={"w-1": ShareLimits(0.5, 2.0)},
    )


def test_alpha_is_given_back_and_then_follows_the_dispatcher() -> None:
    changed = AlphaChanged(8, 0.125, "cpu", "contended", {"pressure": 0.5})
    desired = desired_after_all(Desired(), [told("alpha", value="0.5"), told("alpha", value="auto"), changed])
    assert (desired.alpha, desired.is_auto, desired.auto_alpha) == (None, True, 0.125)


def test_a_drain_lasts_until_a_generation_starts_without_the_worker() -> None:
    desired = desired_after_all(Desired(), [told("drain", "b"), started("a", "b")])
    assert desired.draining == ("b",)
    assert desired_after(desired, started("a")).draining == ()


def test_a_removal_lasts_for_ever() -> None:
    assert desired_after_all(Desired(), [told("remove", "b"), started("a"), started("a", "c")]).removed == ("b",)


def test_a_stop_lasts_until_the_run_has_stopped() -> None:
    desired = desired_after(Desired(), told("stop"))
    assert desired.is_stopping
    assert not desired_after(desired, Stopped("stopped by a command", 7, 0, "")).is_stopping
    assert not desired_after(desired, told("stopped")).is_stopping


def test_records_that_a_checkpoint_has_seen_change_nothing_when_they_are_followed_again(
    fuzz_rounds: int, fuzz_seed: int
) -> None:
    rng = random.Random(fuzz_seed)
    for _ in range(200 * fuzz_rounds):
        records = [_any_record(rng) for _ in range(rng.randrange(12))]
        checkpoint_at, kept_from = sorted(
            (rng.randrange(len(records) + 1), rng.randrange(len(records) + 1)), reverse=True
        )
        at_checkpoint = desired_after_all(Desired(), records[:checkpoint_at])
        assert desired_after_all(at_checkpoint, records[kept_from:]) == desired_after_all(Desired(), records)


def test_what_is_wanted_survives_a_file() -> None:
    desired = Desired(alpha=0.5, links={"w": 1.5}, shares={"w": ShareLimits(0, 1)}, draining=("w",), removed=("v",))
    assert msgspec.json.decode(msgspec.json.encode(desired), type=Desired) == desired


def _any_record(rng: random.Random) -> AnyRecord:
    worker = rng.choice("abc")
    records: list[AnyRecord] = [
        told("drain", worker),
        told("remove", worker),
        told("pause"),
        told("resume"),
        told("stop"),
        told("alpha", value=rng.choice(["auto", "0.5", "1"])),
        told("policy", value=rng.choice(["laia", "esd:1"])),
        told("link", worker, rng.choice(["0", "2.5"])),
        told("shares", worker, "0:2"),
        started(*rng.sample("abc", 2)),
        Stopped("SIGTERM", 7, 0, ""),
        AlphaChanged(7, rng.choice([0.0, 0.5]), "cpu", "", {}),
    ]
    return rng.choice(records)
