"""Bad events of every kind over a real broker: dead-lettered once each, the model as if they had never come."""

import gc
from pathlib import Path
from typing import Any

import psutil

from ingest.batches.replay import form_batch
from ingest.codec.decoder import KINDS, Decoder
from ingest.codec.json_events import encode_json
from ingest.kafka.letter_topic import KafkaLetters, read_kafka_letters
from ingest.kafka.source import KafkaSource
from ingest.letters.letter import DeadLetter
from ingest.producing.poison import POISON
from ingest.streams.position import Position
from tests.brokers import TestBroker, fill_topic
from tests.end_to_end.threads import RUN, Plan, Result, train
from tests.ingest.topics import SYNTHETIC, events, json_records

GOOD, PARTITIONS = 600, 2
LARGE_BYTES = 8 << 20
ROUNDS = 40
FLAT_BYTES = 48 << 20
"""a quarter of what the poison of all rounds would take if it were kept"""


def hostile() -> dict[str, bytes | None]:
    """What a device should never send; none of it may be trained on."""
    event = events(1)[0]
    good = encode_json(event)
    kinds: dict[str, bytes | None] = {kind: poison(event, SYNTHETIC) for kind, poison in POISON.items()}
    return kinds | {
        "nested lists": good.replace(b'"fields":{', b'"fields":{"x":' + b"[" * 100_000 + b"]" * 100_000 + b","),
        "nested objects": good.replace(
            b'"fields":{', b'"fields":{"x":' + b'{"x":' * 100_000 + b"1" + b"}" * 100_000 + b","
        ),
        "long text": good.replace(b'"user":', b'"user":"' + b"x" * 1_000_000 + b'","other":'),
        "bytes": b"\xff" * 1000,
        "over the limit": good.replace(b'"fields":{', b'"fields":{"x":"' + b"y" * 2_000_000 + b'",'),
        "tombstone": None,
        "packed and torn": b"FSHT\x01\x00",
    }


def good_with_large_ids() -> list[bytes]:
    """Ids of 2**63 and beyond are ids like any other."""
    encoded = [encode_json(event) for event in events(GOOD)]
    for number, value in enumerate((2**63, 2**64, -(2**63) - 1, 10**40)):
        encoded[number] = b'{"event_time": 1.5, "label": 1, "fields": {"user": "u", "item": %d}}' % value
    return encoded


class PoisonedTopic:
    """A topic with its dead letters, and the run that trains on it."""

    def __init__(self, kafka: TestBroker, folder: Path, payloads: dict[int, list[bytes | None]]) -> None:
        self.config = kafka.config()
        self.topic = kafka.new_topic(partitions=PARTITIONS, **{"max.message.bytes": str(LARGE_BYTES)})
        self.letters = kafka.new_topic(partitions=1)
        fill_topic(self.config, self.topic, payloads, max_request_size=LARGE_BYTES)
        self.plan = Plan(
            folder,
            open_source=lambda: KafkaSource(self.config, self.topic),
            kafka=self.config,
            topic=self.topic,
            dead_letter_topic=self.letters,
        )

    def kept(self) -> list[DeadLetter]:
        return list(read_kafka_letters(self.config, self.letters))


def poisoned(good: list[bytes], bad: list[bytes | None]) -> dict[int, list[bytes | None]]:
    """Bad events spread evenly among the good ones of each partition, which keep their order."""
    mixed: dict[int, list[bytes | None]] = {}
    for partition in range(PARTITIONS):
        mixed[partition] = list(good[partition::PARTITIONS])
        mine = bad[partition::PARTITIONS]
        for number, payload in enumerate(mine):
            mixed[partition].insert((number + 1) * len(mixed[partition]) // (len(mine) + 1), payload)
    return mixed


def test_poison_of_every_kind_is_dead_lettered_once_and_changes_nothing(kafka: TestBroker, tmp_path: Path) -> None:
    good, bad = good_with_large_ids(), [*hostile().values()] * 2
    assert len(bad) >= 0.05 * GOOD
    dirty = PoisonedTopic(kafka, tmp_path / "dirty", poisoned(good, bad))
    clean = PoisonedTopic(kafka, tmp_path / "clean", poisoned(good, []))
    with_poison, without = train(dirty.plan), train(clean.plan)
    expect_same_model(with_poison, without)
    assert (with_poison.status.samples, with_poison.status.events.dead_letters) == (GOOD, len(bad))
    letters = dirty.kept()
    assert len({(letter.partition, letter.offset, letter.index) for letter in letters}) == len(letters) == len(bad)
    assert clean.kept() == []
    expect_originals(letters, bad)
    replay(dirty, with_poison)
    assert dirty.kept() == letters


def expect_same_model(one: Result, other: Result) -> None:
    assert one.rows_RT.tobytes() == other.rows_RT.tobytes()
    assert {n: w.tobytes() for n, w in one.dense.items()} == {n: w.tobytes() for n, w in other.dense.items()}


def expect_originals(letters: list[DeadLetter], bad: list[bytes | None]) -> None:
    """The letters hold the very bytes, or as many as are kept with the size of all."""
    whole = sorted(letter.payload for letter in letters if letter.size is None)
    assert whole == sorted(payload or b"" for payload in bad if len(payload or b"") <= 1_000_000)
    assert sorted(x.size or 0 for x in letters if x.size) == sorted(len(p) for p in bad if p and len(p) > 1_000_000)


def replay(stage: PoisonedTopic, result: Result) -> None:
    """What a recovered dispatcher does: the same batches from the same manifests, their letters again."""
    writer = KafkaLetters(stage.config, stage.letters, stage.topic, f"{RUN}/{stage.topic}")
    source = KafkaSource(stage.config, stage.topic)
    again = [form_batch(source, SYNTHETIC, manifest.ranges).dead_letters for manifest in result.manifests]
    assert sum(map(len, again)) == result.status.events.dead_letters
    assert sum(writer.append(letters) for letters in again) == 0
    source.close()
    writer.close()


def test_every_kind_is_rejected_with_a_reason() -> None:
    for kind, payload in hostile().items():
        decoded = Decoder(SYNTHETIC).decode(json_records([payload or b""]), Position(0))
        assert (len(decoded), len(decoded.rejects)) == (0, 1), kind
        assert decoded.rejects[0].reason.split(":")[0] in KINDS


def test_memory_stays_flat_under_poison() -> None:
    decoder, large = Decoder(SYNTHETIC), [payload or b"" for payload in hostile().values()]
    decode_all(decoder, large)  # what is made once is made
    before = resident_bytes()
    for _ in range(ROUNDS):
        decode_all(decoder, large)
    assert ROUNDS * sum(map(len, large)) > 3.5 * FLAT_BYTES
    assert resident_bytes() - before < FLAT_BYTES


def decode_all(decoder: Decoder, payloads: list[bytes]) -> None:
    decoded: Any = decoder.decode(json_records([bytes(bytearray(payload)) for payload in payloads]), Position(0))
    assert len(decoded.rejects) == len(payloads)


def resident_bytes() -> int:
    gc.collect()
    return int(psutil.Process().memory_info().rss)
