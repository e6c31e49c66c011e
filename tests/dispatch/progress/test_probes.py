"""When idle links are measured."""

from itertools import pairwise

from dispatch.progress.probes import FIRST_SECONDS, KNOWN_SECONDS, UNANSWERED_SECONDS, LinkProbes


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def asked_at(probes: LinkProbes, clock: Clock, until: float, is_known: bool = True) -> list[float]:
    """When a worker that answers at once is asked."""
    times = []
    while clock.now < until:
        if probes.due({"a"}):
            times.append(round(clock.now, 1))
            probes.answered("a", is_known)
        clock.now += 0.1
    return times


def test_a_known_link_is_measured_at_intervals_that_double_up_to_the_longest() -> None:
    clock = Clock()
    times = asked_at(LinkProbes(10.0, clock), clock, 60.0)
    gaps = [round(later - earlier) for earlier, later in pairwise(times)]
    assert gaps == [2, 4, 8, 10, 10, 10, 10]
    assert gaps[0] == KNOWN_SECONDS


def test_an_unknown_link_is_measured_soon_again() -> None:
    clock = Clock()
    times = asked_at(LinkProbes(30.0, clock), clock, 1.0, is_known=False)
    assert len(times) >= 4
    assert times[1] - times[0] <= FIRST_SECONDS + 0.2


def test_a_worker_is_asked_once_until_it_answers_and_again_if_it_does_not() -> None:
    clock = Clock()
    probes = LinkProbes(30.0, clock)
    assert probes.due({"a", "b"}) == ["a", "b"]
    assert probes.due({"a", "b"}) == []
    probes.answered("a", is_known=True)
    clock.now = KNOWN_SECONDS
    assert probes.due({"a", "b"}) == ["a"]
    clock.now = UNANSWERED_SECONDS
    assert probes.due({"a", "b"}) == ["b"]


def test_a_worker_that_gets_samples_is_not_asked_and_begins_anew_when_it_is_idle_again() -> None:
    clock = Clock()
    probes = LinkProbes(30.0, clock)
    asked_at(probes, clock, 20.0)
    assert probes.due(set()) == []
    probes.answered("a", is_known=True)  # late, and without effect
    assert probes.due({"a"}) == ["a"]
    asked_at(probes, clock, 40.0)
    probes.restart()
    assert probes.due({"a"}) == ["a"]


def test_no_link_is_measured_if_that_is_not_wanted() -> None:
    assert LinkProbes(0.0).due({"a"}) == []
