"""How the workers of pytest-xdist share the tests: whole runs by function, all others by file, the long ones first.

Tests of a file that share a run, ``ONE_RUN_FILES``, stay with one worker and in their order.

pytest-xdist identifies a test by its node id, and runs only one of several with the same id. The tests of an OpenAPI
document's operations differ by name only, so they get different ids here.

Tests that use the broker stay with one worker, so that there is one broker; a test that is missing in the list below
would work, with a separate broker.
"""

from collections import Counter
from dataclasses import replace

import pytest
from xdist.scheduler.loadscope import LoadScopeScheduling  # type: ignore[import-untyped]

LONGEST = (
    *("tests/end_to_end/test_life.py", "tests/control_plane/", "tests/infra/chaos/"),
    "tests/test_commands_in_documents.py",
)
LONG = (*LONGEST, "tests/end_to_end/", "tests/infra/", "tests/benchmarks/", "tests/ingest/kafka/", "tests/trainer/")
"""Started before all others, in this order, so that no worker is left with a long test at the end."""
BY_FUNCTION = "tests/end_to_end/"
ONE_RUN = ("life", "live", "damage", "serving", "dashboard", "first_hour", "plugged")
ONE_RUN_FILES = tuple(f"tests/end_to_end/test_{name}.py" for name in ONE_RUN)
BROKER_FILES = (
    *("end_to_end/test_kafka.py", "end_to_end/test_kafka_poison.py", "end_to_end/test_kafka_processes.py"),
    *("end_to_end/test_kcat.py", "infra/cli/test_stream.py", "benchmarks/test_kafka.py"),
    *("ingest/kafka/test_source.py", "ingest/kafka/test_sink.py", "ingest/kafka/test_topics.py"),
    *("ingest/kafka/test_letter_topic.py", "infra/kafka/test_broker.py", "ingest/test_check.py"),
    *("api/test_requests.py", "api/test_samples.py", "serving/labels/test_joiner.py", "infra/deploy/test_compose.py"),
    *("ingest/kafka/clients/test_peek.py", "ingest/kafka/test_frame_topic.py", "end_to_end/test_restore.py"),
)


def share_of(test: str) -> str:
    """Tests with the same result go to one worker, one after the other."""
    file, _, function = test.partition("::")
    if file.removeprefix("tests/") in BROKER_FILES:
        return "broker"
    by_function = file.startswith(BY_FUNCTION) and file not in ONE_RUN_FILES
    return f"{file}::{function.partition('[')[0]}" if by_function else file


def order_of(test: str) -> int:
    """Tests with a lower result start earlier; those of the broker do, because they wait more than they compute."""
    if share_of(test) == "broker":
        return -1
    return next((number for number, folder in enumerate(LONG) if test.startswith(folder)), len(LONG))


def name_apart(items: list[pytest.Item]) -> None:
    """Adds the bracketed part of tests' names to ids that several tests have."""
    times = Counter(item.nodeid for item in items)
    for item in items:
        if times[item.nodeid] > 1:
            item._id = replace(item.id, params=item.name.partition("[")[2].removesuffix("]"))


class Shares(LoadScopeScheduling):  # type: ignore[misc]
    """Hands out shares in the order in which the tests were collected."""

    def _split_scope(self, nodeid: str) -> str:
        return share_of(nodeid)
