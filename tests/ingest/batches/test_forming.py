from hypothesis import given
from hypothesis import strategies as st

from ingest.batches.forming import share


@given(st.lists(st.integers(0, 60), min_size=1, max_size=6), st.integers(1, 100), st.integers(0, 5))
def test_share_is_even_and_complete(ready: list[int], batch: int, first: int) -> None:
    given_shares = share(ready, batch, first)
    assert sum(given_shares) == min(batch, sum(ready))
    assert all(0 <= g <= r for g, r in zip(given_shares, ready, strict=True))
    unfilled = [g for g, r in zip(given_shares, ready, strict=True) if g < r]
    assert not unfilled or max(given_shares) - min(unfilled) <= 1
