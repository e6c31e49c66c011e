"""Modules of a test's own, as a package that somebody has installed would have them."""

from collections.abc import Callable
from pathlib import Path

import pytest

WriteModule = Callable[[str], str]


@pytest.fixture
def write_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> WriteModule:
    """Writes a module that Python finds, under a name that no other test uses; returns that name."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(text: str) -> str:
        name = f"own_{abs(hash((request.node.name, text))):x}"
        (tmp_path / f"{name}.py").write_text(text)
        return name

    return write
