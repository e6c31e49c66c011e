from fnmatch import filter as matching
from pathlib import Path

from tests.quick import FOLDERS, LONG_FILES

ROOT = Path(__file__).resolve().parents[1]


def test_what_is_left_out_of_the_quick_tests_is_there() -> None:
    files = [str(path.relative_to(ROOT / "tests")) for path in (ROOT / "tests").rglob("*.py")]
    assert [pattern for pattern in LONG_FILES if not matching(files, pattern)] == []
    assert [folder for folder in FOLDERS if not (ROOT / folder).is_dir()] == []
