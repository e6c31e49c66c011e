"""Which keys get rows: counted as exactly as memory allows, drawn with the right probability, and repeated exactly."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch.placement.rows.admission import COUNTED_SHARE, Admission, AdmissionTerms, count_reference, draw
from dispatch.placement.rows.index import Index
from infra.base.distinct import number_keys

RARE = np.array([1001, 1002], np.uint64)
LARGE = 1 << 16
KEYS = st.lists(st.integers(0, 30), min_size=2, max_size=40).map(lambda keys: keys[: len(keys) // 2 * 2])


def batch(keys: list[int]) -> np.ndarray:
    return np.array(keys, np.uint64).reshape(-1, 2)


@given(batches=st.lists(KEYS, min_size=1, max_size=8), after=st.integers(2, 5))
def test_keys_are_admitted_as_by_an_exact_count_and_a_record_repeats_it(batches: list[list[int]], after: int) -> None:
    index, again, counts = Index(), Index(), dict[int, int]()
    admission, repeated = (Admission(AdmissionTerms(after, filter_bytes=LARGE), RARE) for _ in range(2))
    for step, keys in enumerate(batches):
        is_known_BF = index.knows(batch(keys))
        is_known: list[bool] = is_known_BF.reshape(-1).tolist()
        used, recorded = admission.admit(step, batch(keys), is_known_BF)
        for place, key in enumerate(keys):
            is_used = is_known[place] or count_reference(counts, [key], after) == [True]
            assert used.reshape(-1)[place] == (key if is_used else RARE[place % 2])
        index.resolve(number_keys(used))
        again.resolve(number_keys(repeated.repeat(batch(keys), again.knows(batch(keys)), recorded)))
        assert again.keys.tolist() == index.keys.tolist()
    assert admission.rare == repeated.rare


def test_a_filter_that_is_full_forgets_what_it_counted() -> None:
    admission = Admission(AdmissionTerms(2, filter_bytes=1024), RARE)
    once = np.arange(1024 // COUNTED_SHARE, dtype=np.uint64).reshape(-1, 2)
    unknown = np.zeros(once.shape, np.bool_)
    used, _ = admission.admit(1, once, unknown)
    assert set(used.reshape(-1).tolist()) == set(RARE.tolist())
    used, _ = admission.admit(2, once, unknown)  # a second time, but all counters have been halved to 0
    assert set(used.reshape(-1).tolist()) == set(RARE.tolist())


def test_few_keys_are_mistaken_for_others_up_to_the_amount_that_is_remembered() -> None:
    size = 1 << 16
    admission = Admission(AdmissionTerms(2, filter_bytes=size), RARE)
    keys = np.random.default_rng(3).integers(1 << 63, size=size // COUNTED_SHARE - 2, dtype=np.uint64).reshape(-1, 2)
    used, _ = admission.admit(1, keys, np.zeros(keys.shape, np.bool_))
    assert (used == keys).mean() < 0.03


@pytest.mark.parametrize("share", [0.02, 0.3, 1.0])
def test_keys_are_drawn_with_the_given_probability_anew_in_every_step(share: float) -> None:
    keys = np.arange(20_000, dtype=np.uint64)
    first, second = (draw(keys, step, 5, share) for step in (1, 2))
    assert first.mean() == pytest.approx(share, rel=0.2)
    assert (first & second).mean() == pytest.approx(share * share, abs=0.01)
    assert (draw(keys, 1, 5, share) == first).all()


def test_all_samples_of_a_step_agree_about_a_key() -> None:
    admission = Admission(AdmissionTerms(share=0.5), RARE)
    keys = np.repeat(np.arange(50, dtype=np.uint64), 4).reshape(-1, 2)
    used, _ = admission.admit(7, keys, np.zeros(keys.shape, np.bool_))
    is_admitted = (used == keys).reshape(50, 4)
    assert (is_admitted.all(1) | ~is_admitted.any(1)).all()
    assert 0 < is_admitted.sum() < keys.size
