from pathlib import Path

import pytest

from ingest.batches.replay import form_batch
from ingest.errors import SourceError
from ingest.log.embedded import LogReader
from ingest.streams.position import Position, Range
from tests.ingest.batches.loading import load, poisoned
from tests.ingest.topics import SYNTHETIC, events, write_json


@pytest.mark.parametrize("samples_per_record", [0, 16])
@pytest.mark.parametrize("read_bytes", [1, 1 << 20])
def test_batch_formed_again_from_its_ranges_is_the_same(
    tmp_path: Path, samples_per_record: int, read_bytes: int
) -> None:
    batches, _ = poisoned(tmp_path, samples_per_record, good=200)
    reader = LogReader(tmp_path, "clicks")
    for batch in batches:
        again = form_batch(reader, SYNTHETIC, batch.ranges, read_bytes)
        assert again.samples.equals(batch.samples)
        assert (again.ranges, again.dead_letters) == (batch.ranges, batch.dead_letters)
    reader.close()


def test_ranges_in_any_order_form_the_same_batch(tmp_path: Path) -> None:
    write_json(tmp_path, events(20))
    batch, reader = load(tmp_path)[0], LogReader(tmp_path, "clicks")
    again = form_batch(reader, SYNTHETIC, batch.ranges[::-1])
    assert (again.ranges, again.samples.equals(batch.samples)) == (batch.ranges, True)
    reader.close()


def test_forming_a_batch_beyond_the_log_is_refused(tmp_path: Path) -> None:
    write_json(tmp_path, events(10))
    reader = LogReader(tmp_path, "clicks")
    with pytest.raises(SourceError, match="partition 0 ends at 5, the manifest goes to 9"):
        form_batch(reader, SYNTHETIC, [Range(0, Position(1), Position(9))])
    reader.close()
