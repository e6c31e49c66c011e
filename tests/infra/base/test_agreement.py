"""How a difference between the settings of two processes is told."""

from infra.base.agreement import MOST_NAMED, differing

OURS = {"rows.rate": "0.05", "seed": "0"}


def test_the_same_settings_are_no_difference() -> None:
    assert differing(OURS, "shard 0", dict(reversed(OURS.items())), "worker 'a'") is None


def test_a_difference_names_the_setting_both_values_and_who_has_which() -> None:
    told = differing(OURS, "the dispatcher", OURS | {"rows.rate": "0.5"}, "worker 'a'")
    assert told is not None
    assert "settings differ: rows.rate is 0.05 in the dispatcher and 0.5 in worker 'a'; expected" in told
    assert "seed" not in told


def test_a_setting_that_only_one_knows_is_a_difference() -> None:
    assert "rows.new is nothing in shard 1 and 7 in" in str(differing(OURS, "shard 1", OURS | {"rows.new": "7"}, "w"))
    assert "seed is 0 in shard 1 and nothing in" in str(differing(OURS, "shard 1", {"rows.rate": "0.05"}, "w"))


def test_many_differences_are_counted() -> None:
    told = differing({}, "a", {str(number): "x" for number in range(MOST_NAMED + 2)}, "b")
    assert "2 others differ too; expected" in str(told)
