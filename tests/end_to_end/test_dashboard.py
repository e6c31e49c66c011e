"""The dashboard in a real browser, beside a run of real processes: one run and one page for all tests.

They are run in this order; the last ones kill a worker and the API.
"""

import asyncio
import re
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect, sync_playwright

from dispatch.journal.log import read_records
from dispatch.journal.records import Commanded, GenerationStarted
from infra.web.store.place import database_url
from tests.api.test_recent import write_past
from tests.end_to_end.processes import WAIT_SECONDS, named, run, start, wait_until
from tests.ports import free_port

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
SETTINGS = (
    *("stream.batch=256", "rows.dim=4", "dispatch.workers=3", "dispatch.links_gbit=5,5,0.5", "ps.shards=1"),
    *("dispatch.policy=esd:1", "serving.port=0"),
)
LINK = re.compile(r"(http://\S+/dashboard/#signin=\S+)")
SERIOUS = ("serious", "critical")


@dataclass
class Watched:
    """A run, a browser, and the page that shows the run."""

    process: "subprocess.Popen[str]"
    folder: Path
    browser: Browser
    page: Page
    link: str
    """The sign-in link that the run printed."""
    errors: list[str] = field(default_factory=list)
    """What the browser complained about."""
    hosts: set[str] = field(default_factory=set)
    """Hosts of all requests."""

    def picture(self, chart: str) -> str:
        """The pixels of a chart."""
        return str(self.page.locator(f"#{chart} canvas").evaluate("canvas => canvas.toDataURL()"))

    def wait(self, condition: Callable[[], bool]) -> None:
        wait_until(condition, self.process, 0.2)

    def confirm(self, button: str, reason: str = "") -> None:
        """Answers the question that an act asks, and waits until the act is on record."""
        self.page.locator("#ask-reason").fill(reason)
        self.page.locator("#ask").get_by_role("button", name=button).click()
        expect(self.page.locator("#commands li").first).to_contain_text(re.compile("journalled at|done"))

    def records(self, kind: type[Any]) -> list[Any]:
        return [record for record in read_records(self.folder / "journal") if isinstance(record, kind)]

    def state_of(self, worker: str) -> str | None:
        return self.page.locator(f'tr[data-worker="{worker}"]').get_attribute("data-state")


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    found = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip("Chromium is not installed")
    expect.set_options(timeout=1000 * WAIT_SECONDS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def watched(chromium: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    folder = tmp_path_factory.mktemp("watched") / "run"
    settings = [part for each in (*SETTINGS, f"api.port={free_port()}") for part in ("--set", each)]
    process = start("demo", "--serve", "--rate", "600", "--run", folder, *settings)
    try:
        link = printed_link(process)
        page = chromium.new_context(viewport={"width": 1440, "height": 900}).new_page()
        page.set_default_timeout(1000 * WAIT_SECONDS)
        found = Watched(process, folder, chromium, page, link)
        page.on("console", lambda said: found.errors.append(said.text) if said.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: found.errors.append(str(error)))
        page.on("request", lambda request: found.hosts.add(urlsplit(request.url).netloc))
        yield found
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(WAIT_SECONDS)
        assert process.stdout is not None
        process.stdout.close()


def printed_link(process: "subprocess.Popen[str]") -> str:
    """The link that a run prints; what it prints later is read and dropped."""
    assert process.stdout is not None
    stream = process.stdout
    printed = []
    for line in stream:
        printed.append(line)
        if found := LINK.search(line):
            threading.Thread(target=lambda: [None for _ in stream], daemon=True).start()
            return found[1]
    raise AssertionError(f"no link was printed: {''.join(printed)}")


def test_the_printed_link_signs_in_once_and_charts_move(watched: Watched) -> None:
    page = watched.page
    page.goto(watched.link)
    expect(page.locator("#state")).to_have_text("training")
    assert "signin" not in page.url
    for chart in ("c-rate", "c-quality", "c-traffic", "c-memory"):
        before = watched.picture(chart)
        watched.wait(lambda chart=chart, before=before: watched.picture(chart) != before)  # type: ignore[misc]
    expect(page.locator("#log")).to_contain_text("generation 1 of 3 workers: start")
    expect(page.locator("#fields .field-row", has_text="user")).to_contain_text("100 %")
    expect(page.locator("#letters-card")).to_be_hidden()  # no event was rejected
    again = watched.browser.new_context().new_page()
    again.goto(watched.link)
    expect(again.locator("#signin-error")).to_contain_text("used before")
    again.context.close()


def test_its_cookie_is_out_of_reach_of_scripts_and_of_other_sites(watched: Watched) -> None:
    (cookie,) = watched.page.context.cookies()
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
    assert watched.page.evaluate("document.cookie") == ""


def test_a_wrong_token_is_refused_and_one_that_reads_sees_no_buttons(watched: Watched) -> None:
    made = run("token", "create", "--name", "eve", "--scope", "read", "--run", watched.folder)
    page = watched.browser.new_context().new_page()
    page.goto(watched.link.partition("#")[0])
    page.locator("#secret").fill("fr_wrong")
    page.get_by_role("button", name="Sign in").click()
    expect(page.locator("#signin-error")).to_contain_text("the token is not valid here")
    page.locator("#secret").fill(made.stdout.strip())
    page.get_by_role("button", name="Sign in").click()
    expect(page.locator('tr[data-worker="worker-2"]')).to_be_visible()
    assert page.locator(".control:visible").count() == 0
    assert page.get_by_role("button", name=re.compile("Drain|Remove|Pin|Pause|Stop the run|Set")).count() == 0
    page.context.close()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_nothing_serious_keeps_anyone_out(watched: Watched, theme: str) -> None:
    page = watched.page
    if page.evaluate("document.documentElement.dataset.theme") != theme:
        page.locator("#theme").click()
    expect(page.locator("#snapshots tbody tr").first).to_be_visible()
    found = Axe().run(page).response["violations"]
    serious = [(each["id"], [node["html"] for node in each["nodes"]]) for each in found if each["impact"] in SERIOUS]
    assert serious == []


def test_the_slider_changes_alpha_in_the_journal(watched: Watched) -> None:
    page = watched.page
    page.locator("#alpha").fill("0.25")
    page.locator("#alpha-form").get_by_role("button", name="Set").click()
    watched.confirm("Set it", "tried from the page")
    (command,) = [each for each in watched.records(Commanded) if each.verb == "alpha"]
    assert (command.value, command.actor, command.reason) == ("0.25", "dashboard", "tried from the page")
    expect(page.locator("#alpha-why")).to_contain_text("0.25, set by a person")
    expect(page.locator("#log")).to_contain_text("tried from the page")


def test_a_prediction_of_typed_fields_names_its_snapshot(watched: Watched) -> None:
    page = watched.page
    page.locator("#try-fields").get_by_label("user").fill("u17")
    page.locator("#try-fields").get_by_label("tags").fill("new, red")
    page.get_by_role("button", name="Predict a click").click()
    expect(page.locator("#try-answer")).to_contain_text(re.compile(r"\d+\.\d % by checkpoint \d+"))


def test_rolling_back_pins_a_snapshot_until_it_is_unpinned(watched: Watched) -> None:
    page = watched.page
    expect(page.locator("#snapshots")).to_contain_text("served")
    page.get_by_role("button", name="Roll back").click()
    watched.confirm("Roll back")
    expect(page.locator("#served-why")).to_contain_text("is pinned")
    page.get_by_role("button", name="Serve the newest again").click()
    watched.confirm("Unpin")
    expect(page.locator("#served-why")).to_contain_text("The newest good snapshot is served")


def test_a_link_to_a_window_shows_the_same_window(watched: Watched) -> None:
    page = watched.page
    page.locator("#custom summary").click()
    wanted = page.locator("#to").input_value()
    page.locator("#window-form").get_by_role("button", name="Show").click()
    watched.wait(lambda: "from" in parse_qs(urlsplit(page.url).query))
    other = page.context.new_page()
    other.goto(page.url)
    expect(other.locator("#state")).to_have_text("training")
    expect(other.locator("#to")).to_have_value(wanted)
    expect(other.locator('#windows [aria-pressed="true"]')).to_have_count(0)
    other.close()
    page.get_by_role("button", name="5 min", exact=True).click()
    expect(page.locator('#windows [aria-pressed="true"]')).to_have_text("5 min")


def test_a_link_to_several_runs_shows_them_side_by_side(watched: Watched) -> None:
    page = watched.page
    with ThreadPoolExecutor(1) as elsewhere:  # Playwright's loop runs in this thread
        elsewhere.submit(asyncio.run, write_past(database_url(None, watched.folder.parent), "earlier")).result()
    watched.wait(lambda: page.locator("#run option").count() == 2)
    page.locator("#compare summary").click()
    page.get_by_label("earlier").check()
    page.get_by_label("the steps").check()
    page.locator("#compare-form").get_by_role("button", name="Show").click()
    expect(page.locator("#compared tbody tr")).to_have_count(2)
    other = page.context.new_page()
    other.goto(page.url)
    expect(other.locator("#compared tbody tr")).to_have_count(2)
    expect(other.locator("#compare-by")).to_have_text("Over the steps.")
    expect(other.locator("#k-rate .legend")).to_contain_text(re.compile(r"earlier [\d,]+"))
    other.close()
    page.get_by_role("button", name="One run again").click()
    expect(page.locator("#state")).to_have_text("training")


def test_a_run_whose_folder_is_gone_shows_its_history(watched: Watched) -> None:
    page = watched.page
    chosen = page.locator("#run").input_value()
    page.locator("#run").select_option("earlier")
    expect(page.locator("#banner")).to_contain_text("What is shown is its history")
    expect(page.locator("#c-quality .legend")).to_contain_text("AUC 0.7")
    page.evaluate("document.body.classList.remove('clean')")  # as of a run with rejected events
    expect(page.locator("#letters-card")).to_be_hidden()
    page.locator("#run").select_option(chosen)
    expect(page.locator("#state")).to_have_text("training")


def test_a_drained_worker_leaves(watched: Watched) -> None:
    watched.page.get_by_role("button", name="Drain worker-2").click()
    watched.confirm("Drain it")
    watched.wait(lambda: watched.state_of("worker-2") == "left")
    assert watched.records(GenerationStarted)[-1].members == ("worker-0", "worker-1")


def test_nothing_was_asked_of_another_host_and_nothing_went_wrong(watched: Watched) -> None:
    assert watched.hosts == {urlsplit(watched.link).netloc}
    assert watched.errors == []


def test_a_killed_worker_shows_until_it_is_replaced(watched: Watched) -> None:
    (killed,) = named(watched.folder, ["worker-1"])
    watched.process.send_signal(signal.SIGSTOP)  # the supervisor does not replace it yet
    killed.kill()
    watched.wait(lambda: watched.state_of("worker-1") == "lost")
    watched.process.send_signal(signal.SIGCONT)
    expect(watched.page.locator('#log li[data-kind="fault"]').first).to_contain_text("worker-1")
    watched.wait(lambda: bool(named(watched.folder, ["worker-1"])))
    watched.wait(lambda: watched.state_of("worker-1") == "training")
    assert named(watched.folder, ["worker-1"])[0].pid != killed.pid


def test_the_page_connects_again_when_the_api_is_back_and_has_forgotten_nothing(watched: Watched) -> None:
    page = watched.page
    (killed,) = named(watched.folder, ["api"])
    killed.kill()
    expect(page.locator("#banner")).to_contain_text("The connection to the API is lost")
    expect(page.locator("#banner")).to_be_hidden()
    before = watched.picture("c-rate")
    watched.wait(lambda: watched.picture("c-rate") != before)
    expect(page.locator("#log")).to_contain_text("tried from the page")
