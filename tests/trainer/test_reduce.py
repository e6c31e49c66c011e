"""The dense process group: several ranks as threads of one process, on loopback."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from typing import TypeVar

import psutil
import pytest
import torch
from torch import Tensor

from infra.base.errors import ConfigError
from tests.trainer.boards import meetings, names
from trainer.errors import PeersLost
from trainer.reduce import AloneGroup, DenseGroup, PeerGroup, address_facing, form_group

CPU = torch.device("cpu")
T = TypeVar("T")


def in_group(size: int, act: Callable[[int, DenseGroup], T], groups: tuple[str, ...] = ("run/1",)) -> list[T]:
    """What each rank gets from acting in a group; with several names, in the last of groups formed in turn."""
    own = meetings(size)

    def rank(number: int) -> T:
        for name in groups:
            group = form_group(own[number], name, number, names(size), CPU, "auto")
            result = act(number, group)
            group.close()
        return result

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(rank, range(size)))


def gradients(number: int) -> Tensor:
    return torch.randn(1000, generator=torch.Generator().manual_seed(number))


def test_torch_records_no_collective() -> None:
    """Its recorder is not safe where several groups live in one process."""
    in_group(2, lambda number, group: group.start_sum(gradients(number))())
    recorded = json.loads(torch._C._distributed_c10d._dump_fr_trace_json())
    assert "entries" not in recorded


def summed(number: int, group: DenseGroup) -> Tensor:
    mine = gradients(number)
    group.start_sum(mine)()
    return mine


@pytest.mark.parametrize("size", [1, 2, 4])
def test_sum_is_that_of_all_ranks(size: int) -> None:
    expected = torch.stack([gradients(number) for number in range(size)]).sum(0)
    torch.testing.assert_close(in_group(size, summed)[size - 1], expected)


@pytest.mark.parametrize("size", [2, 4])
def test_every_rank_gets_the_same_bits_every_time(size: int) -> None:
    results = in_group(size, summed) + in_group(size, summed)
    assert all(torch.equal(results[0], other) for other in results[1:])


@pytest.mark.parametrize("size", [1, 3])
def test_broadcast_gives_everyone_the_values_of_rank_0(size: int) -> None:
    def act(number: int, group: DenseGroup) -> list[float]:
        tensors = [torch.full((2, 3), float(number)), torch.tensor(float(number) + 7)]
        group.broadcast(tensors)
        return [tensors[0].sum().item(), tensors[1].item()]

    assert in_group(size, act) == [[0.0, 7.0]] * size


def test_groups_of_later_generations_form_over_the_same_board() -> None:
    results = in_group(2, summed, groups=("run/1", "run/2", "run/3"))
    torch.testing.assert_close(results[0], gradients(0) + gradients(1))


def test_one_worker_needs_no_peers() -> None:
    group = form_group(meetings(1)[0], "run/1", 0, names(1), CPU, "auto")
    assert isinstance(group, AloneGroup)


def test_a_rank_that_went_away_ends_the_sum() -> None:
    def act(number: int, group: DenseGroup) -> str:
        if number == 1:
            return ""
        assert isinstance(group, PeerGroup)
        with pytest.raises(PeersLost) as caught:
            group.start_sum(gradients(0))()
        return str(caught.value)

    assert "all-reduce" in in_group(2, act)[0]


def test_a_worker_that_does_not_come_is_named() -> None:
    first, *_ = meetings(3, timeout=timedelta(seconds=0.2))
    first.board.others[0].post("run/1/device/1", b"cpu 1")  # type: ignore[attr-defined]
    with pytest.raises(PeersLost, match=r"worker-2 posted no run/1/device/2 within 0\.2 s"):
        form_group(first, "run/1", 0, names(3), CPU, "auto")


def listening() -> set[int]:
    """Ports on which this process accepts connections."""
    return {each.laddr.port for each in psutil.Process().net_connections() if each.status == psutil.CONN_LISTEN}


def test_a_group_opens_no_socket_but_those_of_gloo() -> None:
    before = listening()
    opened = in_group(2, lambda _number, _group: listening())
    assert len(set.union(*opened) - before) == 2


def test_with_keys_several_workers_sum_only_where_the_settings_allow_it() -> None:
    first, second = (replace(own, may_sum=False) for own in meetings(2))
    for number, own in enumerate((first, second)):
        with pytest.raises(ConfigError, match=r"2 workers .* in the clear; .* trainer.unencrypted_reduce = true"):
            form_group(own, "run/1", number, names(2), CPU, "auto")
    assert isinstance(form_group(first, "run/1", 0, names(1), CPU, "auto"), AloneGroup)


def test_loopback_is_faced_from_loopback() -> None:
    assert address_facing("127.0.0.1") == "127.0.0.1"


def test_unknown_host_is_named() -> None:
    with pytest.raises(ConfigError, match="no-such-host"):
        address_facing("no-such-host.invalid")
