"""Which shards a dispatcher takes, and which it refuses."""

import pytest

from dispatch.peers.providers import Provider, Providers
from ps.protocol import Serve, Terms

SETTINGS = {"rows.rate": "0.05"}


def offer(shard: int, shards: int = 2, settings: dict[str, str] = SETTINGS) -> Serve:
    terms = Terms(shard, shards, settings)
    return Serve(run="test", generation=-1, step=0, endpoint=f"tcp://127.0.0.1:{7000 + shard}", terms=terms)


def test_shards_serve_in_the_order_of_their_numbers() -> None:
    providers = Providers(2, SETTINGS)
    assert providers.admit(b"b", offer(1)) is None
    assert (providers.are_complete, providers.absent) == (False, ["shard 0"])
    assert providers.admit(b"a", offer(0)) is None
    assert providers.are_complete
    assert providers.use() == ("tcp://127.0.0.1:7000", "tcp://127.0.0.1:7001")


def test_a_shard_with_other_settings_is_refused_and_told_which() -> None:
    providers = Providers(2, SETTINGS)
    reason = providers.admit(b"odd", offer(0, settings={"rows.rate": "0.5"}))
    assert reason is not None
    assert "rows.rate is 0.05 in the dispatcher and 0.5 in shard 0; expected the same" in reason
    assert providers.everyone == ()


@pytest.mark.parametrize(("shard", "shards"), [(2, 2), (0, 3), (2, 3), (0, 1)])
def test_a_shard_that_has_no_place_in_the_run_is_refused(shard: int, shards: int) -> None:
    providers = Providers(2, SETTINGS)
    reason = providers.admit(b"odd", offer(shard, shards))
    assert reason is not None
    assert f"shard {shard} of {shards} offered itself to a run with shards 0 to 1; expected" in reason
    assert providers.everyone == ()


def test_the_newest_process_of_a_number_replaces_the_one_in_use() -> None:
    providers = Providers(1, SETTINGS)
    providers.admit(b"old", offer(0, 1))
    providers.use()
    providers.admit(b"old", offer(0, 1))
    assert providers.replaced == []
    providers.admit(b"new", offer(0, 1))
    assert providers.replaced == ["shard 0"]
    providers.use()
    assert providers.replaced == []


def test_a_shard_out_of_reach_is_dropped_unless_a_newer_one_has_its_place() -> None:
    providers = Providers(1, SETTINGS)
    providers.admit(b"old", offer(0, 1))
    (old,) = providers.everyone
    providers.admit(b"new", offer(0, 1))
    providers.drop(old)
    assert [provider.identity for provider in providers.everyone] == [b"new"]
    providers.drop(Provider(0, b"new", "tcp://127.0.0.1:7000"))
    assert providers.absent == ["shard 0"]


def test_one_that_was_replaced_is_refused_when_it_comes_back() -> None:
    providers = Providers(1, SETTINGS)
    providers.admit(b"stopped", offer(0, 1))
    (stopped,) = providers.everyone
    providers.drop(stopped)
    assert providers.admit(b"new", offer(0, 1)) is None
    assert providers.admit(b"stopped", offer(0, 1)) == (
        "a newer process serves as shard 0; start no second one of a number"
    )
    assert [provider.identity for provider in providers.everyone] == [b"new"]


def test_one_that_was_out_of_reach_for_a_while_comes_back() -> None:
    providers = Providers(1, SETTINGS)
    providers.admit(b"only", offer(0, 1))
    (only,) = providers.everyone
    providers.drop(only)
    assert providers.admit(b"only", offer(0, 1)) is None
    assert providers.everyone == (only,)


def test_a_generation_that_is_over_misses_no_shard() -> None:
    providers = Providers(1, SETTINGS)
    providers.admit(b"old", offer(0, 1))
    providers.use()
    providers.admit(b"new", offer(0, 1))
    providers.release()
    assert providers.replaced == []
