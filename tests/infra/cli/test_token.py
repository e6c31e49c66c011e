"""``freshet token`` as people use it."""

import json
from pathlib import Path

import pytest

from infra.base.errors import ConfigError
from infra.cli.token import parse_seconds
from tests.end_to_end.processes import run


def test_a_token_is_created_listed_and_revoked(tmp_path: Path) -> None:
    where = ("--database", f"sqlite:///{tmp_path / 'new' / 'freshet.db'}", "--json")
    made = json.loads(run("token", "create", "--name", "ann", "--scope", "read", "--expires", "30d", *where).stdout)
    assert made["secret"].startswith("fr_")
    listed = run("token", "list", *where).stdout
    assert made["secret"] not in listed
    assert json.loads(listed) == [{name: value for name, value in made.items() if name != "secret"}]
    assert json.loads(run("token", "revoke", made["id"], *where).stdout)["revoked_at"] is not None
    refused = run("token", "create", "--name", "ann", "--scope", "all", *where)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "expected one or more of read" in refused.stderr


@pytest.mark.parametrize(("text", "seconds"), [("5m", 300.0), ("12h", 43200.0), ("30d", 2592000.0)])
def test_durations(text: str, seconds: float) -> None:
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "30", "d", "0d", "-1d", "1w"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is no duration"):
        parse_seconds(text)
