"""What a browser shows of a run: ``python -m tests.pictures`` writes pictures of the dashboard, for people to look at.

A real run on four uneven links, as an hour of operating it in fast motion: α is set by a person and given back, a
worker is killed, another one is drained, some events are bad. Then pictures of the whole page and of its first screen,
as a large and a small laptop and a phone show them, in light and dark. docs/dashboard.png is one of them.
"""

import argparse
import shutil
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from playwright.sync_api import Browser, sync_playwright

from tests.end_to_end.processes import WAIT_SECONDS, named, run, start
from tests.end_to_end.test_dashboard import BROWSERS, FLAGS, printed_link
from tests.ports import free_port

SIZES = ((1440, 900), (1024, 768), (390, 844))
THEMES = ("light", "dark")
SETTINGS = (
    *("dispatch.workers=4", "dispatch.links_gbit=5,5,0.5,0.5", "ps.shards=2", "dispatch.alpha=auto"),
    *("stream.batch=512", "checkpoints.seconds=10", "serving.port=0"),
)
EVENTS = ("--rate", "2000", "--poison", "0.0005")
"""How many events a second, and the share of bad ones."""
DRAWN_SECONDS = 4.0
"""How long a page may take until all of it is drawn, on a machine that trains."""


def take_pictures(folder: Path, minutes: float) -> list[Path]:
    """Runs the whole script; returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as temporary, sync_playwright() as playwright:
        place = Path(temporary) / "shop"
        settings = [part for each in (*SETTINGS, f"api.port={free_port()}") for part in ("--set", each)]
        settings += ["--set", f"stream.folder={place / 'log'}"]
        process = start("up", "--serve", "--run", place, *settings)
        producing = None
        try:
            link = printed_link(process)
            producing = start("produce", "--run", place, *EVENTS)
            operate(place, 60 * minutes)
            browser = playwright.chromium.launch(executable_path=chromium(), args=FLAGS)
            return photograph(browser, link, folder)
        finally:
            for each in (producing, process):
                if each is not None:
                    each.send_signal(signal.SIGTERM)
                    each.communicate(timeout=WAIT_SECONDS)


def operate(place: Path, seconds: float) -> None:
    """The hour: each act at its share of the time."""
    acts: Sequence[tuple[float, Callable[[], object]]] = (
        (0.25, lambda: give(place, "alpha", "0.3")),
        (0.4, lambda: named(place, ["worker-1"])[0].kill()),
        (0.55, lambda: give(place, "alpha", "auto")),
        (0.75, lambda: give(place, "drain", "--worker", "worker-3")),
        (1.0, lambda: None),
    )
    begun = time.monotonic()
    for share, act in acts:
        time.sleep(max(0.0, begun + share * seconds - time.monotonic()))
        act()


def give(place: Path, *command: str) -> None:
    """Gives a command to the run."""
    done = run("command", *command, "--run", place)
    assert done.returncode == 0, done.stdout + done.stderr


def chromium() -> str:
    found = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if found is None:
        raise SystemExit("Chromium is not installed; expected it; run 'make system'")
    return found


def photograph(browser: Browser, link: str, folder: Path) -> list[Path]:
    """Pictures in every size and theme."""
    context = browser.new_context()
    page = context.new_page()
    page.goto(link)
    page.locator("#state").get_by_text("training").wait_for()
    files = []
    for width, height in SIZES:
        page.set_viewport_size({"width": width, "height": height})
        for theme in THEMES:
            if page.evaluate("document.documentElement.dataset.theme") != theme:
                page.locator("#theme").click()
            page.evaluate("scrollTo(0, 0)")
            time.sleep(DRAWN_SECONDS)
            for what, is_whole in (("", False), ("-whole", True)):
                files.append(folder / f"{width}x{height}-{theme}{what}.png")
                page.screenshot(path=files[-1], full_page=is_whole)
    context.close()
    return files


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=Path("build/dashboard"))
    parser.add_argument("--minutes", type=float, default=5.0)
    given = parser.parse_args()
    for file in take_pictures(given.folder, given.minutes):
        sys.stdout.write(f"{file}\n")
