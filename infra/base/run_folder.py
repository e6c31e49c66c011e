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
