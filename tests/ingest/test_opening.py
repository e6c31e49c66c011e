from contextlib import closing
from pathlib import Path

import pytest

from infra.base.process import Stop
from ingest.config import StreamConfig
from ingest.errors import LogBusy
from ingest.kafka.config import KafkaConfig
from ingest.opening import open_letters, open_sink


def test_a_second_run_in_one_folder_is_told_what_to_set(tmp_path: Path) -> None:
    stream, kafka = StreamConfig(folder=tmp_path), KafkaConfig()
    told = pytest.raises(LogBusy, match=r"'dead-letters' in .* set stream\.dead_letter_topic or stream\.folder to")
    with closing(open_letters(stream, kafka, "first")), told:
        open_letters(stream, kafka, "second")
    open_letters(stream, kafka, "second").close()


def test_a_second_producer_is_told_what_to_set(tmp_path: Path) -> None:
    stream, kafka = StreamConfig(folder=tmp_path), KafkaConfig()
    told = pytest.raises(LogBusy, match=r"'clicks' in .* set stream\.topic or stream\.folder to another")
    with closing(open_sink(stream, kafka, Stop())), told:
        open_sink(stream, kafka, Stop())
