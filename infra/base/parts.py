"""Where our own modules are: at the top of a checkout, in ``freshet._parts`` of an installed Freshet.

The wheel's build (``infra/deploy/wheel.py``) changes the imports. A module that is named in a string is named with
``module`` here.
"""

import sys
from pathlib import Path

INSTALLED = "freshet._parts."
PREFIX = INSTALLED if __name__.startswith(INSTALLED) else ""
"""What the names of our modules begin with."""
ROOT = Path(__file__).resolve().parents[2]
"""The folder with ``infra`` and the others."""
IMPORTED_FROM = ROOT.parents[1] if PREFIX else ROOT
"""The folder in which Python finds ``freshet``."""


def module(name: str) -> str:
    """The name by which Python finds one of our modules, as in ``module("ps.main")``."""
    return PREFIX + name


def unprefixed(name: str) -> str:
    """The name that one of our modules has in a checkout; other names stay as they are."""
    return name.removeprefix(PREFIX)


COMMAND = (sys.executable, "-m", module("infra.cli.entry"))
"""The command ``freshet``, for processes that are started with the same interpreter."""
