"""What the live picture, the plain lines and the closing table say."""

import io
import re
from contextlib import suppress
from typing import Any

import pytest
from msgspec import structs
from rich.console import Console, RenderableType

from dispatch.placement.traffic import WorkerTraffic
from dispatch.progress.quality import Quality
from dispatch.progress.status import (
    ChoiceStatus,
    ChunkCounts,
    DecisionStatus,
    EventCounts,
    FieldsStatus,
    FreshnessStatus,
    KeyCounts,
    QualityHistory,
    ServedStatus,
    Status,
    WorkerStatus,
    summarize,
)
from dispatch.tally import PhaseSeconds
from infra.run import display
from infra.run.display import Display, Picture, plain_line, render_summary
from tests.screens import Screen

SECONDS = PhaseSeconds(push=0.001, pull=0.004, forward=0.003, backward=0.004, reduce=0.002, rows=0.001)
TRAFFIC = WorkerTraffic(
    samples=308_000,
    lookups=4_000_000,
    hits=3_400_000,
    miss_pulls=600_000,
    update_pushes=123_456,
    evict_pushes=45_678,
    pulled_bytes=81_234_567,
    pushed_bytes=61_000_000,
)
WORKERS = tuple(
    WorkerStatus(name=f"worker-{i}", link_gbit=link, traffic=TRAFFIC, seconds=SECONDS)
    for i, link in enumerate((5.0, 5.0, 0.5, 0.5))
)
STATUS = Status(
    run="demo-1",
    state="training",
    generation=1,
    step=1203,
    steps=1203,
    samples=1_232_000,
    seconds=125.2,
    samples_per_second=9_876,
    quality=Quality(logloss=0.4561, auc=0.7123, calibration=1.013, normalized_entropy=0.9312),
    recent_quality=Quality(auc=0.7311),
    best_auc=0.7821,
    events=EventCounts(lag=2048, dead_letters=12),
    keys=KeyCounts(known=1_523_000, forgotten=47_570_035, rare=212),
    policy="esd (α=1)",
    decisions=DecisionStatus(mean_ms=3.24),
    history=QualityHistory(
        auc=tuple(0.5 + 0.002 * i for i in range(100)), logloss=tuple(0.6 - 0.001 * i for i in range(100))
    ),
    workers=WORKERS,
)


def drawn(renderable: RenderableType, width: int) -> str:
    console = Console(width=width, record=True, file=io.StringIO(), force_terminal=True)
    console.print(renderable)
    return console.export_text()


@pytest.mark.parametrize("width", [80, 100, 140])
def test_picture_shows_everything_uncut(width: int) -> None:
    text = drawn(Picture(STATUS), width)
    for part in (
        *("demo-1", "● training", "9,876", "1.23M samples", "2,048", "12 dead"),
        *("0.4561", "0.7123", "best possible 0.782"),
        *("worker-3", "0.5", "308k", "85.0%", "600k", "123k", "45.7k", "81.2 MB", "61.0 MB", "325 MB", "244 MB"),
        *("step 1,203", "2 min 05 s", "esd (α=1) decides in 3.2 ms", "▁", "█"),
        "1.52M keys, 47.6M forgotten, 212 times rare",
    ):
        assert part in text
    assert "…" not in text
    assert max(len(line) for line in text.splitlines()) <= width


def test_live_chunks_are_shown_if_rows_can_be_pruned() -> None:
    pruned = structs.replace(STATUS, chunks=ChunkCounts(per_row=2, live=304_600, budget=400_000))
    text = drawn(Picture(pruned), 80) + drawn(render_summary(summarize(pruned, "finished")), 120)
    assert text.count("305k chunks live (10.0%, room for 400k)") == 2
    narrow = structs.replace(STATUS, chunks=ChunkCounts(per_row=2, live=304_600, columns=8, dim=16))
    assert "305k chunks live (10.0%, 8 columns)" in drawn(Picture(narrow), 80)
    assert "chunks" not in drawn(Picture(STATUS), 80)


LONG = "edge-" + "7" * 20


@pytest.mark.parametrize("width", [44, 52, 60, 72, 80])
@pytest.mark.parametrize("name", ["worker-0", LONG])
def test_a_narrow_picture_keeps_names_and_leaves_out_what_matters_least(width: int, name: str) -> None:
    status = structs.replace(STATUS, workers=(structs.replace(WORKERS[0], name=name), *WORKERS[1:]))
    for shown in (Picture(status), render_summary(summarize(status, "finished"))):
        text = drawn(shown, width)
        assert "…" not in text
        assert max(len(line) for line in text.splitlines()) <= width
        for part in (name, "worker-3", "samples", "308k", "demo-1", "0.7123"):
            assert part in text, text


def test_sixty_columns_have_room_for_bytes_and_not_for_every_count() -> None:
    text = drawn(Picture(STATUS), 60)
    for part in ("9,876", "0.4561", "best 0.782", "2,048", "12 dead", "81.2 MB", "61.0 MB", "85.0%", "Gbit/s"):
        assert part in text
    assert "45.7k" not in text, "evict pushes matter least"


def test_a_picture_without_workers_tells_whom_it_waits_for() -> None:
    waiting = Status(run="demo-1")
    assert "waiting for worker-0, worker-2" in drawn(Picture(waiting, ["worker-0", "worker-2"]), 80)
    assert plain_line(waiting, ["worker-0"]) == "waiting: for worker-0"
    idle = structs.replace(waiting, state="training")
    assert "'freshet produce' writes events" in drawn(Picture(idle), 80)


def test_one_of_a_thing_is_singular() -> None:
    once = structs.replace(STATUS, samples=1, steps=1, events=EventCounts(lag=1, dead_letters=1))
    text = drawn(render_summary(summarize(once, "finished")), 100)
    assert "1 sample in 1 step," in text
    assert "1 event in the topic, 1 dead letter " in text


def test_the_summary_tells_the_size_of_the_dense_part() -> None:
    summary = structs.replace(summarize(STATUS, "finished"), dense_weights=70_207, dense_bytes=280_828)
    assert "dense part  70,207 weights, 281 kB  " in drawn(render_summary(summary), 80)


def test_the_summary_tells_what_moved_of_the_dense_part() -> None:
    traffic = WorkerTraffic(dense_up_bytes=1_500_000, dense_down_bytes=2_500_000)
    status = structs.replace(STATUS, workers=(WorkerStatus(name="w", traffic=traffic),) * 2)
    summary = structs.replace(summarize(status, "finished"), dense_weights=70_207, dense_bytes=280_828)
    assert "dense part  70,207 weights, 281 kB; 3.00 MB up, 5.00 MB down" in drawn(render_summary(summary), 80)


def test_the_summary_tells_the_bytes_of_orders_and_reports() -> None:
    traffic = WorkerTraffic(order_bytes=1_500_000, report_bytes=20_000)
    status = structs.replace(STATUS, workers=(WorkerStatus(name="w", traffic=traffic),) * 2)
    text = drawn(render_summary(summarize(status, "finished")), 80)
    assert "orders 3.00 MB to workers, 40.0 kB of reports from them" in " ".join(text.split())
    assert "orders" not in drawn(render_summary(summarize(structs.replace(STATUS, workers=()), "finished")), 80)


def test_rows_all_reduced_are_shown_where_there_are_any() -> None:
    reduced = WorkerTraffic(all_reduces=25_000, reduced_bytes=1_700_000)
    hot = tuple(structs.replace(worker, traffic=worker.traffic + reduced) for worker in WORKERS)
    status = structs.replace(STATUS, workers=hot)
    for text in (
        drawn(Picture(status), 140),
        plain_line(status),
        drawn(render_summary(summarize(status, "finished")), 80),
    ):
        assert "100k rows all-reduced, 6.80 MB" in text
    assert "all-reduced" not in plain_line(STATUS)


def test_rows_written_behind_are_told_at_the_end() -> None:
    behind = WorkerTraffic(behind_pushes=25_000, flush_pushes=1_200)
    status = structs.replace(STATUS, workers=(WorkerStatus(name="a", traffic=behind),))
    lines = drawn(render_summary(summarize(status, "end of stream")), 110)
    assert re.search(r"write-behind +25\.0k rows ahead of flushes, which wrote 1,200", lines)


def test_decisions_shortened_short_or_too_late_are_shown() -> None:
    late = structs.replace(STATUS, decisions=DecisionStatus(cut_short=1234, deadline_misses=5))
    summary = drawn(render_summary(summarize(late, "finished")), 140)
    assert "1,234 cut short, 5 decisions too late" in summary
    assert "5 decisions too late" in drawn(Picture(late), 140)
    assert "too late" not in drawn(Picture(STATUS), 140)


@pytest.mark.parametrize(("width", "shown"), [(80, False), (100, True)])
def test_phases_of_a_step_appear_where_there_is_room(width: int, shown: bool) -> None:
    assert ("15.0 ms" in drawn(Picture(STATUS), width)) is shown


def test_picture_before_the_first_step_has_no_numbers_to_invent() -> None:
    text = drawn(Picture(Status(run="demo-1")), 80)
    assert "waiting" in text
    assert "no worker yet" in text
    assert "nan" not in text.lower()
    assert "None" not in text


def test_summary_shows_quality_traffic_and_trouble() -> None:
    text = drawn(render_summary(summarize(STATUS, "SIGINT", {"worker-2": 1}, ("ps-0",))), 80)
    for part in ("SIGINT", "1,232,000 samples in 1,203 steps", "0.7123", "best possible 0.7821", "worker-2 1"):
        assert part in text
    assert "ps-0: did not stop in time" in text
    assert "9,840 samples/s" in text


def test_names_are_shown_as_they_are_and_not_read_as_markup() -> None:
    workers = (structs.replace(WORKERS[0], name="[/]:key:"), WORKERS[1])
    named = structs.replace(STATUS, workers=workers, policy="[red]", run="[/b]")
    assert "[/]:key:" in drawn(Picture(named), 100)
    text = drawn(render_summary(summarize(named, "[/]", {"[/x]": 1}, ("[/y]",))), 100)
    assert all(part in text for part in ("[/]:key:", "[red]", "[/b]", "[/x] 1", "[/y]: did not"))


def test_skipped_events_are_shown_wherever_a_run_is_shown() -> None:
    status = structs.replace(STATUS, events=EventCounts(skipped=54_321))
    assert "54.3k events skipped" in drawn(Picture(status), 100)
    assert "54,321 events, to keep up" in drawn(render_summary(summarize(status, "finished")), 80)
    assert "skipped 54.3k" in plain_line(status)
    assert "skipped" not in plain_line(STATUS) + drawn(Picture(STATUS), 100)


@pytest.mark.parametrize("width", [60, 100])
def test_parked_workers_are_marked_wherever_a_run_is_shown(width: int) -> None:
    status = structs.replace(STATUS, workers=(*WORKERS[:3], structs.replace(WORKERS[3], is_parked=True)))
    summary = render_summary(summarize(status, "finished"))
    for shown in (drawn(Picture(status), width), drawn(summary, width)):
        assert "worker-3 parked" in shown
        assert "worker-2 parked" not in shown
    assert plain_line(status).endswith("worker-3 parked")
    assert "parked" not in plain_line(STATUS) + drawn(Picture(STATUS), width)


@pytest.mark.parametrize("width", [80, 140])
def test_who_takes_part_is_shown_with_the_reason(width: int) -> None:
    choice = ChoiceStatus(reason="was faster when measured", expected_ms=49.2, before_ms=164.4)
    parked = tuple(structs.replace(worker, is_parked=True) for worker in WORKERS[1:])
    status = structs.replace(STATUS, workers=(WORKERS[0], *parked), choice=choice)
    said = "worker-0 trains alone: was faster when measured, 49 ms a step instead of 164"
    assert said in plain_line(status)
    assert said in " ".join(drawn(Picture(status), width).replace("│", "").split())
    assert "train:" not in plain_line(STATUS)


def test_plain_line_is_one_line_with_the_essentials() -> None:
    line = plain_line(STATUS)
    assert "\n" not in line
    for part in ("training: step 1,203", "9,876/s", "loss 0.4561", "AUC 0.7123 (best possible 0.782)", "lag 2,048"):
        assert part in line


def test_not_a_terminal_prints_a_line_when_it_is_time_or_the_state_changes() -> None:
    output, now = io.StringIO(), [0.0]
    with Display(Console(file=output, width=40), line_seconds=5, clock=lambda: now[0]) as display:
        for moment, step, state in ((0, 1, "training"), (1, 2, "training"), (5, 3, "training"), (6, 4, "draining")):
            now[0] = moment
            display.show(structs.replace(STATUS, step=step, state=state))
    assert [line.split(",")[0] for line in output.getvalue().splitlines()] == [
        "training: step 1",
        "training: step 3",
        "draining: step 4",
    ]


def test_the_start_tells_which_process_is_waited_for() -> None:
    output, now = io.StringIO(), [0.0]
    with Display(Console(file=output, width=80), line_seconds=5, clock=lambda: now[0]) as display:
        for moment, awaited in (
            (0, ["ps-0", "ps-1"]),
            (1, ["ps-1"]),
            (6, ["dispatcher"]),
            (20, ["api"]),
            (28, ["api"]),
            (30, []),
        ):
            now[0] = moment
            display.starting(awaited)
        display.print_line("API at http://127.0.0.1:8000")
    assert output.getvalue().splitlines() == [
        "starting: waiting for ps-0, ps-1",
        "starting: waiting for dispatcher",
        "starting: waiting for api",
        "API at http://127.0.0.1:8000",
    ]


def shown_on(terminal: dict[str, str]) -> str:
    output = io.StringIO()
    console = Console(file=output, width=100, height=40, force_terminal=True, _environ=terminal)
    with Display(console) as display:
        display.starting(["ps-0"])
        display.print_line("API at http://127.0.0.1:8000")
        display.show(STATUS)
        display.show(structs.replace(STATUS, step=1204, state="draining"))
    console.print(render_summary(summarize(STATUS, "finished")))
    return output.getvalue()


def test_a_dumb_terminal_gets_lines_without_control_sequences() -> None:
    text = shown_on({"TERM": "dumb"})
    assert "\x1b" not in text
    assert text.splitlines()[0] == "starting: waiting for ps-0"


def test_no_color_means_no_colours() -> None:
    def colours(text: str) -> list[str]:
        codes = [code for sequence in re.findall(r"\x1b\[([0-9;]*)m", text) for code in sequence.split(";")]
        return [code for code in codes if code.startswith(("3", "4", "9", "10")) and code != "3"]

    assert colours(shown_on({"TERM": "xterm-256color"}))
    assert not colours(shown_on({"TERM": "xterm-256color", "NO_COLOR": "1"}))


def test_terminal_is_redrawn_in_place() -> None:
    output = io.StringIO()
    with Display(Console(file=output, width=100, height=40, force_terminal=True)) as display:
        display.show(STATUS)
        display.show(structs.replace(STATUS, step=1204))
    assert "step 1,204" in output.getvalue()
    assert "\x1b[1A" in output.getvalue()


IDLE = structs.replace(STATUS, samples_per_second=0.0, idle_seconds=190.0)


def test_a_run_without_events_says_that_it_waits_for_them() -> None:
    assert "● waiting for events" in drawn(Picture(IDLE), 80)
    assert plain_line(IDLE).startswith("waiting for events: step 1,203, 1.23M samples, 0/s")
    for change in ({"idle_seconds": 1.0}, {"state": "draining"}, {"troubles": ("the journal is full",)}):
        assert "waiting for events" not in plain_line(structs.replace(IDLE, **change))


def test_not_a_terminal_is_told_once_that_events_are_missing() -> None:
    out = io.StringIO()
    display = Display(Console(file=out, width=200), line_seconds=0, clock=lambda: 0.0)
    for status in (STATUS, IDLE, structs.replace(IDLE, idle_seconds=200.0)):
        display.show(status)
    assert [line.split(":")[0] for line in out.getvalue().splitlines()] == ["training", "waiting for events"]


@pytest.mark.parametrize("width", [60, 100])
def test_a_worker_that_has_left_is_marked_wherever_a_run_is_shown(width: int) -> None:
    gone = structs.replace(WORKERS[3], is_parked=True, has_left=True)
    status = structs.replace(STATUS, workers=(*WORKERS[:3], gone))
    for shown in (drawn(Picture(status), width), drawn(render_summary(summarize(status, "finished")), width)):
        assert "worker-3 left" in shown
        assert "worker-2 left" not in shown
    assert "parked" not in plain_line(status)


def left_on_screen(text: str) -> list[str]:
    """Lines of a terminal after some output, those that have scrolled away too."""
    screen = Screen(80, 24)
    screen.feed(text.replace("\n", "\r\n"))  # as a terminal's driver does
    return screen.all_texts()


@pytest.mark.parametrize("troubles", [(), ("no checkpoint could be taken 3 times in a row",) * 12])
def test_nothing_of_the_picture_is_left_beside_the_summary(troubles: tuple[str, ...]) -> None:
    output = io.StringIO()
    console = Console(file=output, width=80, height=24, force_terminal=True)
    console.print("run folder runs/demo-1")
    with Display(console) as display:
        for step in range(3):
            display.show(structs.replace(STATUS, step=step, troubles=troubles))
    console.print(render_summary(summarize(STATUS, "SIGINT")))
    lines = left_on_screen(output.getvalue())
    assert lines[0] == "run folder runs/demo-1"
    assert lines[1].startswith("╭─  freshet · demo-1 · stopped by SIGINT")
    assert sum(line.count("╭") + line.count("╰") for line in lines) == 2, "\n".join(lines)


@pytest.mark.parametrize("fails", [False, True])
def test_the_last_picture_stays_where_no_summary_follows(fails: bool) -> None:
    output = io.StringIO()
    console = Console(file=output, width=80, height=24, force_terminal=True)
    with suppress(OSError), Display(console, keeps_picture=not fails) as display:
        display.show(STATUS)
        if fails:
            raise OSError
    lines = left_on_screen(output.getvalue())
    assert lines[0].startswith("╭─  freshet · demo-1 · ● training")
    assert sum(line.count("╭") for line in lines) == 1


def test_a_picture_that_would_be_too_tall_is_drawn_closer() -> None:
    served = ServedStatus(servers=1, checkpoint=7, step=9, freshness=FreshnessStatus(p50_seconds=1.0, p99_seconds=2.0))
    tall = structs.replace(STATUS, served=served, troubles=("no checkpoint could be taken",) * 4)
    console = Console(width=80, height=24, record=True, file=io.StringIO(), force_terminal=True)
    console.print(Picture(tall))
    lines = console.export_text().splitlines()
    assert len(lines) <= 24
    assert lines[-1].startswith("╰")
    assert "served: step 9" in "".join(lines)


def test_a_model_that_has_diverged_is_shown() -> None:
    status = structs.replace(STATUS, quality=Quality(not_finite=77))
    for shown in (Picture(status), render_summary(summarize(status, "finished"))):
        assert "77 predictions were not finite" in drawn(shown, 100)


def test_fields_that_no_event_has_are_shown_wherever_a_run_is_shown() -> None:
    fields = FieldsStatus(present={"user": 1.0, "item": 0.0}, absent=("item",), unknown=("itm (7; meant for item?)",))
    wrong = structs.replace(STATUS, fields=fields)
    shown = (drawn(Picture(wrong), 110), drawn(render_summary(summarize(wrong, "finished")), 110))
    assert all("no event has item; not in the schema: itm (7; meant for item?)" in text for text in shown)
    assert "no event has item" in plain_line(wrong)
    assert "no event has" not in drawn(Picture(STATUS), 110) + plain_line(STATUS)


def test_trouble_is_shown_wherever_a_run_is_shown() -> None:
    trouble = "no checkpoint could be taken 3 times in a row"
    status = structs.replace(STATUS, troubles=(trouble,))
    for text in (drawn(Picture(status), 100), plain_line(status), drawn(end_of(status), 100)):
        assert trouble in text
    assert "trouble" not in drawn(end_of(STATUS), 100)


def end_of(status: Status) -> RenderableType:
    return render_summary(summarize(status, "finished"))


@pytest.mark.parametrize(
    "change", [{"troubles": ("the journal is full",)}, {"served": ServedStatus(servers=1, held=("logloss is 0.9",))}]
)
def test_not_a_terminal_prints_a_line_when_trouble_begins_and_ends(change: dict[str, Any]) -> None:
    out = io.StringIO()
    display = Display(Console(file=out, width=200), line_seconds=5, clock=lambda: 0.0)
    troubled = structs.replace(STATUS, **change)
    for status in (STATUS, troubled, troubled, STATUS):
        display.show(status)
    lines = out.getvalue().splitlines()
    assert [("full" in line or "held back" in line) for line in lines] == [False, True, False]


def test_served_snapshot_and_its_freshness_are_shown_while_somebody_serves() -> None:
    fresh = FreshnessStatus(p50_seconds=0.912, p99_seconds=2.04, age_seconds=1.3, events=9)
    served = ServedStatus(
        servers=2, checkpoint=7, timeline=1, step=1203, newest_checkpoint=8, held=("logloss is 0.9",), freshness=fresh
    )
    status = structs.replace(STATUS, served=served)
    shown = "step 1,203, timeline 1, freshness p50 0.9 s, p99 2.0 s, newest event 1.3 s old"
    for text in (drawn(Picture(status), 120), plain_line(status)):
        assert f"served: {shown}" in text
        assert "snapshot 8 held back: logloss is 0.9" in text
    ended = shown.removesuffix(", newest event 1.3 s old")  # it only grows older
    assert re.search(rf"served +{ended} +│", drawn(render_summary(summarize(status, "finished")), 120))
    alone = structs.replace(STATUS, served=structs.replace(served, servers=0))
    assert "served" not in plain_line(alone) + drawn(Picture(alone), 120)
    assert "held" not in plain_line(alone)


def test_events_dated_ahead_are_shown() -> None:
    fresh = FreshnessStatus(age_seconds=1.3, ahead=3)
    status = structs.replace(STATUS, served=ServedStatus(servers=1, checkpoint=7, step=9, freshness=fresh))
    for text in (drawn(Picture(status), 120), plain_line(status)):
        assert "newest event 1.3 s old, 3 events dated ahead" in text


def test_a_line_of_facts_ends_between_two_of_them() -> None:
    for letters in range(1, 40):
        status = structs.replace(STATUS, alpha=1.0, alpha_mode="fixed", opt_backend="cpu", policy=letters * "p")
        assert "α 1 (fixed, cpu)" in drawn(Picture(status), 80), letters


def test_a_summary_fits_into_a_small_terminal_with_the_lines_below_it() -> None:
    fresh = FreshnessStatus(p50_seconds=1.0, p99_seconds=6.0, age_seconds=11.2, events=9)
    traffic = structs.replace(WORKERS[0].traffic, behind_pushes=1, dense_up_bytes=1)
    workers = tuple(structs.replace(WORKERS[0], name=f"worker-{number}", traffic=traffic) for number in range(4))
    served = ServedStatus(servers=1, checkpoint=7, step=110, newest_checkpoint=7, freshness=fresh)
    summary = summarize(structs.replace(STATUS, workers=workers, served=served), "SIGINT")
    summary = structs.replace(summary, dense_weights=70_207, dense_bytes=281_000)
    output = io.StringIO()
    Console(file=output, width=80, height=24, force_terminal=True, color_system=None).print(render_summary(summary))
    assert len(output.getvalue().splitlines()) <= 22


def test_a_link_shows_both_speeds_where_they_differ() -> None:
    told = structs.replace(WORKERS[0], link_gbit=0.2, uplink_gbit=0.02)
    measured = structs.replace(WORKERS[0], link_gbit=None, measured_gbit=0.21, measured_uplink_gbit=0.019)
    assert display._link(told).plain == "0.2 / 0.02"
    assert display._link(measured).plain == "~0.21 / 0.019"
    assert display._link(structs.replace(measured, measured_uplink_gbit=None)).plain == "~0.21"
    assert display._link(WORKERS[0]).plain == "5"
