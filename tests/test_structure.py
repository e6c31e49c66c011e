"""One name for one thing, no import cycle, and packages whose ``__init__`` says what they are for."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("freshet", "ingest", "dispatch", "trainer", "ps", "api", "serving", "infra", "benchmarks")


def modules() -> dict[str, Path]:
    """Every module of production code by its dotted name; a package is represented by its ``__init__``."""
    files = sorted(file for package in PACKAGES for file in (ROOT / package).rglob("*.py"))
    return {".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): file for file in files}


MODULES = modules()


@cache
def trees() -> dict[str, ast.Module]:
    """Parsed lazily: every worker of a test run imports this module, but only one runs its tests."""
    return {name: ast.parse(file.read_text()) for name, file in MODULES.items()}


def definitions(kinds: tuple[type[ast.AST], ...]) -> Iterator[tuple[str, ast.AST]]:
    """Every definition of these kinds, with a label: path, and name within the module."""

    def inside(node: ast.AST, name: str) -> Iterator[tuple[str, ast.AST]]:
        for child in ast.iter_child_nodes(node):
            named = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            inner = f"{name}.{child.name}".lstrip(".") if named else name  # type: ignore[attr-defined]
            if isinstance(child, kinds):
                yield inner, child
            yield from inside(child, inner)

    for module, tree in trees().items():
        path = MODULES[module].relative_to(ROOT).as_posix()
        yield from ((f"{path} {name}", node) for name, node in inside(tree, ""))


def classes() -> Iterator[tuple[str, ast.ClassDef]]:
    for label, node in definitions((ast.ClassDef,)):
        assert isinstance(node, ast.ClassDef)
        yield label, node


def imports(module: str) -> set[str]:
    """Modules of the project that importing this one imports; without those inside functions or under TYPE_CHECKING."""
    found: set[str] = set()

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            return
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            return
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} imports relatively"
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            found.update(inner & MODULES.keys() or {str(node.module)})
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(trees()[module])
    return found & MODULES.keys()


def test_no_class_name_is_used_twice() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for label, node in classes():
        places[node.name].append(label)
    assert {name: labels for name, labels in places.items() if len(labels) > 1} == {}


def test_no_module_imports_itself_over_others() -> None:
    graph = {module: imports(module) for module in MODULES}
    assert sum(map(len, graph.values())) > 500
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"import cycle: {' → '.join(reversed(error.args[1]))}")


PUBLIC = "freshet"
"""The package whose names are made for programs to import."""


@pytest.mark.parametrize(
    "module", [name for name, file in MODULES.items() if file.name == "__init__.py" and name != PUBLIC]
)
def test_a_package_s_init_is_a_docstring(module: str) -> None:
    body = trees()[module].body
    assert ast.get_docstring(trees()[module])
    assert len(body) == 1
