"""Down-sampling: a known share of negatives is kept, always the same ones, and they weigh for the others."""

import numpy as np
import pytest

from infra.base.errors import ConfigError
from ingest.codec.decoder import Decoder
from ingest.codec.json_events import encode_json
from ingest.convert import Event
from ingest.schema import Schema, parse_schema
from ingest.streams.position import Position
from ingest.streams.source import Record
from ingest.survey import Survey

TEXT = 'name = "sampled"\nweight = "worth"\ntables = [{name = "user"}]\n'
EVENTS = [Event(float(number), int(number % 10 == 0), {"user": number % 7, "worth": 2}) for number in range(4000)]
RECORDS = [Record(offset, None, encode_json(event), 0) for offset, event in enumerate(EVENTS)]


def sampled(text: str) -> Schema:
    return parse_schema(text + TEXT, "sampled")


def test_a_share_of_the_negatives_is_kept_and_weighs_for_all_of_them() -> None:
    decoded = Decoder(sampled("keep_negatives = 0.25\n")).decode(RECORDS, Position(0))
    labels_B, weights_B = decoded.samples.labels_B, decoded.samples.weights_B
    assert weights_B is not None
    assert np.count_nonzero(labels_B) == 400
    assert set(weights_B[labels_B == 1]) == {2}
    assert set(weights_B[labels_B == 0]) == {8}
    kept = np.count_nonzero(labels_B == 0)
    assert abs(kept - 900) < 5 * np.sqrt(3600 * 0.25 * 0.75)
    assert len(decoded.omitted_at) == 3600 - kept


def test_the_same_events_are_kept_however_they_are_read() -> None:
    decoder = Decoder(sampled("keep_negatives = 0.25\n"))
    whole = decoder.decode(RECORDS, Position(0))
    parts = [decoder.decode(RECORDS[start : start + 7], Position(start)) for start in range(0, 4000, 7)]
    assert np.array_equal(np.concatenate([part.at_B for part in parts]), whole.at_B)
    assert np.array_equal(np.concatenate([part.omitted_at for part in parts]), whole.omitted_at)


def test_events_without_some_negatives_are_all_kept_and_weighed() -> None:
    decoded = Decoder(sampled("negatives_kept = 0.1\n")).decode(RECORDS, Position(0))
    assert decoded.samples.weights_B is not None
    assert decoded.samples.weights_B.sum() == 400 * 2 + 3600 * 20
    assert not len(decoded.omitted_at)


def test_events_to_be_predicted_or_checked_are_all_kept() -> None:
    schema = sampled("keep_negatives = 0.25\n")
    assert len(Decoder(schema, needs_label=False).decode(RECORDS, Position(0))) == 4000
    survey = Survey(schema)
    survey.add([record.payload for record in RECORDS[:100]])
    assert survey.findings().good == 100


@pytest.mark.parametrize("entry", ["keep_negatives = 0", "keep_negatives = 1.5", "negatives_kept = -1"])
def test_a_share_that_makes_no_sense_is_refused(entry: str) -> None:
    with pytest.raises(ConfigError, match=r"expected a share from 0\.0001 to 1"):
        sampled(f"{entry}\n")
