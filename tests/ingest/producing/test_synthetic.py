from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ingest.convert import Converter
from ingest.producing.synthetic import CHUNK, World, synthetic_events
from tests.ingest.topics import SYNTHETIC, events


def auc(scores: NDArray[np.float64], labels: NDArray[Any]) -> float:
    """Share of (click, no click) pairs in the right order."""
    clicks, others = scores[labels == 1], scores[labels == 0]
    return float((clicks[:, None] > others[None, :]).mean())


def probabilities(seed: int, chunks: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """(click probability, label) of the first chunks of a stream."""
    made = [World(seed).chunk(number) for number in range(chunks)]
    return np.concatenate([c.probabilities_B for c in made]), np.concatenate([c.labels_B for c in made])


def test_same_seed_gives_the_same_events() -> None:
    assert events(300, seed=3) == events(300, seed=3) != events(300, seed=4)


def test_stream_from_the_middle_equals_the_rest() -> None:
    start = CHUNK - 5
    assert list(islice(synthetic_events(3, start), 20)) == events(start + 20, seed=3)[start:]


def test_a_clock_dates_events_and_changes_nothing_else() -> None:
    ticks = iter(range(1_900_000_000, 2_000_000_000))
    dated = list(islice(synthetic_events(3, 7, clock=lambda: float(next(ticks))), 50))
    assert [event.event_time for event in dated] == [1_900_000_000.0 + number for number in range(50)]
    assert [(event.label, event.fields) for event in dated] == [
        (event.label, event.fields) for event in events(57, seed=3)[7:]
    ]


def test_every_event_fits_the_built_in_schema() -> None:
    samples, faults = Converter(SYNTHETIC).convert_events(events(2000))
    assert (len(samples), faults) == (2000, {})


def test_labels_follow_the_known_probabilities() -> None:
    scores, labels = probabilities(1, 10)
    order = np.argsort(scores)
    for part in np.array_split(order, 10):
        spread = np.sqrt((scores[part] * (1 - scores[part])).sum())
        assert abs(labels[part].sum() - scores[part].sum()) < 4.5 * spread


def test_labels_of_events_are_those_of_the_probabilities() -> None:
    assert [event.label for event in events(2 * CHUNK, seed=2)] == probabilities(2, 2)[1].tolist()


def test_appeal_of_items_drifts() -> None:
    world = World(1)
    items = np.arange(100)
    early, late = (world._log_odds(items, items, np.full(100, at)) for at in (0.0, 100_000.0))
    assert 0.05 < np.abs(early - late).mean() < 1.0


def test_popular_items_come_more_often() -> None:
    items = np.bincount(World(1).chunk(0).items_B)
    assert np.sort(items)[-50:].sum() > 0.35 * CHUNK


def test_online_logistic_regression_learns_it() -> None:
    samples, _ = Converter(SYNTHETIC).convert_events(events(8192))
    _, places = np.unique(samples.keys_BF, return_inverse=True)
    places_BF = places.reshape(samples.keys_BF.shape)
    weights, squares, scores = np.zeros(places.max() + 1), np.full(places.max() + 1, 512.0**-2), []
    for at in range(0, 8192, 512):
        rows, labels = places_BF[at : at + 512], samples.labels_B[at : at + 512]
        scores.append(weights[rows].sum(axis=1))
        errors = (1 / (1 + np.exp(1.2 - scores[-1])) - labels) / 512
        gradient = np.bincount(rows.ravel(), np.repeat(errors, rows.shape[1]), len(weights))
        squares += gradient**2
        weights -= 0.06 * gradient / np.sqrt(squares)
    assert auc(np.concatenate(scores[8:]), samples.labels_B[4096:]) > 0.66
