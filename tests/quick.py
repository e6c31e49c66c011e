"""``--quick``: the tests that find most in a minute. ``make quick`` runs them beside the checks.

They are the tests of the folders below, except files whose tests start servers or processes, search at random for long,
or together take two seconds or more. A file that is missing in the list only makes ``make quick`` slower.
"""

from fnmatch import fnmatch
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
FOLDERS = ("tests/api", "tests/dispatch", "tests/infra/web", "tests/ingest", "tests/ps", "tests/serving")
LONG_FILES = (
    "api/store/test_*.py",
    "api/test_access.py",
    "api/test_at_rest.py",
    "api/test_main.py",
    "api/test_outage.py",
    "api/test_public_values.py",
    "api/test_requests.py",
    "api/test_samples.py",
    "api/test_schema.py",
    "api/test_starting.py",
    "dispatch/checkpoints/test_gate.py",
    "dispatch/commands/test_client.py",
    "dispatch/journal/test_checkpoint_segments.py",
    "dispatch/journal/test_log.py",
    "dispatch/journal/test_random_histories.py",
    "dispatch/placement/assign/test_improvement.py",
    "dispatch/placement/assign/test_solver.py",
    "dispatch/placement/capacity/test_choice.py",
    "dispatch/placement/capacity/test_elastic.py",
    "dispatch/placement/capacity/test_level.py",
    "dispatch/placement/capacity/test_participation.py",
    "dispatch/placement/rows/test_directory.py",
    "dispatch/placement/rows/test_early.py",
    "dispatch/placement/rows/test_index.py",
    "dispatch/placement/rows/test_two_fold.py",
    "dispatch/placement/test_parking.py",
    "dispatch/placement/test_threads.py",
    "dispatch/steering/test_kernels.py",
    "dispatch/test_main.py",
    "infra/web/store/test_*.py",
    "infra/web/test_audit.py",
    "infra/web/test_limits.py",
    "ingest/codec/test_fuzzing.py",
    "ingest/codec/test_structure.py",
    "ingest/kafka/*.py",
    "ingest/test_check.py",
    "ps/checkpoints/test_files.py",
    "ps/checkpoints/test_manifest.py",
    "ps/checkpoints/test_packed_files.py",
    "ps/checkpoints/test_restore.py",
    "ps/checkpoints/test_taker.py",
    "ps/dense/test_lane.py",
    "ps/dense/test_update.py",
    "ps/test_ledger.py",
    "ps/test_main.py",
    "ps/test_pruned_store.py",
    "serving/labels/test_joiner.py",
    "serving/labels/test_served.py",
    "serving/snapshots/test_export.py",
    "serving/test_access.py",
    "serving/test_app.py",
    "serving/test_engine.py",
    "serving/test_follow.py",
    "serving/test_hostile.py",
    "serving/test_loading.py",
    "serving/test_schema.py",
    "serving/test_scoring.py",
)
SERVER_FIXTURES = frozenset({"kafka", "bucket", "postgres"})
SERVER_CASE = "postgresql"
"""Part of the id of a test that runs on both databases."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="Run the tests that tell most in a minute.")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--quick") and config.args == config.getini("testpaths"):
        config.args = list(FOLDERS)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Long files are not even imported."""
    file = collection_path.relative_to(TESTS).as_posix() if collection_path.is_relative_to(TESTS) else ""
    is_long = any(fnmatch(file, pattern) for pattern in LONG_FILES)
    return True if is_long and config.getoption("--quick") else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--quick"):
        left_out = [item for item in items if not is_quick(item)]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if is_quick(item)]


def is_quick(item: pytest.Item) -> bool:
    if item.get_closest_marker("gpu"):
        return False
    return SERVER_CASE not in item.name and not SERVER_FIXTURES.intersection(getattr(item, "fixturenames", ()))
