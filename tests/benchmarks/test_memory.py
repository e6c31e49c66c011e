"""What a key costs, by formula and in real processes; and a run on ever new keys, whose memory is sampled."""

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.memory import PARTS, EndlessStream, Moment, expected_bytes, made_up_keys, measure_parts, summed_up
from ingest.codec.packed import PackedCodec
from ingest.log.embedded import LogReader
from ingest.schema import load_schema, without_crosses
from ps.config import RowConfig
from tests.end_to_end.processes import ROOT, run

KEYS = 1_000_000
SIZED_KEYS = 10_000_000
KEPT_BYTES = 64 << 20
"""that the allocator keeps for itself when arrays have grown"""


def test_the_formula_holds_in_a_process_of_its_own() -> None:
    measured = measure_parts([KEYS], [8], RowConfig(dim=16))
    assert [found.part for found in measured] == list(PARTS)
    for found in measured:
        assert found.least <= found.bytes_per_key <= found.most + KEPT_BYTES / KEYS, found


@pytest.mark.parametrize("dim", [8, 16, 32, 64, 128])
def test_the_table_of_sizes_follows_from_the_formula(dim: int) -> None:
    shard, server, dispatcher = (
        expected_bytes(part, 64, RowConfig(dim=dim)) for part in ("shard", "server", "dispatcher")
    )
    gigabytes = [each * SIZED_KEYS / 1e9 for one in (server, dispatcher) for each in (one.least, one.most)]
    spans = "{:.1f} to {:.1f} GB | {:.1f} to {:.1f} GB".format(*gigabytes)
    rows = f"{shard.least * SIZED_KEYS / 1e9:.1f} GB"
    assert f"| {dim} | {rows} | {spans} | {rows} |" in (ROOT / "docs" / "sizing.md").read_text()


def test_only_a_dispatcher_s_key_costs_more_with_more_than_64_workers() -> None:
    for part in PARTS:
        few, many = (expected_bytes(part, workers, RowConfig()).least for workers in (64, 65))
        assert many - few == (8 if part == "dispatcher" else 0)


def test_every_second_key_of_the_endless_stream_is_new(tmp_path: Path) -> None:
    stream = EndlessStream(tmp_path)
    stream.write(640)
    stream.close()
    codec, reader = PackedCodec(without_crosses(load_schema("criteo"))), LogReader(tmp_path, "clicks")
    samples, faults = codec.decode([record.payload for record in reader.read(0, 0)])
    reader.close()
    keys = samples.keys_BF
    assert faults == {}
    assert len(keys) == stream.written == 640
    half = keys.shape[1] // 2
    assert len(np.unique(keys[:, :half])) == 640 * half
    assert np.isin(keys[:, half:], made_up_keys(0, 200_000)).all()


def test_the_most_of_both_halves_is_compared() -> None:
    sizes = [10, 30, 20, 25, 60]
    moments = [Moment(100 * at, 7, at, size << 20, {"ps-0": size << 21}) for at, size in enumerate(sizes)]
    found = summed_up(moments, fields=26, seconds=9.0)
    assert (found.sightings, found.settled_keys, found.forgotten) == (400 * 26, 7, 4)
    shard, disk = found.processes
    assert (shard.name, shard.first_half_mib, shard.second_half_mib, shard.ratio) == ("ps-0", 60.0, 120.0, 2.0)
    assert (disk.name, disk.first_half_mib, disk.second_half_mib) == ("disk", 30.0, 60.0)


@pytest.mark.timeout(600)
def test_a_run_on_ever_new_keys_forgets_most_of_them(tmp_path: Path) -> None:
    output = tmp_path / "out.json"
    small = ("--set", "stream.batch=128", "--set", "dispatch.cache_rows=16384", "--keys", "1000", "--workers", "2")
    ended = run("bench", "memory", "--endless", "150000", "--expire", "8", *small, "--json", output)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    *parts, endless = json.loads(output.read_text())
    assert [part["part"] for part in parts] == list(PARTS)
    assert endless["sightings"] >= 150_000
    assert 0 < endless["end_keys"] < endless["forgotten"]
    names = [process["name"] for process in endless["processes"]]
    assert {"dispatcher", "ps-0", "ps-1", "worker-0", "worker-1", "serve", "disk"} <= set(names)


@pytest.mark.parametrize("keys", ["", "0", "1,x", "-4"])
def test_numbers_of_keys_that_make_no_sense_are_refused(keys: str) -> None:
    ended = run("bench", "memory", "--keys", keys)
    assert ended.returncode == 2
    assert "expected positive numbers separated by commas" in ended.stderr
