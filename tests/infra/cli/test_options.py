from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from infra.cli.options import grouped


@dataclass(frozen=True)
class Base:
    size: Annotated[int, typer.Option(help="How many.", min=1)]
    names: Annotated[list[str] | None, typer.Option("--name")] = None


@dataclass(frozen=True)
class More(Base):
    loud: Annotated[bool, typer.Option("--loud")] = False


def app_of(command: Callable[..., None]) -> typer.Typer:
    app = typer.Typer()
    app.command()(command)
    return app


@grouped
def show(file: Annotated[str, typer.Argument()] = "-", *, more: More, last: float = 0.5) -> None:
    """Shows what it was given."""
    typer.echo(f"{file} {more} {last}")


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ("--size 2", "- More(size=2, names=None, loud=False) 0.5"),
        ("a --size 2 --name x --name y --loud --last 1", "a More(size=2, names=['x', 'y'], loud=True) 1.0"),
    ],
)
def test_a_group_is_filled_from_its_options(arguments: str, shown: str) -> None:
    ended = CliRunner().invoke(app_of(show), arguments.split())
    assert (ended.exit_code, ended.output.strip()) == (0, shown)


def test_options_keep_their_order_bounds_and_help() -> None:
    told = CliRunner().invoke(app_of(show), ["--help"]).output
    places = [told.index(text) for text in ("Shows what it was given", "--size", "--name", "--loud", "--last")]
    assert places == sorted(places)
    assert "How many." in told
    assert CliRunner().invoke(app_of(show), ["--size", "0"]).exit_code == 2
    assert CliRunner().invoke(app_of(show), []).exit_code == 2
