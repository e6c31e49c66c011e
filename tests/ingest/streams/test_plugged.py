"""Sources of other packages: what is read, and what is refused with one line."""

from collections.abc import Callable
from pathlib import Path

import pytest

from infra.base.errors import ConfigError, FreshetError
from infra.base.process import Stop
from infra.cli.first.plugin import write_plugin
from ingest.config import StreamConfig
from ingest.errors import SinkError, SourceError, SourceUnavailable
from ingest.kafka.config import KafkaConfig
from ingest.opening import check_source, open_sink, open_source
from ingest.schema import load_schema
from ingest.streams.plugged import try_source
from tests.own_modules import WriteModule

METHODS = {
    "__init__(self, inputs)": "self.inputs = inputs",
    "partitions(self)": "return [0]",
    "span(self, partition)": "return 0, 2",
    "read(self, partition, offset, max_bytes)": "return [Record(n, None, b'{}', 0) for n in range(offset, 2)]",
    "offset_at(self, partition, time_ms)": "return 0",
    "commit(self, offsets)": "pass",
    "close(self)": "pass",
}
Own = Callable[..., StreamConfig]


@pytest.fixture
def own(write_module: WriteModule, tmp_path: Path) -> Own:
    """Settings with a source of a module, some of whose methods are as given."""

    def write(**changed: str) -> StreamConfig:
        bodies = {head: changed.get(head.partition("(")[0], body) for head, body in METHODS.items()}
        lines = [f"    def {head}: {body}" for head, body in bodies.items() if body]
        text = "import random\nfrom freshet import Record, SourceUnavailable\nclass Own:\n    clock = 'append'\n"
        return StreamConfig(source=f"{write_module(text + chr(10).join(lines))}:Own", folder=tmp_path, partitions=2)

    return write


def test_the_template_reads_what_its_sink_has_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_plugin("source", tmp_path / "own")
    monkeypatch.syspath_prepend(tmp_path / "own")
    stream = StreamConfig(source="my_source:MySource", folder=tmp_path, partitions=2)
    sink, source = open_sink(stream, KafkaConfig(), Stop()), open_source(stream, KafkaConfig())
    sink.write({0: [(None, b"{}"), (b"key", b"[]")], 1: [(None, b"7")]})
    check_source(stream, KafkaConfig(), load_schema("synthetic"))
    assert sink.ends() == {number: source.span(number)[1] for number in source.partitions()} == {0: 2, 1: 1}
    assert [(each.offset, each.payload) for each in source.read(0, 1, 1)] == [(1, b"[]")]
    with (tmp_path / "clicks" / "1.jsonl").open("ab") as torn:
        torn.write(b"half")
    assert source.span(1) == (0, 1)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"commit": ""}, r"is no source: it is a class Own without commit\(\)"),
        (
            {"__init__": "inputs.host"},
            "cannot be opened: AttributeError: 'SourceInputs' object has no attribute 'host'",
        ),
        ({"partitions": "return [0, 0]"}, r"gives partitions \[0, 0\]; expected different numbers"),
        ({"partitions": "return None"}, r"fails at partitions\(\): TypeError: 'NoneType' object is not iterable"),
        ({"span": "return 3, 2"}, r"gives \(3, 2\) as the span of partition 0"),
        ({"span": "return [str(partition)]"}, r"gives \('0',\) as the span of partition 0"),
        ({"read": "return []"}, "has records 0 to 1 in partition 0 and reads none"),
        ({"read": "return ['{}']"}, "reads list from partition 0; expected a list of freshet.Record"),
        ({"read": "return [Record(1, None, b'', 0)] * 2"}, r"reads offsets \[1, 1\] from 0 on; expected rising ones"),
        (
            {"read": "return [Record(0, None, random.randbytes(9), 0)]"},
            "reads other records at offset 0 of partition 0",
        ),
        ({"read": "raise SourceUnavailable('not now')"}, "^not now$"),
    ],
)
def test_a_mistake_is_refused_with_one_line_before_a_run(own: Own, changed: dict[str, str], told: str) -> None:
    stream = own(**changed)
    with pytest.raises(FreshetError, match=told) as refused:
        try_source(stream)
    assert "\n" not in str(refused.value)


def test_a_source_that_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match=r"there is no source 'kafak'; expected one of log, kafka, .* write 'kafka'"):
        StreamConfig(source="kafak")


def test_an_error_asks_for_another_attempt_only_if_it_says_so(own: Own) -> None:
    with pytest.raises(SourceUnavailable):
        open_source(own(span="raise SourceUnavailable('not now')"), KafkaConfig()).span(0)
    with pytest.raises(SourceError, match=r"fails at span\(0\): ZeroDivisionError"):
        open_source(own(span="1 / 0"), KafkaConfig()).span(0)


def test_events_go_only_to_a_source_with_a_sink(own: Own, write_module: WriteModule) -> None:
    with pytest.raises(ConfigError, match=r"it has no sink; expected a class with open_sink\(cls, inputs\)"):
        open_sink(own(), KafkaConfig(), Stop())
    body = "pass\n    @classmethod\n    def open_sink(cls, inputs): return cls(inputs)\n    def write(self, e): 1 / 0"
    with pytest.raises(ConfigError, match=r"sink .* has no ends\(\); expected write, ends, close"):
        open_sink(own(close=body), KafkaConfig(), Stop())
    sink = open_sink(own(close=f"{body}\n    def ends(self): return {{}}"), KafkaConfig(), Stop())
    with pytest.raises(SinkError, match=r"fails at write\(\): ZeroDivisionError"):
        sink.write({})
