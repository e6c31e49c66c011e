"""The client against real servers that are well, and against those that are killed, slow, busy or refuse."""

import asyncio
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import freshet_client
import pyarrow as pa
import pytest
from freshet_client import (
    AsyncClient,
    Client,
    Conflict,
    InvalidInput,
    NotFound,
    Problem,
    RateLimited,
    RejectedRow,
    Unauthorized,
    Unfitting,
    UnknownAnswer,
    Unreachable,
)

import freshet
from infra.web.store.rows import SCOPES
from ingest.config import StreamConfig
from ingest.log.embedded import LogReader
from tests.api.dispatcher import PretendDispatcher
from tests.api.serving import Served, new_token, serving, until
from tests.client.slow_proxy import SlowProxy
from tests.end_to_end.processes import start
from tests.ports import free_port


def event(number: int) -> dict[str, Any]:
    return {"event_time": 1000.0 + number, "label": number % 2, "fields": {"user": f"u{number}", "item": "i"}}


def written(folder: Path, user: str) -> list[str]:
    """The users in the log whose name begins so."""
    reader = LogReader(folder / "r" / "topics", StreamConfig().topic)
    found: list[str] = []
    for partition in reader.partitions():
        at, end = reader.span(partition)
        while at < end:
            records = reader.read(partition, at)
            found += [json.loads(each.payload)["fields"]["user"] for each in records]
            at += len(records)
    reader.close()
    return sorted(each for each in found if each.startswith(user))


@pytest.fixture
def client(api: Served) -> Iterator[Client]:
    with Client(api.address, api.token, run="r") as connected:
        yield connected


@pytest.fixture
def predictor(server: Served) -> Iterator[Client]:
    with Client(server.address, server.token) as connected:
        yield connected


# ── predictions ───────────────────────────────────────────────────────────────────────────────────────────────────────
ROWS = [{"user": f"u{number}", "item": number} for number in range(7)]


class PandasLike:
    """Has what is used of a DataFrame, which is not installed here."""

    columns = ("user", "item")

    def to_dict(self, orient: str) -> list[dict[str, Any]]:
        assert orient == "records"
        return [{**row, "gone": float("nan")} for row in ROWS]


class PolarsLike:
    """The same for polars."""

    def to_dicts(self) -> list[dict[str, Any]]:
        return ROWS


@pytest.mark.parametrize(
    "rows",
    [ROWS, tuple(ROWS), [{"fields": row} for row in ROWS], pa.Table.from_pylist(ROWS), PandasLike(), PolarsLike()],
    ids=["list", "tuple", "events", "arrow", "pandas", "polars"],
)
def test_rows_in_every_form_get_the_same_predictions(rows: Any, predictor: Client) -> None:
    found = predictor.predict(rows, batch=3)
    assert found.probabilities == [predictor.predict(row).probabilities[0] for row in ROWS]
    assert len(found.snapshots) == 1


def test_rows_that_do_not_fit_are_named_by_their_place(predictor: Client) -> None:
    with pytest.raises(Unfitting, match=r"row 4: .*user") as refused:
        predictor.predict([*ROWS[:4], {"user": ["a", "b"]}, *ROWS], batch=3)
    assert (refused.value.status, [error["index"] for error in refused.value.errors]) == (422, [4])


def test_snapshots_are_listed_pinned_and_unpinned(predictor: Client) -> None:
    newest = predictor.current_snapshot()["snapshot"]["id"]["checkpoint"]
    assert newest in [each["id"]["checkpoint"] for each in predictor.snapshots()]
    predictor.pin_snapshot(newest, reason="a test")
    predictor.unpin_snapshot()
    with pytest.raises(Conflict):
        predictor.unpin_snapshot()


# ── events and runs ───────────────────────────────────────────────────────────────────────────────────────────────────
def test_events_are_written_and_bad_ones_are_named(client: Client, folder: Path) -> None:
    rows = [{"user": f"first{number}", "item": 1, "clicked": number % 2 == 0, "at": 5.0} for number in range(5)]
    sent = client.send([*rows, {"user": "first5", "clicked": 7}], label="clicked", event_time="at", batch=4)
    assert sent.accepted == 5
    assert [type(each) for each in sent.rejected] == [RejectedRow]
    assert sent.rejected[0].index == 5
    assert written(folder, "first") == [f"first{number}" for number in range(5)]


def test_rows_with_one_key_are_written_once(client: Client, folder: Path) -> None:
    for _ in range(2):
        assert client.send([{**event(0), "fields": {"user": "once"}}], key="mine").accepted == 1
    assert client.label({"user": "once2"}, True, prediction="p1").accepted == 1
    assert written(folder, "once") == ["once", "once2"]


def test_a_run_is_read_and_steered(client: Client) -> None:
    assert [each["name"] for each in client.runs()] == ["r"]
    assert client.status()["name"] == "r"
    assert "value" in client.alpha()
    assert isinstance(client.workers(), list)
    with pytest.raises(NotFound, match="nosuch"):
        client.status(run="nosuch")


def test_events_of_a_run_are_followed_from_the_beginning(client: Client) -> None:
    followed = client.follow(after=0)
    first = next(each for each in followed if each.id)
    assert (first.kind, first.content["cursor"]) == ("begun", 1)


def test_the_asynchronous_client_does_the_same(api: Served, server: Served) -> None:
    async def use() -> tuple[list[Any], float, str]:
        async with AsyncClient(api.address, api.token, run="r", server=server.address) as client:
            with pytest.raises(Unauthorized):  # the two servers of these tests have databases of their own
                await client.predict(ROWS)
            runs = await client.runs()
            sent = await client.send([event(900)])
            followed = [each async for each in _first(client.follow(after=0))]
        async with AsyncClient(server.address, server.token) as predictor:
            predicted = await asyncio.gather(*(predictor.predict(row) for row in ROWS))
        assert sent.accepted == 1
        return runs, sum(each.probabilities[0] for each in predicted), followed[0].kind

    runs, total, kind = asyncio.run(use())
    with Client(server.address, server.token) as predictor:
        assert total == pytest.approx(sum(predictor.predict(ROWS).probabilities))
    assert ([each["name"] for each in runs], kind) == (["r"], "begun")


async def _first(events: Any) -> Any:
    async for each in events:
        if each.id:
            yield each
            return


# ── trouble ───────────────────────────────────────────────────────────────────────────────────────────────────────────
def test_events_are_written_once_although_the_api_is_killed(tmp_path: Path) -> None:
    port = free_port()
    command = ("api", "--runs", tmp_path, "--set", f"api.port={port}")
    with PretendDispatcher(tmp_path / "r"), ThreadPoolExecutor(1) as pool:
        token = new_token(f"sqlite:///{tmp_path / 'freshet.db'}", SCOPES)
        process = start(*command)
        try:
            with Client(f"http://127.0.0.1:{port}", token, run="r", retry_seconds=90) as client:
                until(lambda: client.runs())
                sending = pool.submit(
                    lambda: [client.send([event(n) for n in range(at, at + 5)]) for at in range(0, 300, 5)]
                )
                until(lambda: len(written(tmp_path, "u")) > 50)
                assert not sending.done()
                process.kill()
                process.communicate()
                process = start(*command)
                sent = sending.result(timeout=100)
        finally:
            process.kill()
            process.communicate()
    assert sum(each.accepted for each in sent) == 300
    assert written(tmp_path, "u") == sorted(f"u{number}" for number in range(300))


def test_an_answer_that_is_too_slow_is_requested_again_and_counts_once(api: Served, folder: Path) -> None:
    with SlowProxy(api.port, delays=[5.0, 5.0]) as proxy:
        with Client(proxy.address, api.token, run="r", timeout_seconds=0.5) as client:
            assert client.send([{**event(0), "fields": {"user": "slow"}}]).accepted == 1
        assert proxy.connections == 3
    assert written(folder, "slow") == ["slow"]


def test_a_connection_is_used_again(server: Served) -> None:
    with SlowProxy(server.port, delays=[]) as proxy, Client(proxy.address, server.token) as client:
        for row in ROWS:
            client.predict(row)
        assert proxy.connections == 1


def test_a_client_that_is_too_fast_waits_as_long_as_it_is_told(folder: Path, dispatcher: PretendDispatcher) -> None:
    with serving(folder, f"sqlite:///{folder / 'slow.db'}", requests_per_second=2.0) as api:
        with Client(api.address, api.token, retry_seconds=0) as hasty, pytest.raises(RateLimited) as refused:
            until(lambda: not hasty.runs())
        assert refused.value.status == 429
        with Client(api.address, api.token) as patient:
            assert [each["name"] for each in patient.runs()] == ["r"]


def test_a_token_that_has_expired_is_a_clear_error(api: Served) -> None:
    expired = new_token(api.database, SCOPES, expires_at=time.time() - 1)
    with Client(api.address, expired) as client, pytest.raises(Unauthorized, match="token") as refused:
        client.runs()
    assert isinstance(refused.value, Problem)
    assert refused.value.status == 401


def test_a_server_that_is_not_there_is_a_clear_error() -> None:
    address = f"http://127.0.0.1:{free_port()}"
    with Client(address, "secret", retry_seconds=0.3) as client, pytest.raises(Unreachable, match=address):
        client.runs()


def test_another_kind_of_server_is_a_clear_error(api: Served) -> None:
    with (
        Client(f"{api.address}/dashboard", api.token) as client,
        pytest.raises(UnknownAnswer, match="no problem details"),
    ):
        client.carry_out(freshet_client.calls.Call((freshet_client.calls.Request("GET", "/"),), list))


@pytest.mark.parametrize(
    ("url", "token", "told"),
    [("ftp://x", "t", "is no address"), ("", "t", "there is no address"), ("http://x", "", "no usable token")],
)
def test_what_cannot_be_used_is_refused_at_once(url: str, token: str, told: str) -> None:
    with pytest.raises(InvalidInput, match=told):
        Client(url, token)


def test_rows_that_cannot_be_sent_are_refused_at_once(client: Client) -> None:
    with pytest.raises(InvalidInput, match="row 1 is int"):
        client.predict([{"user": 1}, 2])
    with pytest.raises(InvalidInput, match="cannot be sent as JSON"):
        client.send([{"label": 1, "user": float("inf")}])


def test_freshet_offers_what_the_client_does() -> None:
    assert freshet.Client is Client
    assert dir(freshet) == sorted([*freshet_client.__all__, *freshet.OWN])
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        getattr(freshet, "nothing")  # noqa: B009


def test_every_name_of_freshet_is_there() -> None:
    assert "Learner" in freshet.OWN
    assert all(callable(getattr(freshet, name)) for name in freshet.OWN)
