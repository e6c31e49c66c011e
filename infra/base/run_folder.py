"""What processes find in the folder of a run before they know anything else: its settings, and endpoints of others.

Every process that is ready writes its endpoint to ``endpoints/NAME``. The dispatcher's file has several, one a line.
What a run's settings and its journal say is not read here.
"""

from pathlib import Path

STORED_SETTINGS = "settings.json"
ENDPOINTS = "endpoints"
DISPATCHER = "dispatcher"
AGENT = "agent"
STATUS_WORD = 1
CONTROL_WORD = 2
FEED_WORD = 3
"""of the dispatcher's endpoints, after the one that workers join"""


def link_file(folder: Path) -> Path:
    """Where a supervised API leaves the secret of a sign-in link for the person who started the run."""
    return folder / ENDPOINTS / "api.link"


def dashboard_link(address: str, secret: str) -> str:
    """The address that signs in to the dashboard of an API. The secret is in the fragment, which is never sent."""
    for anywhere in ("//0.0.0.0:", "//[::]:"):
        address = address.replace(anywhere, "//127.0.0.1:")
    return f"{address}/dashboard/#signin={secret}"


def is_run(folder: Path) -> bool:
    """Whether a folder is that of a run, or of an agent, and not one of several."""
    return (folder / STORED_SETTINGS).is_file()


def read_endpoint(folder: Path, name: str) -> str | None:
    """What a process has written there; None before it is ready."""
    return read_line(folder / ENDPOINTS / name)


def dispatcher_endpoint(folder: Path, word: int) -> str | None:
    """One of the dispatcher's endpoints; None while there is none."""
    words = (read_endpoint(folder, DISPATCHER) or "").split()
    return words[word] if len(words) > word else None


def read_line(file: Path) -> str | None:
    """What a process has told in a file of its own; None: nothing yet, or it is not for this user."""
    try:
        return file.read_text().strip() or None
    except (OSError, UnicodeDecodeError):
        return None
