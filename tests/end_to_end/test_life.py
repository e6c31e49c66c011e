"""What is true of one run that was killed, stopped, failed and commanded in every way; its life is in ``living``.

Each test is a claim of its own about the same run, which is lived once.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from dispatch.journal.history import History, read_history
from dispatch.journal.log import read_records
from dispatch.journal.records import Commanded
from infra.base.faults import read_fired
from infra.cli.replay import digest_file
from tests.end_to_end.living import ENDED, FURTHER, HUNG, KILLED, Facts, Life, given, live
from tests.end_to_end.processes import run

pytestmark = pytest.mark.timeout(500)


@pytest.fixture(scope="module")
def life(tmp_path_factory: pytest.TempPathFactory) -> Life:
    return live(tmp_path_factory.mktemp("life"))


@pytest.fixture
def facts(life: Life) -> Facts:
    return life.facts


@pytest.fixture
def history(life: Life) -> History:
    """At the end of it all; reading checks that ranges tile."""
    return read_history(life.folder / "journal")


# ── strangers ─────────────────────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(("name", "what"), [("ps-0", "shard 0"), ("worker-1", "worker 'worker-1'")])
def test_a_second_process_of_a_name_is_refused_and_the_run_goes_on(facts: Facts, name: str, what: str) -> None:
    status, output = facts.strays[name]
    told = " ".join(output.split())
    assert (status, f"another process is {what}, and is alive; expected one of each" in told) == (2, True), output


def test_a_second_process_of_a_name_writes_nothing_into_the_folder_of_the_run(facts: Facts) -> None:
    before, after = facts.written
    assert {"endpoints/ps-0", "endpoints/ps-0.metrics", "endpoints/worker-1"} <= set(before)
    assert after == before


# ── processes that are killed, that end, that hang ────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("victim", KILLED)
def test_a_killed_process_is_replaced_and_the_run_goes_on(life: Life, facts: Facts, victim: str) -> None:
    assert facts.first_summary["restarts"][victim] == (2 if victim == "dispatcher" else 1)  # once with its loader
    assert f"{victim} was restarted (ended by SIGKILL)" in facts.first_output
    told = [line for line in (life.folder / "supervisor.log").read_text().splitlines() if f"name={victim} " in line]
    assert any("why='was ended by SIGKILL'" in line for line in told)


def test_a_dispatcher_whose_loader_was_killed_tells_why_it_ends_and_is_replaced(life: Life, facts: Facts) -> None:
    assert "dispatcher was restarted (ended with status 1" in facts.first_output
    assert "the process of the loader ended with status -9" in (life.folder / "supervisor.log").read_text()


def test_a_shard_that_ends_with_0_is_replaced_and_the_run_goes_on(facts: Facts) -> None:
    assert facts.first_summary["restarts"][ENDED] == 1
    assert f"{ENDED} was restarted (ended with status 0)" in facts.first_output


@pytest.mark.parametrize("hung", HUNG)
def test_a_process_that_was_stopped_is_replaced_while_the_run_goes_on(facts: Facts, hung: str) -> None:
    assert facts.first_summary["restarts"][hung] == 1
    assert f"{hung} was restarted (gave no sign of life for 5 seconds and was killed)" in facts.first_output


def test_a_stopped_worker_is_named_and_not_the_one_that_waits_for_it(facts: Facts) -> None:
    assert "lost worker worker-0: it ended, or gave no sign of life" in facts.lost
    assert "lost worker worker-1" not in facts.lost


def test_snapshots_go_out_all_the_while_and_never_go_back(facts: Facts, history: History) -> None:
    assert len(facts.heard) > len(KILLED)
    assert list(facts.heard) == sorted(facts.heard)
    assert facts.heard[-1].step > history.step // 2
    assert facts.unreadable == ()


def test_nothing_else_is_restarted_and_nobody_sees_a_traceback(facts: Facts) -> None:
    assert facts.first_summary["restarts"] == dict.fromkeys((*KILLED, ENDED, *HUNG), 1) | {"dispatcher": 2}
    assert "Traceback" not in facts.first_output


# ── ends ──────────────────────────────────────────────────────────────────────────────────────────────────────────────
def test_a_signal_after_the_first_steps_drains_and_all_that_was_recorded_is_trained(life: Life, facts: Facts) -> None:
    first, summary = facts.first_history, facts.first_summary
    assert first is not None
    assert first.stopped is not None
    assert (summary["exit_reason"], summary["killed"]) == ("SIGTERM", [])
    assert (first.stopped.reason, first.stopped.step) == ("SIGTERM", first.step)
    assert summary["status"]["samples"] == first.samples == sum(step.manifest.samples for step in first.steps)
    assert f"stopped; 'freshet up --no-serve --run {life.folder}' resumes it" in facts.first_output


def test_an_orderly_end_leaves_no_process(facts: Facts) -> None:
    assert facts.left == []


def test_a_killed_supervisor_leaves_no_orphans(facts: Facts) -> None:
    assert facts.orphans == (8, 0), "the nursery, the dispatcher, its loader, two shards, two workers, the API"


def test_faults_of_every_kind_of_process_fire_at_their_seams_once_and_the_run_goes_on(life: Life, facts: Facts) -> None:
    fired = read_fired(life.folder)
    assert sorted(each.fault for each in fired) == sorted(facts.faults)
    (killed,) = (each for each in fired if each.seam == "after_pull")
    assert (killed.process, f"step={killed.step}:{killed.action}" in killed.fault) == ("worker-1", True)
    assert facts.killed_history is not None
    assert facts.killed_history.step >= max(each.step for each in fired) + FURTHER


# ── goes on ───────────────────────────────────────────────────────────────────────────────────────────────────────────
def test_what_was_on_record_stays_when_the_run_goes_on(facts: Facts, history: History) -> None:
    for before in (facts.first_history, facts.killed_history):
        assert before is not None
        assert history.steps[: before.step] == before.steps
    assert history.step > facts.killed_history.step + 2 * FURTHER  # type: ignore[union-attr]


def test_output_that_nobody_can_read_ends_no_run(facts: Facts, history: History) -> None:
    assert (facts.last_status, facts.last_errors) == (0, b"")
    assert facts.last_summary["exit_reason"] == "SIGTERM"
    assert facts.last_summary["status"]["samples"] == history.samples


def test_a_run_goes_on_with_other_numbers(life: Life, facts: Facts, history: History) -> None:
    assert "ps-2 ready" in facts.said["workers list"]
    assert history.members == ("worker-2",)


# ── commands ──────────────────────────────────────────────────────────────────────────────────────────────────────────
def test_members_change_on_command_while_a_run_is_paused(facts: Facts) -> None:
    at, said = str(facts.paused_at), facts.said
    assert said["pause"] == f"paused after step {at}"
    assert said["workers add"] == "worker worker-2 is being started"
    assert "worker-2 training" in said["workers list"]
    assert said["workers drain worker-0"] == f"worker worker-0 leaves after step {at}"
    assert said["workers remove worker-1"] == "worker worker-1 is removed; the others go back to the last checkpoint"
    assert said["resume"] == f"goes on after step {at}"
    three, two, one = facts.members
    assert [*three, *two, *one] == ["worker-0", "worker-1", "worker-2", at, "worker-1", "worker-2", at, "worker-2", at]


def test_commands_that_cannot_be_carried_out_are_refused(facts: Facts) -> None:
    nobody, last = facts.said["workers drain worker-7"], facts.said["workers remove worker-2"]
    assert "there is no worker 'worker-7'; expected one of worker-1, worker-2" in nobody
    assert "worker 'worker-2' is the last one; expected another that stays; add one first" in last


def test_commands_are_on_record_once(life: Life) -> None:
    commanded = [(r.verb, r.worker) for r in read_records(life.folder / "journal") if isinstance(r, Commanded)]
    assert commanded == [("pause", ""), ("drain", "worker-0"), ("remove", "worker-1"), ("resume", "")]


# ── what is left ──────────────────────────────────────────────────────────────────────────────────────────────────────
def test_a_run_that_went_through_all_this_is_what_it_promises(life: Life, tmp_path: Path) -> None:
    done = run("verify", "--run", life.folder, "--no-replay", "--json", tmp_path / "findings.json")
    assert done.returncode == 0, done.stdout + done.stderr
    found = {each["name"]: each["ok"] for each in json.loads((tmp_path / "findings.json").read_text())}
    not_yet = {"no unreferenced file": None}  # of a run that can go on, which removes those itself
    assert {name: ok for name, ok in found.items() if not ok} == not_yet
    assert (
        found["faults fired"] is found["checkpoints whole"] is found["events add up"] is found["letters unique"] is True
    )


def test_every_rejected_event_is_one_dead_letter(life: Life, history: History) -> None:
    letters = [json.loads(line) for line in run("dead-letters", "--run", life.folder).stdout.splitlines()]
    places = {(letter["partition"], letter["offset"], letter["index"]) for letter in letters}
    assert len(places) == len(letters) == sum(step.manifest.rejected for step in history.steps) > 20


def test_a_run_that_went_through_all_this_equals_the_replay_of_its_journal(
    life: Life, history: History, tmp_path: Path
) -> None:
    done = run("replay", "--run", life.folder, "--into", tmp_path / "golden", "--json", tmp_path / "golden.json")
    assert done.returncode == 0, done.stdout + done.stderr
    golden: dict[str, Any] = json.loads((tmp_path / "golden.json").read_text())
    assert (golden["step"], golden["differs_at"], golden["equals_end"]) == (history.step, None, True)
    assert golden["compared_steps"] > history.step - 8
    assert golden["dense_digest"] == digest_file(life.folder / "dense.safetensors")


def test_a_setting_that_must_stay_is_named_when_the_run_is_to_go_on(life: Life) -> None:
    other = run("up", "--run", life.folder, *given("rows.dim=8"))
    assert (other.returncode, "rows.dim was 4 and is 8" in other.stderr) == (2, True), other.stderr
