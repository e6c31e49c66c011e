"""Whatever bytes arrive: every record is samples that can be trained, or a dead letter with a known reason."""

import json
import math
import struct
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from ingest.batches.counting import count_present, count_present_reference
from ingest.batches.job import LoaderJob
from ingest.batches.loader import Loader
from ingest.codec.decoder import KINDS, Decoded, Decoder
from ingest.codec.json_events import JsonCodec
from ingest.codec.nesting import is_too_deep
from ingest.codec.packed import HEADER
from ingest.codec.structure import CLEAR, DEEP, has_duplicates, scan_structure
from ingest.columns import MAX_TIME
from ingest.keys import absent_key, key_of, log_square
from ingest.log.embedded import LogReader, LogWriter
from ingest.producing.encoder import partition_key
from ingest.streams.position import Position
from ingest.survey import Survey
from tests.fuzzing import seed_and_rounds
from tests.ingest.codec.mutations import CODEC, json_event, packed_record
from tests.ingest.topics import SMALL, drain, json_records

JSON_CASES, PACKED_CASES = 2500, 1500
FRAMES = 600
"""of another caller's stack"""


def cases(make: Callable[[Random], bytes], count: int) -> list[bytes]:
    seed, rounds = seed_and_rounds()
    draw = Random(seed)
    return [make(draw) for _ in range(count * rounds)]


@pytest.fixture(scope="module")
def json_cases() -> list[bytes]:
    return cases(json_event, JSON_CASES)


@pytest.fixture(scope="module")
def packed_cases() -> list[bytes]:
    return cases(packed_record, PACKED_CASES)


def decode(payloads: list[bytes], frames: int = 0) -> Decoded:
    if frames:
        return decode(payloads, frames - 1)
    return Decoder(SMALL).decode(json_records(payloads), Position(0))


def expect_trainable(decoded: Decoded) -> None:
    samples = decoded.samples
    assert np.isin(samples.labels_B, (0, 1)).all()
    assert np.isfinite(samples.dense_BN).all()
    assert ((samples.times_B >= 0) & (samples.times_B < MAX_TIME)).all()
    assert ((samples.dense_BN >= (0, -5)) & (samples.dense_BN <= np.array((math.log1p(200), 5), np.float32))).all()
    assert (count_present(samples, SMALL) == count_present_reference(samples, SMALL)).all()


def expect_equal(one: Decoded, other: Decoded) -> None:
    assert one.samples.equals(other.samples)
    assert one.rejects == other.rejects
    assert one.end == other.end
    assert (one.at_B == other.at_B).all()


def test_json_is_a_sample_or_a_dead_letter_of_a_known_kind(json_cases: list[bytes]) -> None:
    decoded = decode(json_cases)
    expect_trainable(decoded)
    rejected = {reject.position.offset for reject in decoded.rejects}
    assert rejected | set(decoded.at_B[:, 0].tolist()) == set(range(len(json_cases)))
    assert len(decoded) + len(decoded.rejects) == len(json_cases)
    kinds = {reject.reason.partition(":")[0] for reject in decoded.rejects}
    assert kinds == set(KINDS) - {"wrong schema", "too small", "not finite"}, (
        "every kind of JSON comes up, and no other"
    )
    assert all(reject.payload == json_cases[reject.position.offset] for reject in decoded.rejects)
    assert len(decoded) > 0.3 * len(json_cases), "good events come up, too"


def test_json_is_decoded_alike_again_alone_and_from_another_stack(json_cases: list[bytes]) -> None:
    decoded = decode(json_cases)
    expect_equal(decoded, decode(json_cases))
    expect_equal(decoded, decode(json_cases, FRAMES))
    faults = {reject.position.offset: reject.reason for reject in decoded.rejects}
    codec = JsonCodec(SMALL)
    for row in range(0, len(json_cases), 5):
        assert codec.decode([json_cases[row]])[1].get(0) == faults.get(row)


def test_json_gives_the_sample_that_its_text_says(json_cases: list[bytes]) -> None:
    decoded = decode(json_cases)
    for row, offset in enumerate(decoded.at_B[:, 0].tolist()):
        keys, dense, label, time = plain_sample(json.loads(json_cases[offset]))
        assert decoded.samples.keys_BF[row].tolist() == keys
        np.testing.assert_array_equal(decoded.samples.dense_BN[row], np.array(dense, np.float32))
        assert (decoded.samples.labels_B[row], decoded.samples.times_B[row]) == (label, time)


def plain_sample(event: dict[str, Any]) -> tuple[list[int], list[float], float, float]:
    """Keys, floats, label and time of an event of SMALL, value by value."""
    fields = event["fields"]
    tags = fields.get("tags")
    values = [*(tags if isinstance(tags, list) else [tags]), None, None, None][:3]
    age, score = fields.get("age"), fields.get("score")
    bucket = absent_key("age_bucket") if age is None else key_of("age_bucket", log_square(age))
    keys = [key_of("user", fields.get("user")), *(key_of("tags", value) for value in values), bucket]
    dense = [0.0 if age is None else float(np.log1p(float(age))), 0.0 if score is None else float(score)]
    return keys, dense, float(event["label"]), float(event["event_time"])


def test_the_kernel_sees_the_structure_that_the_references_see(json_cases: list[bytes]) -> None:
    for payload, found in zip(json_cases, scan_structure(json_cases).tolist(), strict=True):
        assert (found == DEEP) == is_too_deep(payload)
        if found == CLEAR and is_json(payload):
            assert not has_duplicates(payload)


def is_json(payload: bytes) -> bool:
    try:
        json.loads(payload.decode(), parse_int=str)
    except ValueError:
        return False
    return True


def test_packed_records_are_samples_or_dead_letters_one_by_one(packed_cases: list[bytes]) -> None:
    decoded = decode(packed_cases)
    expect_trainable(decoded)
    expect_equal(decoded, decode(packed_cases, FRAMES))
    good = {(offset, index) for offset, index in decoded.at_B.tolist()}
    bad = {(reject.position.offset, reject.position.index) for reject in decoded.rejects}
    assert len(good) + len(bad) == len(decoded) + len(decoded.rejects)
    expected_good, expected_bad = plain_places(packed_cases)
    assert (good, bad) == (expected_good, expected_bad)
    kinds = {reject.reason.partition(":")[0] for reject in decoded.rejects}
    assert kinds == {"not decodable", "wrong schema", "label", "not finite", "negative", "oversized"}


def plain_places(payloads: list[bytes]) -> tuple[set[tuple[int, int]], set[tuple[int, int]]]:
    """(record, sample) of good and of bad events, sample by sample; a record that cannot be used is one bad event."""
    good: set[tuple[int, int]] = set()
    bad: set[tuple[int, int]] = set()
    layout = struct.Struct("<d5Q2ff")
    for offset, payload in enumerate(payloads):
        if not is_usable(payload, layout.size):
            bad.add((offset, 0))
            continue
        for index, (time, *_keys, age, score, label) in enumerate(layout.iter_unpack(payload[HEADER.size :])):
            fits = 0 <= time < MAX_TIME and label in (0, 1) and 0 <= age <= np.float32(math.log1p(200))
            (good if fits and -5 <= score <= 5 else bad).add((offset, index))
    return good, bad


def is_usable(payload: bytes, sample_bytes: int) -> bool:
    if not HEADER.size < len(payload) <= SMALL.limits.record_bytes or not payload.startswith(b"FSHT"):
        return False
    _, version, _, fingerprint, count, *shape = HEADER.unpack_from(payload)
    fits = (version, fingerprint, *shape) == (1, int(SMALL.fingerprint, 16), SMALL.fields, SMALL.dense)
    return fits and len(payload) == HEADER.size + count * sample_bytes


def test_everything_produced_is_trained_or_a_dead_letter(
    tmp_path: Path, json_cases: list[bytes], packed_cases: list[bytes], fuzz_seed: int
) -> None:
    mixed = [*json_cases, *packed_cases]
    Random(fuzz_seed).shuffle(mixed)
    writer = LogWriter(tmp_path, "clicks", 2)
    for partition in range(2):
        writer.append(partition, [(None, payload) for payload in mixed[partition::2]])
    writer.close()
    batches = list(drain(Loader(LogReader(tmp_path, "clicks"), LoaderJob(SMALL, 512, stop_at_end=True))))
    decoded = decode(mixed)
    assert sum(len(batch.samples) for batch in batches) == len(decoded)
    assert sum(len(batch.dead_letters) for batch in batches) == len(decoded.rejects)
    ends = {r.partition: r.end for batch in batches for r in batch.ranges}
    assert ends == {0: Position(len(mixed[0::2])), 1: Position(len(mixed[1::2]))}


def test_those_who_only_look_raise_nothing(json_cases: list[bytes], packed_cases: list[bytes]) -> None:
    looking = Survey(SMALL)
    looking.add([*json_cases, *packed_cases])
    decoded = decode([*json_cases, *packed_cases])
    assert looking.events == len(decoded) + len(decoded.rejects)
    assert looking.findings().good == len(decoded)
    keys = [partition_key(payload, SMALL) for payload in json_cases]
    assert 0.2 < sum(key is not None for key in keys) / len(keys) < 1
    assert CODEC.most > 5
