import errno
import os
import time
from contextlib import closing
from pathlib import Path

import pytest
import structlog
from prometheus_client import CollectorRegistry

from infra.base.telemetry import Meter
from ingest.log.embedded import LogReader, LogWriter
from ingest.log.segments import segment_firsts
from serving.labels.predictions import TOPIC, Prediction, PredictionLog, decode_predictions, new_id


@pytest.fixture
def meter() -> Meter:
    return Meter(CollectorRegistry())


def counted(meter: Meter, name: str) -> float:
    return meter.registry.get_sample_value(f"freshet_{name}_total") or 0.0


def logged(folder: Path, partition: int = 0) -> list[Prediction]:
    with closing(LogReader(folder, TOPIC)) as log:
        return [made for record in log.read(partition, 0) for made in decode_predictions(record.payload)]


def predictions(count: int) -> list[Prediction]:
    return [Prediction(new_id(), 1000 + number, 0.5, 0, 7) for number in range(count)]


def test_predictions_are_in_the_log_once_it_is_closed(tmp_path: Path, meter: Meter) -> None:
    given = predictions(10_000)
    with closing(PredictionLog(tmp_path, 2, 60, meter)) as log:
        log.append(given[:3])
        log.append(given[3:])
    assert logged(tmp_path, 2) == given
    assert counted(meter, "logged_predictions") == len(given)


def test_a_full_disk_is_counted_told_once_and_fails_nobody(
    tmp_path: Path, meter: Meter, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with structlog.testing.capture_logs() as logs, closing(PredictionLog(tmp_path, 0, 60, meter)) as log:
        with monkeypatch.context() as patched:
            patched.setattr("ingest.log.frames.os.pwrite", full)
            for _ in range(2):
                log.append(predictions(5))
                lost = counted(meter, "unlogged_predictions")
                while counted(meter, "unlogged_predictions") == lost:
                    time.sleep(0.001)
        log.append(predictions(1))
    assert counted(meter, "unlogged_predictions") == 10
    assert len(logged(tmp_path)) == 1
    assert len([line for line in logs if "No space left on device" in line["reason"]]) == 1


def test_more_predictions_than_may_wait_are_left_out(
    tmp_path: Path, meter: Meter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("serving.labels.predictions.MOST_UNWRITTEN", 3)
    with closing(PredictionLog(tmp_path, 0, 60, meter)) as log:
        log.append(predictions(5))
    assert (len(logged(tmp_path)), counted(meter, "unlogged_predictions")) == (3, 2)


def test_segments_whose_newest_record_is_too_old_go_unless_somebody_has_to_read_them(tmp_path: Path) -> None:
    partition = tmp_path / "t" / "00000"
    with closing(LogWriter(tmp_path, "t", 1, segment_bytes=4096, retention_seconds=60)) as log:
        for _ in range(4):
            log.append(0, [(None, bytes(5000))])
        first, second, *rest = segment_firsts(partition)
        for old in (first, second):
            os.utime(partition / f"{old:020d}.log", (time.time() - 61,) * 2)
        (tmp_path / "t" / "floor-joiner.json").write_text('{"0": {"offset": 1}}')
        log.append(0, [(None, bytes(5000))])
        assert segment_firsts(partition) == [second, *rest, 4]
        (tmp_path / "t" / "floor-joiner.json").unlink()
        log.append(0, [(None, bytes(5000))])
        assert segment_firsts(partition) == [*rest, 4, 5]
