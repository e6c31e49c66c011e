"""How fast predictions are, the memory of a row, and what replacing snapshots costs clients.

1. load: a checkpoint is loaded from files, for each size
2. compute: the engine against plain torch, which calls the same module on the same rows and knows their numbers
   already; in this process, in turn, without HTTP
3. HTTP: one client as fast as it can, with packed samples and with JSON, to a real server in a separate process
4. swaps: windows in turn: requests at the given rate without and with a new snapshot every second

Everything shares this machine's cores, including the clients and the writing of new snapshots.

Legend: B samples, F keys per sample.
"""

import asyncio
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import numpy as np
import psutil
import torch
from prometheus_client import CollectorRegistry

from benchmarks.control.load import AskedRoute, Clients, Latencies, clients
from benchmarks.serving.made import MadeCheckpoints, keys_of
from infra.base.errors import FreshetError
from infra.base.parts import COMMAND
from infra.base.storage import Storage
from infra.base.telemetry import Meter
from infra.web.store.access import make_token
from ingest.codec.packed import PackedCodec
from ingest.samples import Samples
from ingest.schema import Schema, load_schema
from ps.config import RowConfig
from serving.config import ServingConfig
from serving.copies import Copies, ModelCopy, ModelSpec
from serving.engine import Engine
from serving.loading import load
from trainer.config import ModelConfig, ModelName

RUN = "bench"
ROWS = RowConfig(optimizer="rowwise_adagrad")
PATIENCE_SECONDS = 300.0
SMALL = 64
LARGE = 512


@dataclass(frozen=True)
class ServingLoad:
    """What is measured."""

    sizes: tuple[int, ...]
    """Rows of the checkpoints that are loaded; requests are measured with the smallest."""
    model: ModelName
    rate: float
    """Requests per second."""
    window_seconds: float
    windows: int
    """Number of windows of each kind."""
    changed: int
    """Rows changed by each new snapshot."""
    repeat: int
    """Requests of each kind, without HTTP."""


@dataclass(frozen=True)
class LoadedSize:
    """One copy of the model."""

    name: str
    rows: int
    bytes_per_row: float
    """Bytes of index and values of a copy; a server has two."""
    load_seconds: float
    """Time to load from files in the page cache, with every byte verified."""
    rows_per_second: float
    grown_bytes_per_row: float
    """Growth of this process's resident memory by loading."""


@dataclass(frozen=True)
class EngineResult:
    """The engine compared with plain torch, without HTTP."""

    rows: int
    single_p50_ms: float
    single_p99_ms: float
    plain_single_p50_ms: float
    samples_per_second_64: float
    plain_per_second_64: float
    ratio_64: float
    """Time of the engine divided by that of plain torch."""
    samples_per_second_512: float
    plain_per_second_512: float
    ratio_512: float


@dataclass(frozen=True)
class HttpResult:
    """Latencies as seen by a client."""

    http_single_p50_ms: float
    http_single_p99_ms: float
    http_json_p50_ms: float
    """One sample as JSON."""
    http_samples_per_second_512: float
    http_share_512: float
    """Share of the time of a request with 512 packed samples that is not spent in the engine."""
    quiet_p50_ms: float
    quiet_p99_ms: float
    swapping_p50_ms: float
    swapping_p99_ms: float
    p99_ratio: float
    """With swaps divided by without; medians over windows."""
    requests: int
    """Requests in the windows; all were answered."""
    swaps: int
    rollback_seconds: float
    """Time from request to answer, which comes once the previous snapshot is served; with requests at the same rate."""


def run_serve(
    folder: Path, wanted: ServingLoad, tell: Callable[[str], None]
) -> tuple[list[LoadedSize], EngineResult, HttpResult]:
    """Measures all of it below a folder."""
    torch.set_num_threads(ServingConfig().threads)  # as many as the server has
    schema = load_schema("criteo")
    sizes = list[LoadedSize]()
    crosses = len(schema.crosses)
    spec = ModelSpec(RUN, 0, ROWS, ModelConfig(name=wanted.model), schema.fields, schema.dense, crosses=crosses)
    for rows in sorted(wanted.sizes, reverse=True):
        place = folder / f"rows-{rows}"
        storage = Storage.at(place / "checkpoints")
        checkpoints = MadeCheckpoints(storage, spec, rows)
        copies = Copies(spec)
        checkpoints.take(0)
        sizes.append(_load(storage, checkpoints, copies.standby))
        tell(f"{rows:,} rows: {sizes[-1].load_seconds:.1f} s, {sizes[-1].bytes_per_row:.1f} bytes a row")
    copies.swap()
    computed = _compute(copies, checkpoints, schema, rows, wanted.repeat)
    tell(f"512 samples: {computed['ratio_512']:.2f} times plain torch")
    del copies
    with served(place, wanted.model) as (address, token), clients() as asking:
        http = _http(asking, address, token, schema, rows, wanted)
        http |= _windows(asking, address, token, checkpoints, schema, wanted)
    share = 1 - LARGE / computed["samples_per_second_512"] / (LARGE / http["http_samples_per_second_512"])
    return sizes[::-1], EngineResult(rows=rows, **computed), HttpResult(**http, http_share_512=share)


def _load(storage: Storage, checkpoints: MadeCheckpoints, copy: ModelCopy) -> LoadedSize:
    assert checkpoints.newest is not None
    began = time.perf_counter()
    resident = psutil.Process().memory_info().rss
    load(storage, checkpoints.newest, copy)
    seconds = time.perf_counter() - began
    rows = len(copy.table)
    grown = psutil.Process().memory_info().rss - resident
    return LoadedSize(f"{rows:,} rows", rows, copy.table.nbytes / rows, seconds, rows / seconds, grown / rows)


# ── compute ───────────────────────────────────────────────────────────────────────────────────────────────────────────
class PlainTorch:
    """The same module on the same rows, whose numbers are known: the least that any server has to do."""

    def __init__(self, copy: ModelCopy, checkpoints: MadeCheckpoints, rows: int) -> None:
        self._module = copy.module
        self._dim = copy.spec.rows.dim
        values = [checkpoints.values(np.arange(at, min(at + (1 << 18), rows)), 1) for at in range(0, rows, 1 << 18)]
        self._values_KW = torch.from_numpy(np.concatenate(values))

    def predict(self, numbers_BF: torch.Tensor, dense_BN: torch.Tensor) -> Any:
        with torch.inference_mode():
            values_BFW = torch.nn.functional.embedding(numbers_BF, self._values_KW)
            wide_BF = values_BFW[..., self._dim]
            embeddings_BED = values_BFW[:, : self._module.fields, : self._dim]
            return torch.sigmoid(self._module(embeddings_BED, wide_BF, dense_BN)).numpy()


def _samples(schema: Schema, rows: int, count: int, seed: int) -> tuple[torch.Tensor, Samples]:
    """Row numbers and samples; popular rows come more often."""
    random = np.random.default_rng(seed)
    numbers_BF = (rows * random.random((count, schema.fields)) ** 3).astype(np.int64)
    dense_BN = random.random((count, schema.dense), np.float32)
    samples = Samples(np.zeros(count, np.float32), dense_BN, keys_of(numbers_BF), np.zeros(count))
    return torch.from_numpy(numbers_BF), samples


def _compute(copies: Copies, checkpoints: MadeCheckpoints, schema: Schema, rows: int, repeat: int) -> dict[str, Any]:
    engine = Engine(copies, LARGE, Meter(CollectorRegistry()))
    with copies.reading() as (copy, _):
        plain = PlainTorch(copy, checkpoints, rows)
    found: dict[str, float] = {}
    for count, name in ((1, "single"), (SMALL, "64"), (LARGE, "512")):
        ours = list[float]()
        theirs = list[float]()
        for turn in range(repeat):
            numbers_BF, samples = _samples(schema, rows, count, turn)
            dense_BN = torch.from_numpy(samples.dense_BN)
            began = time.perf_counter()
            predicted = engine.submit(samples).result().probabilities_B
            between = time.perf_counter()
            wanted = plain.predict(numbers_BF, dense_BN)
            theirs.append(time.perf_counter() - between)
            ours.append(between - began)
            if np.abs(predicted - wanted).max() > 1e-6:
                raise FreshetError("the engine and plain torch differ by more than 1e-6; expected equal predictions")
        if count == 1:
            p50, p99 = 1000 * np.quantile(ours, (0.5, 0.99))
            plain_p50 = 1000 * statistics.median(theirs)
            found |= {"single_p50_ms": float(p50), "single_p99_ms": float(p99), "plain_single_p50_ms": plain_p50}
        else:
            ours_s = statistics.median(ours)
            theirs_s = statistics.median(theirs)
            found |= {f"samples_per_second_{name}": count / ours_s, f"plain_per_second_{name}": count / theirs_s}
            found[f"ratio_{name}"] = ours_s / theirs_s
    engine.close()
    return found


# ── HTTP ──────────────────────────────────────────────────────────────────────────────────────────────────────────────
@contextmanager
def served(folder: Path, model: ModelName) -> Iterator[tuple[str, str]]:
    """A server of the checkpoints in a folder, in a separate process; yields its address and a token."""
    database = f"sqlite:///{folder / 'freshet.db'}"
    endpoint = folder / "endpoints" / "serve"
    token = asyncio.run(make_token(database, "bench", ("read", "predict", "control")))
    chosen = {"run": RUN, "folder": folder, "seed": 0, "serving.port": 0, "serving.requests_per_second": 1e6}
    chosen |= {"api.database": database, "stream.schema_name": "criteo", "model.name": model}
    chosen["rows.optimizer"] = ROWS.optimizer
    settings = [part for name, value in chosen.items() for part in ("--set", f"{name}={value}")]
    with (folder / "serve.log").open("wb") as log:
        process = subprocess.Popen([*COMMAND, "serve", *settings], stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not (endpoint.exists() and _ask(endpoint.read_text(), "/readyz", token) == 200):
            if process.poll() is not None or time.monotonic() > deadline:
                raise FreshetError(f"the server did not start; expected it to serve; see {log.name}")
            time.sleep(0.1)
        yield endpoint.read_text(), token
    finally:
        process.terminate()
        process.wait()


def _ask(address: str, path: str, token: str) -> int:
    try:
        with urlopen(Request(address + path, headers={"Authorization": f"Bearer {token}"}), timeout=30) as answer:
            return int(answer.status)
    except OSError:
        return 0


def _http(asking: Clients, address: str, token: str, schema: Schema, rows: int, wanted: ServingLoad) -> dict[str, Any]:
    codec = PackedCodec(schema)

    def ask(count: int, body: bytes = b"", kind: str = "application/octet-stream") -> Latencies:
        body = body or codec.encode(_samples(schema, rows, count, 1)[1])
        return asking.ask(AskedRoute(address, "/v1/predict", token, wanted.window_seconds, 0, 1, body, kind)).result()

    ask(LARGE)  # everything has been used once
    single = ask(1)
    large = ask(LARGE)
    fields = ", ".join(f'"{name}": "value-{at}"' for at, name in enumerate(schema.sources) if name.startswith("C"))
    json = ask(1, f'{{"fields": {{{fields}}}}}'.encode(), "application/json")
    return {
        "http_single_p50_ms": single.p50_ms,
        "http_single_p99_ms": single.p99_ms,
        "http_json_p50_ms": json.p50_ms,
        "http_samples_per_second_512": LARGE / large.p50_ms * 1000,
    }


def _windows(
    asking: Clients, address: str, token: str, checkpoints: MadeCheckpoints, schema: Schema, wanted: ServingLoad
) -> dict[str, Any]:
    body = PackedCodec(schema).encode(_samples(schema, min(wanted.sizes), 1, 1)[1])
    question = AskedRoute(address, "/v1/predict", token, wanted.window_seconds, wanted.rate, 4, body)
    quiet = list[Latencies]()
    swapping = list[Latencies]()
    before = _swaps(address, token)
    for _ in range(wanted.windows):
        quiet.append(asking.ask(question).result())
        with taking(checkpoints, wanted.changed):
            swapping.append(asking.ask(question).result())
    _await_swap(address, token, before)

    def middle(of: Sequence[Latencies], name: str) -> float:
        return float(statistics.median(getattr(each, name) for each in of))

    return {
        "quiet_p50_ms": middle(quiet, "p50_ms"),
        "quiet_p99_ms": middle(quiet, "p99_ms"),
        "swapping_p50_ms": middle(swapping, "p50_ms"),
        "swapping_p99_ms": middle(swapping, "p99_ms"),
        "p99_ratio": middle(swapping, "p99_ms") / middle(quiet, "p99_ms"),
        "requests": sum(each.requests for each in (*quiet, *swapping)),
        "swaps": _swaps(address, token) - before,
        "rollback_seconds": _roll_back(asking, question),
    }


def _roll_back(asking: Clients, question: AskedRoute) -> float:
    """Rolls back in the middle of a window."""
    under_way = asking.ask(question)
    headers = {"Authorization": f"Bearer {question.token}"}
    time.sleep(question.seconds / 2)
    headers["Content-Type"] = "application/json"
    began = time.perf_counter()
    with urlopen(Request(f"{question.address}/v1/snapshots/rollback", b"{}", headers), timeout=30) as answer:
        answer.read()
    seconds = time.perf_counter() - began
    under_way.result()
    return seconds


@contextmanager
def taking(checkpoints: MadeCheckpoints, changed: int) -> Iterator[None]:
    """Inside, takes a new snapshot every second; at least one."""
    over = threading.Event()

    def take() -> None:
        is_over = False
        while not is_over:
            is_over = over.wait(1.0)
            checkpoints.take(changed)

    thread = threading.Thread(target=take)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _await_swap(address: str, token: str, before: int) -> None:
    """Returns once a server that may be busy has loaded a snapshot since then."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while _swaps(address, token) == before and time.monotonic() < deadline:
        time.sleep(0.05)


def _swaps(address: str, token: str) -> int:
    with urlopen(Request(address + "/metrics", headers={"Authorization": f"Bearer {token}"}), timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    return int(next(float(line.split()[1]) for line in lines if line.startswith("freshet_serving_swaps_total ")))
