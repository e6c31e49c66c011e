"""The picture of a run in a notebook: that of the terminal, as HTML, drawn again while the run is under way.

Jupyter's own protocol draws it in place; no widgets are needed.
"""

import io
import threading
from collections.abc import Callable
from html import escape

from freshet_client import ClientError
from rich.console import Console
from rich.terminal_theme import DEFAULT_TERMINAL_THEME

from dispatch.progress.status import Status
from infra.run.display import WIDEST_COLUMNS, Picture

REFRESH_SECONDS = 1.0
FORMAT = "<pre style=\"font-family:Menlo,Consolas,'DejaVu Sans Mono',monospace;line-height:1.2\">{code}</pre>"


def as_html(status: Status | None, described: str, dashboard: str) -> str:
    """The picture of a status with a link to the dashboard. described: shown if there is no status."""
    shown = f"<p>{escape(described)}</p>"
    if status is not None:
        console = Console(file=io.StringIO(), record=True, width=WIDEST_COLUMNS, force_jupyter=False)
        console.print(Picture(status, hint=""))
        shown = console.export_html(theme=DEFAULT_TERMINAL_THEME, code_format=FORMAT, inline_styles=True)
    link = f'<a href="{escape(dashboard)}" target="_blank">dashboard</a>'
    return f"{shown}<p>{link} (<code>run.dashboard()</code> makes a link that signs in)</p>"


class LivePicture:
    """A picture in the output of a cell, drawn again by a thread."""

    def __init__(self, draw: Callable[[], str], is_running: Callable[[], bool]) -> None:
        """draw: returns the HTML of now; is_running: whether it can change."""
        from IPython.display import HTML, display  # whoever shows a picture has it

        self._draw = draw
        self._is_running = is_running
        self._html = HTML
        self._ended = threading.Event()
        self._place = display(HTML(draw()), display_id=True)
        self._thread = threading.Thread(target=self._refresh, name="picture", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Leaves the picture as it is."""
        self._ended.set()
        self._thread.join()

    def _refresh(self) -> None:
        while not self._ended.wait(REFRESH_SECONDS) and self._is_running():
            try:
                self._place.update(self._html(self._draw()))
            except ClientError:  # the run has just ended, or its API is being restarted
                continue
