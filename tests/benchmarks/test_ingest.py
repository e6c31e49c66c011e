from pathlib import Path

from benchmarks.ingest import run_ingest


def test_benchmark_measures_every_path(tmp_path: Path) -> None:
    results = run_ingest(tmp_path, samples=600)
    assert [r.name for r in results] == [
        "json encode",
        "json decode",
        "packed encode",
        "packed decode",
        "log append, json",
        "log read, json",
        "loader, json",
        "log append, packed",
        "log read, packed",
        "loader, packed",
    ]
    assert all(r.samples == 600 and r.samples_per_second > 0 for r in results)
