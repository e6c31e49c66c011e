from pathlib import Path

import pytest

from infra.run.reference import describe_fields, sections, settings_page
from infra.run.settings import load_settings


def test_the_printed_defaults_are_the_defaults(tmp_path: Path) -> None:
    file = tmp_path / "freshet.toml"
    file.write_text(describe_fields())
    assert load_settings(file) == load_settings()


@pytest.mark.parametrize(
    "line",
    [
        "| `seed` | integer | `0` |",
        "| `kafka.password` | secret | (none) |",
        "| `dispatch.links_gbit` | list of number | (none) |",
        "| `dispatch.deadline` | true, false | `false` |",
        "| `model.mlp` | list of integer | `128,64` |",
        "| `trainer.device` | `auto`, `cpu`, `cuda` | `auto` |",
    ],
)
def test_the_page_says_what_a_setting_may_be(line: str) -> None:
    assert line in settings_page()


def test_every_setting_has_a_meaning() -> None:
    assert [name for _, fields in sections() for name, field in fields.items() if not field.description] == []
