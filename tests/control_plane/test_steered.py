"""What is true of one run that was steered over REST while its control planes were killed; its life is in ``steered``.

Each test is a claim of its own about the same run, which is lived once, with a control plane on each kind of database.
"""

from collections.abc import Iterator
from itertools import groupby, product

import pytest

from dispatch.journal.log import read_records
from dispatch.journal.records import AlphaChanged, Commanded, GenerationStarted, StepDecided
from infra.base.faults import COMMAND_SEAMS
from infra.verify.run import verify_folder
from tests.control_plane.contending import may_set_priorities
from tests.control_plane.folding import Frame, differences, read_tables
from tests.control_plane.steered import DATABASE, FAULTS, FURTHER, RUN, Steered, SteeredFacts, living, read_cursor
from tests.databases import running_postgres
from tests.disks import small_disk
from tests.end_to_end.processes import wait_until

pytestmark = pytest.mark.timeout(500)
DATABASES = ("postgresql", "sqlite")
DISK_KILOBYTES = 8192


@pytest.fixture(scope="module")
def steered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Steered]:
    folder = tmp_path_factory.mktemp("steered")
    with (
        running_postgres() as postgres,
        small_disk(folder / "disk", DISK_KILOBYTES) as disk,
        living(folder, disk, postgres) as run,
    ):
        yield run


@pytest.fixture(scope="module")
def frames(steered: Steered) -> list[Frame]:
    return steered.journal()


@pytest.fixture
def facts(steered: Steered) -> SteeredFacts:
    return steered.facts


def commands_in(frames: list[Frame]) -> list[Commanded]:
    return [record for frame in frames for record in frame.records if isinstance(record, Commanded)]


def after(frames: list[Frame], cursor: int) -> StepDecided:
    """The first step that was decided after a cursor."""
    later = (record for frame in frames if frame.cursor > cursor for record in frame.records)
    return next(record for record in later if isinstance(record, StepDecided))


# ── the projection ────────────────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("kind", DATABASES)
def test_the_database_tells_what_the_journal_tells(steered: Steered, frames: list[Frame], kind: str) -> None:
    url = steered.databases[kind]
    wait_until(lambda: read_cursor(url) == frames[-1].cursor)
    assert differences(url, RUN, frames) == []


@pytest.mark.parametrize("kind", DATABASES)
def test_no_command_is_left_undecided(steered: Steered, kind: str) -> None:
    commands = read_tables(steered.databases[kind], RUN)["commands"].values()
    assert {command["state"] for command in commands} == {"done"}


# ── kills ─────────────────────────────────────────────────────────────────────────────────────────────────────────────
def test_at_every_seam_of_a_command_everyone_was_killed(facts: SteeredFacts) -> None:
    assert sorted(fired.fault for fired in facts.fired) == sorted(FAULTS)
    assert facts.killed == set(product(COMMAND_SEAMS, ("api", "dispatcher", DATABASE)))


def test_a_command_has_one_effect_whoever_is_killed_on_its_way(facts: SteeredFacts, frames: list[Frame]) -> None:
    for told in facts.struck.values():
        (command,) = [command for command in commands_in(frames) if command.value == f"{told['value']:g}"]
        (cursor,) = [frame.cursor for frame in frames if command in frame.records]
        assert (told["id"], told["state"], told["text"]) == (command.id, "done", command.text)
        assert told["cursor"] == cursor  # whoever answered: the dispatcher that wrote it down, a later one, the feed


def test_what_was_acknowledged_is_carried_out(facts: SteeredFacts) -> None:
    assert facts.acknowledged
    assert {told["id"] for told in facts.acknowledged} <= {told["id"] for told in facts.struck.values()}


# ── steering ──────────────────────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("kind", DATABASES)
def test_alpha_set_by_hand_is_in_force_at_the_next_decided_step(
    facts: SteeredFacts, frames: list[Frame], kind: str
) -> None:
    value = {"postgresql": 0.25, "sqlite": 0.5}[kind]
    told = facts.told[f"alpha {value}"]
    assert after(frames, told["cursor"]).alpha == value
    assert f"from step {after(frames, told['cursor']).step} on" in told["text"]
    status, alpha = facts.alphas[kind]
    assert (status["alpha"], status["alpha_mode"]) == (value, "manual")
    assert (alpha["set_value"], alpha["value"], alpha["reason"]) == (value, value, "by hand")


def test_alpha_given_back_is_the_dispatchers(facts: SteeredFacts) -> None:
    assert "alpha follows contention" in facts.told["auto"]["text"]


def test_alpha_falls_while_another_process_loads_the_processor_and_rises_after(
    facts: SteeredFacts, frames: list[Frame]
) -> None:
    if not may_set_priorities():
        pytest.skip("no load that is felt for certain: setting real-time priorities needs CAP_SYS_NICE")
    values = [value for value, _ in groupby(alpha["value"] for alpha in facts.contended if alpha["mode"] == "auto")]
    changes = [record for frame in frames for record in frame.records if isinstance(record, AlphaChanged)]
    assert values[0] == 1.0 > min(values) < values[-1]
    assert set(values[1:]) <= {change.alpha for change in changes}
    fall = next(change for change in changes if change.alpha < 1.0)
    assert "alpha falls from 1 to 0.5" in fall.reason
    assert min(fall.readings["wait_share"], 1.0 - fall.readings["decide_cpu_share"]) > 0.35
    assert any("alpha rises" in alpha["reason"] for alpha in facts.contended)


def test_another_policy_decides_in_the_next_generation(facts: SteeredFacts, frames: list[Frame]) -> None:
    later = [record for frame in frames if frame.cursor > facts.told["policy"]["cursor"] for record in frame.records]
    started = next(record for record in later if isinstance(record, GenerationStarted))
    assert started.reason == "policy changed"


@pytest.mark.parametrize(
    ("what", "value"), [("deadline", "true"), ("skip_above", "1000000"), ("link", "0.5"), ("shares", "0.5:1.5")]
)
def test_settings_of_a_run_are_set_while_it_trains(
    facts: SteeredFacts, frames: list[Frame], what: str, value: str
) -> None:
    (command,) = [command for command in commands_in(frames) if command.verb == what]
    assert (command.id, command.value) == (facts.told[what]["id"], value)


def test_a_paused_run_decides_nothing_until_it_is_resumed(facts: SteeredFacts) -> None:
    before, later = facts.paused
    assert before == later
    assert facts.told["resume"]["cursor"] == later + 1


def test_workers_are_added_drained_and_removed(steered: Steered) -> None:
    records = read_records(steered.folder / "journal")
    started = [sorted(record.members) for record in records if isinstance(record, GenerationStarted)]
    pair, all_three = ["worker-0", "worker-1"], ["worker-0", "worker-1", "worker-2"]
    assert [members for members, _ in groupby(started)] == [pair, all_three, ["worker-1", "worker-2"], ["worker-2"]]


def test_no_sample_is_lost(steered: Steered, facts: SteeredFacts) -> None:
    assert facts.status == 0
    findings = verify_folder(steered.folder)
    assert findings
    assert [finding for finding in findings if finding.ok is False] == []


# ── databases that are away ───────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("how", ["stopped", "killed", "full"])
def test_training_goes_on_without_a_database_and_so_do_live_reads(facts: SteeredFacts, how: str) -> None:
    outage = facts.outages[how]
    assert outage.steps >= FURTHER
    assert outage.reads == {"": 200, "/alpha": 200, "/workers": 200}
    assert outage.write == (503, "application/problem+json")
