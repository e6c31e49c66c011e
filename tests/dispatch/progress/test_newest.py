import numpy as np

from dispatch.progress.newest import MOST_ASKED, NewestSamples
from ingest.samples import Samples


def samples_of(first: int, count: int) -> Samples:
    numbers_B = np.arange(first, first + count)
    keys_BF = numbers_B.astype(np.uint64)[:, None]
    return Samples(np.zeros(count, np.float32), np.zeros((count, 1), np.float32), keys_BF, numbers_B.astype(np.float64))


def test_the_newest_samples_are_handed_out_once_with_their_predictions() -> None:
    newest, step = NewestSamples(), 300
    assert newest.take_all() is None
    for first in range(0, 5 * step, step):
        newest.add(samples_of(first, step), np.arange(first, first + step, dtype=np.float32))
    taken = newest.take_all()
    assert taken is not None
    assert taken.samples.keys_BF[:, 0].tolist() == list(range(5 * step - MOST_ASKED, 5 * step))
    assert taken.logits_B.tolist() == taken.samples.keys_BF[:, 0].tolist()
    assert newest.take_all() is None


def test_a_step_that_is_larger_than_a_question_gives_its_newest_samples() -> None:
    newest = NewestSamples()
    newest.add(samples_of(0, 3 * MOST_ASKED), np.zeros(3 * MOST_ASKED, np.float32))
    newest.add(samples_of(3 * MOST_ASKED, 10), np.zeros(10, np.float32))
    taken = newest.take_all()
    assert taken is not None
    assert (int(taken.samples.keys_BF[0, 0]), len(taken.samples)) == (2 * MOST_ASKED + 10, MOST_ASKED)
