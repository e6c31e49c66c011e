"""Limits on what can grow: functions, parameters, classes, folders; one name for one thing; no import cycle."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("ingest", "dispatch", "trainer", "ps", "api", "serving", "infra", "benchmarks")
MOST_LINES = 48
MOST_PARAMETERS = 8
MOST_METHODS = 20
MOST_ATTRIBUTES = 20
MOST_MODULES = 15
Function = ast.FunctionDef | ast.AsyncFunctionDef


def modules() -> dict[str, Path]:
    """Every module of production code by its dotted name; a package stands for its ``__init__``."""
    files = sorted(file for package in PACKAGES for file in (ROOT / package).rglob("*.py"))
    return {".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): file for file in files}


MODULES = modules()


@cache
def trees() -> dict[str, ast.Module]:
    """Parsed when a test first asks: every worker of a test run imports this module, and one runs its tests."""
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


def functions() -> Iterator[tuple[str, Function]]:
    for label, node in definitions((ast.FunctionDef, ast.AsyncFunctionDef)):
        assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        yield label, node


def classes() -> Iterator[tuple[str, ast.ClassDef]]:
    for label, node in definitions((ast.ClassDef,)):
        assert isinstance(node, ast.ClassDef)
        yield label, node


def over(found: dict[str, int], most: int) -> dict[str, int]:
    return {label: count for label, count in found.items() if count > most}


def parameters(function: Function) -> list[str]:
    given = function.args
    optional = [name for name in (given.vararg, given.kwarg) if name is not None]
    names = [parameter.arg for parameter in (*given.posonlyargs, *given.args, *given.kwonlyargs, *optional)]
    return names[1:] if names[:1] in (["self"], ["cls"]) else names


def attributes(defined: ast.ClassDef) -> set[str]:
    """Fields of a dataclass, Struct or NamedTuple, and whatever methods assign to self."""
    fields = {
        line.target.id
        for line in defined.body
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)
        if "ClassVar" not in ast.unparse(line.annotation)
    }
    assigned = {
        node.attr
        for node in ast.walk(defined)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
        if isinstance(node.value, ast.Name) and node.value.id == "self"
    }
    return fields | assigned


def is_section(defined: ast.ClassDef) -> bool:
    """A section of the settings is a list for its reader, and may be long."""
    return any(isinstance(base, ast.Name) and base.id == "Section" for base in defined.bases)


def imports(module: str) -> set[str]:
    """Modules of the project that are imported when this one is; not those inside functions or under TYPE_CHECKING."""
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


def test_no_function_is_long() -> None:
    lines = {label: (node.end_lineno or 0) - node.lineno + 1 for label, node in functions()}
    assert len(lines) > 500
    assert over(lines, MOST_LINES) == {}


def test_no_function_has_many_parameters() -> None:
    assert over({label: len(parameters(node)) for label, node in functions()}, MOST_PARAMETERS) == {}


def test_no_class_has_many_methods() -> None:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    counts = {label: sum(isinstance(line, kinds) for line in node.body) for label, node in classes()}
    assert over(counts, MOST_METHODS) == {}


def test_no_class_has_many_attributes() -> None:
    counts = {label: len(attributes(node)) for label, node in classes() if not is_section(node)}
    assert over(counts, MOST_ATTRIBUTES) == {}


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


@pytest.mark.parametrize("module", [name for name, file in MODULES.items() if file.name == "__init__.py"])
def test_a_package_s_init_is_a_docstring(module: str) -> None:
    body = trees()[module].body
    assert ast.get_docstring(trees()[module])
    assert len(body) == 1


def test_no_folder_has_many_modules() -> None:
    counts: dict[str, int] = defaultdict(int)
    for file in MODULES.values():
        counts[file.parent.relative_to(ROOT).as_posix()] += file.name != "__init__.py"
    assert over(counts, MOST_MODULES) == {}
