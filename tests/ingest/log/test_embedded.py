import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.errors import LogBusy, LogCorrupt, LogError, OffsetOutOfRange
from ingest.log.embedded import LogReader, LogWriter
from ingest.log.partition_reader import PartitionReader
from ingest.log.partition_writer import PartitionWriter
from ingest.log.segments import SEGMENT, encode_records, segment_firsts, segment_path
from ingest.streams.sink import Entry
from ingest.streams.source import Record

entries = st.lists(st.tuples(st.none() | st.binary(max_size=20), st.binary(max_size=300)), max_size=8)


def payloads(folder: Path, max_bytes: int = 1 << 20, offset: int = 0) -> list[bytes]:
    reader = PartitionReader(folder)
    found: list[Record] = []
    while records := reader.read(offset + len(found), max_bytes):
        found += records
    reader.close()
    assert [record.offset for record in found] == list(range(offset, offset + len(found)))
    return [record.payload for record in found]


def append(folder: Path, *given_payloads: bytes, segment_bytes: int = 4096, retention_bytes: int | None = None) -> None:
    writer = PartitionWriter(folder, segment_bytes, retention_bytes)
    for payload in given_payloads:
        writer.append([(None, payload)])
    writer.close()


@given(st.lists(entries, max_size=6), st.integers(1, 2000), st.integers(1, 500))
def test_what_is_appended_is_read(
    tmp_path_factory: pytest.TempPathFactory, batches: list[list[Entry]], segment_bytes: int, max_bytes: int
) -> None:
    folder = tmp_path_factory.mktemp("log") / "topic"
    writer = PartitionWriter(folder, segment_bytes)
    for batch in batches:
        writer.append(batch, time_ms=123)
    reader = PartitionReader(folder)
    found: list[Record] = []
    while records := reader.read(len(found), max_bytes):
        found += records
    flat = [entry for batch in batches for entry in batch]
    assert found == [Record(i, key, payload, 123) for i, (key, payload) in enumerate(flat)]
    assert all(reader.read(i, 1)[0] == record for i, record in reversed(list(enumerate(found))))
    writer.close()
    reader.close()


def test_tail_torn_at_any_byte_keeps_every_whole_record(tmp_path: Path) -> None:
    append(tmp_path / "a", b"one", b"two")
    path, mark = segment_path(tmp_path / "a", 0), (tmp_path / "a" / "mark").read_bytes()
    durable = path.read_bytes()
    torn = [encode_records([(None, b"three")], 1), encode_records([(b"k", b"four" * 9)], 1)]
    for cut in range(len(b"".join(torn)) + 1):
        path.write_bytes(durable + b"".join(torn)[:cut])
        (tmp_path / "a" / "mark").write_bytes(mark)
        whole = sum(cut >= len(b"".join(torn[:n])) for n in (1, 2))
        append(tmp_path / "a", b"next")
        assert payloads(tmp_path / "a") == [b"one", b"two", *[b"three", b"four" * 9][:whole], b"next"]


def test_zeros_behind_the_mark_are_cut_off(tmp_path: Path) -> None:
    append(tmp_path / "a", b"one")
    with segment_path(tmp_path / "a", 0).open("ab") as file:
        file.write(b"\0" * 100)
    append(tmp_path / "a", b"two")
    assert payloads(tmp_path / "a") == [b"one", b"two"]


def test_reader_does_not_see_what_is_behind_the_mark(tmp_path: Path) -> None:
    append(tmp_path / "a", b"one")
    with segment_path(tmp_path / "a", 0).open("ab") as file:
        file.write(encode_records([(None, b"not durable yet")], 1))
    assert payloads(tmp_path / "a") == [b"one"]


def test_lost_mark_is_rebuilt_from_the_segments(tmp_path: Path) -> None:
    append(tmp_path / "a", *[bytes([65 + i]) * 900 for i in range(12)], segment_bytes=2000)
    (tmp_path / "a" / "mark").unlink()
    append(tmp_path / "a", b"next")
    assert payloads(tmp_path / "a") == [*[bytes([65 + i]) * 900 for i in range(12)], b"next"]


def test_old_mark_after_a_power_cut_loses_nothing(tmp_path: Path) -> None:
    append(tmp_path / "a", b"x" * 900, segment_bytes=2000)
    mark = (tmp_path / "a" / "mark").read_bytes()
    append(tmp_path / "a", *[b"y" * 900] * 9, segment_bytes=2000)
    (tmp_path / "a" / "mark").write_bytes(mark)
    append(tmp_path / "a", b"next", segment_bytes=2000)
    assert payloads(tmp_path / "a") == [b"x" * 900, *[b"y" * 900] * 9, b"next"]


@pytest.mark.parametrize(
    ("place", "named"),
    [*((SEGMENT.size + inside, SEGMENT.size) for inside in (0, 4, 8, 20, 30)), *((place, 0) for place in (0, 9, 35))],
)
def test_damage_before_the_mark_names_file_and_byte(tmp_path: Path, place: int, named: int) -> None:
    append(tmp_path / "a", b"one" * 10, b"two")
    path = segment_path(tmp_path / "a", 0)
    content = bytearray(path.read_bytes())
    content[place] ^= 0x55
    path.write_bytes(content)
    with pytest.raises(LogCorrupt, match=rf"00000000000000000000\.log is damaged at byte {named}\b"):
        payloads(tmp_path / "a")


def test_file_shorter_than_the_mark_is_refused(tmp_path: Path) -> None:
    append(tmp_path / "a", b"one", b"two")
    os.truncate(segment_path(tmp_path / "a", 0), 50)
    with pytest.raises(LogCorrupt, match="50 bytes but"):
        PartitionWriter(tmp_path / "a")


def test_damaged_mark_is_refused(tmp_path: Path) -> None:
    append(tmp_path / "a", b"one")
    (tmp_path / "a" / "mark").write_bytes(b"x" * 40)
    with pytest.raises(LogCorrupt, match=r"/a/mark is damaged"):
        payloads(tmp_path / "a")


def test_damage_in_an_old_segment_behind_an_old_mark_is_refused(tmp_path: Path) -> None:
    append(tmp_path / "a", *[b"y" * 900] * 9, segment_bytes=2000)
    (tmp_path / "a" / "mark").unlink()
    os.truncate(segment_path(tmp_path / "a", 0), 500)
    with pytest.raises(LogCorrupt, match=f"is damaged at byte {SEGMENT.size}"):
        PartitionWriter(tmp_path / "a")


def test_missing_segment_behind_an_old_mark_is_refused(tmp_path: Path) -> None:
    append(tmp_path / "a", *[b"y" * 900] * 9, segment_bytes=2000)
    (tmp_path / "a" / "mark").unlink()
    segment_path(tmp_path / "a", segment_firsts(tmp_path / "a")[1]).unlink()
    with pytest.raises(LogCorrupt, match="no segment begins with that record"):
        PartitionWriter(tmp_path / "a")


def test_second_writer_of_a_partition_is_refused(tmp_path: Path) -> None:
    first = PartitionWriter(tmp_path / "a")
    with pytest.raises(LogBusy, match="another process holds its lock"):
        PartitionWriter(tmp_path / "a")
    first.close()
    PartitionWriter(tmp_path / "a").close()


def test_retention_removes_whole_old_segments(tmp_path: Path) -> None:
    append(tmp_path / "a", *[bytes([65 + i]) * 900 for i in range(20)], segment_bytes=2000, retention_bytes=5000)
    reader = PartitionReader(tmp_path / "a")
    first = reader.mark().first
    reader.close()
    assert 0 < first < 20
    assert segment_firsts(tmp_path / "a")[0] == first
    assert payloads(tmp_path / "a", offset=first) == [bytes([65 + i]) * 900 for i in range(first, 20)]


def test_offset_below_the_first_retained_one_is_refused(tmp_path: Path) -> None:
    append(tmp_path / "a", *[b"x" * 900] * 20, segment_bytes=2000, retention_bytes=5000)
    with pytest.raises(OffsetOutOfRange, match=r"record 0 of .* cannot be read: it holds"):
        payloads(tmp_path / "a")


def test_offset_beyond_the_end_is_refused(tmp_path: Path) -> None:
    append(tmp_path / "a", b"one")
    with pytest.raises(OffsetOutOfRange, match="record 3"):
        payloads(tmp_path / "a", offset=3)


def test_reader_sees_growth_new_segments_and_new_partitions(tmp_path: Path) -> None:
    writer, reader = LogWriter(tmp_path, "t", 1, segment_bytes=4096), LogReader(tmp_path, "t")
    writer.append(0, [(None, b"one" * 1000)])
    assert (reader.partitions(), len(reader.read(0, 0))) == ([0], 1)
    writer.append(0, [(None, b"two" * 1000)])
    writer.append(0, [(b"key", b"three")])
    more = LogWriter(tmp_path, "t", [1])
    assert (reader.partitions(), reader.span(0), reader.span(1)) == ([0, 1], (0, 3), (0, 0))
    assert [record.payload for record in reader.read(0, 1)] == [b"two" * 1000]
    assert [record.key for record in reader.read(0, 2)] == [b"key"]
    for one in (writer, more, reader):
        one.close()


def test_reader_of_a_topic_that_is_not_there_yet_has_no_partitions(tmp_path: Path) -> None:
    reader = LogReader(tmp_path, "nothing")
    assert reader.partitions() == []
    with pytest.raises(LogError, match="cannot read partition"):
        reader.span(0)


def test_record_larger_than_the_read_is_returned_whole(tmp_path: Path) -> None:
    append(tmp_path / "a", b"x" * 100_000, b"y")
    assert payloads(tmp_path / "a", max_bytes=10) == [b"x" * 100_000, b"y"]


def test_a_record_that_is_too_large_is_refused_and_leaves_the_log_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ingest.log.segments.MAX_BODY", 100)
    writer = PartitionWriter(tmp_path / "a")
    with pytest.raises(LogError, match="cannot append a record of 103 bytes; expected 100 at most"):
        writer.append([(None, b"one"), (b"key", b"x" * 87)])
    writer.append([(None, b"two")])
    writer.close()
    assert payloads(tmp_path / "a") == [b"two"]


def test_full_disk_leaves_the_log_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = PartitionWriter(tmp_path / "a")
    writer.append([(None, b"one")])
    real, calls = os.pwrite, []

    def half_then_full(file: int, content: bytes, place: int) -> int:
        calls.append(place)
        if len(calls) == 1:
            return real(file, content[:5], place)
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", half_then_full)
        with pytest.raises(LogError, match="No space left on device"):
            writer.append([(None, b"two")])
    writer.append([(None, b"three")])
    writer.close()
    assert (len(calls), payloads(tmp_path / "a")) == (2, [b"one", b"three"])


def test_record_that_cannot_be_made_durable_is_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_file: int) -> None:
        raise OSError(5, "Input/output error")

    writer = PartitionWriter(tmp_path / "a")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", fail)
        with pytest.raises(LogError, match="Input/output error"):
            writer.append([(None, b"one")])
    assert (writer.end, payloads(tmp_path / "a")) == (0, [])
    writer.close()


def test_killed_writer_leaves_only_whole_records(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from ingest.log.partition_writer import PartitionWriter\n"
        "w = PartitionWriter(Path(sys.argv[1])); n = 0\n"
        "while True:\n"
        "    w.append([(None, b'%d' % (n + i)) for i in range(50)]); n += 50; print(n, flush=True)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", script, str(tmp_path / "a")], stdout=subprocess.PIPE)
    assert child.stdout is not None
    acknowledged = [int(child.stdout.readline()) for _ in range(20)][-1]
    assert len(payloads(tmp_path / "a")) >= acknowledged  # read while the other process writes
    child.kill()
    child.communicate()
    found = payloads(tmp_path / "a")
    assert len(found) >= acknowledged
    assert found == [b"%d" % i for i in range(len(found))]
    append(tmp_path / "a", b"next")
    assert payloads(tmp_path / "a")[-1] == b"next"
