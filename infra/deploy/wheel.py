"""Builds the wheel, in which all parts of Freshet are below ``freshet``: ``infra`` becomes ``freshet._parts.infra``.

In the repository the parts are at the top, and import each other as ``infra.base``. Installed like that, they would
take names such as ``api`` and ``ps`` in site-packages, which other packages and people's own programs have, too. So
the build copies them and changes what they import: ``from infra.base import x`` becomes ``from
freshet._parts.infra.base import x``. Nothing is left to do when a module is loaded. Strings do not change: code that
names a module in one uses ``infra.base.parts``. An editable installation is the repository as it is.
"""

import ast
import shutil
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PARTS = ("ingest", "dispatch", "trainer", "ps", "api", "serving", "infra", "benchmarks")
HOME = "freshet._parts"
ABOUT = '"""The parts of an installed Freshet. Their names may change; those of ``freshet`` itself are stable."""\n'
FILES = {"alembic": "infra/deploy/alembic", "alembic.ini": "infra/deploy/alembic.ini"}
"""What is not at the top of its own accord: a folder ``alembic`` would mix with the library of that name."""


def is_ours(name: str) -> bool:
    return name.partition(".")[0] in PARTS


def move_imports(source: str, file: Path) -> str:
    """The source of a module that imports our parts from where they are in a wheel."""
    lines = source.encode().split(b"\n")
    found: list[tuple[int, int, str]] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.level == 0 and is_ours(node.module or ""):
            found.append((node.lineno, node.col_offset + len("from "), node.module or ""))
        elif isinstance(node, ast.Import):
            for each in filter(lambda alias: is_ours(alias.name), node.names):
                if each.asname is None:
                    raise ValueError(
                        f"{file}:{node.lineno}: 'import {each.name}' cannot be moved into {HOME}: the name that it "
                        f"gives would change; write 'from … import …'"
                    )
                found.append((each.lineno, each.col_offset, each.name))
    for line, column, name in sorted(found, reverse=True):
        before, after = lines[line - 1][:column], lines[line - 1][column:]
        if not after.startswith(name.encode()):
            raise ValueError(
                f"{file}:{line}: the import of {name} cannot be moved into {HOME}: it has other spaces, or two lines; "
                f"write 'from {name} import …'"
            )
        lines[line - 1] = before + f"{HOME}.".encode() + after
    return b"\n".join(lines).decode()


def copy(source: Path, target: Path) -> None:
    """Copies a file or a folder; modules import our parts from where they are in a wheel."""
    if source.is_dir():
        for each in sorted(source.iterdir()):
            if each.name != "__pycache__":
                copy(each, target / each.name)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.suffix == ".py":
        target.write_text(move_imports(source.read_text(encoding="utf-8"), source), encoding="utf-8")
    else:
        shutil.copyfile(source, target)


class MovedParts(BuildHookInterface):  # type: ignore[type-arg]
    """Hatchling calls it when it builds the wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        root = Path(self.root)
        self._place = Path(tempfile.mkdtemp())
        copy(root / "freshet", self._place / "freshet")
        home = self._place / HOME.replace(".", "/")
        for part in PARTS:
            copy(root / part, home / part)
        for name, there in FILES.items():
            copy(root / name, home / there)
        (home / "__init__.py").write_text(ABOUT)
        build_data["force_include"][str(self._place / "freshet")] = "freshet"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if version != "editable":
            shutil.rmtree(self._place)
