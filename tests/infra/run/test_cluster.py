import io
import os
import signal
import sys
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
import zmq
from rich.console import Console

from api.runs.places import find_runs
from dispatch.progress.status import Status
from infra.base.errors import ConfigError, ProcessFailed
from infra.base.link_gbit import LinkGbit
from infra.base.process import Stop, write_whole
from infra.base.wire import bind
from infra.run import cluster
from infra.run.cluster import (
    MOST_RESTARTS,
    EarlyLeavers,
    Extras,
    KnownBest,
    StatusSubscription,
    further_worker,
    kept_alive,
    run_cluster,
    specs,
    status_endpoint,
    tell_dense_part,
)
from infra.run.display import Display
from infra.run.network import Network
from infra.run.notices import Notices
from infra.run.settings import Settings, load_settings
from infra.run.supervision.child import ProcessSpec
from infra.run.supervision.supervisor import Supervisor
from ingest.producing.synthetic import CHUNK, World

PLAIN = Extras()
ENDPOINTS = {"ps-0": "tcp://h:1", "ps-1": "tcp://h:2", "dispatcher": "tcp://h:3\ntcp://h:4"}


def made(folder: Path, *overrides: str, extras: Extras = PLAIN) -> dict[str, ProcessSpec]:
    settings = load_settings(None, ["dispatch.workers=3", "ps.shards=2", *overrides], folder=folder)
    return {spec.name: spec for spec in specs(settings, extras)}


def arguments(spec: ProcessSpec) -> list[str]:
    return list(spec.argv(ENDPOINTS) if callable(spec.argv) else spec.argv)


def values(spec: ProcessSpec, option: str) -> list[str]:
    given = arguments(spec)
    return [given[place + 1] for place, part in enumerate(given) if part == option]


def test_a_run_is_known_as_one_from_the_moment_its_settings_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find(settings: Settings) -> None:
        write_whole(settings.folder / "settings.json", settings.model_dump_json())
        assert list(find_runs(settings.folder)) == ["clicks"]
        raise ProcessFailed("far enough")

    monkeypatch.setattr(cluster, "store_settings", find)
    settings = load_settings(None, ["run=clicks"], folder=tmp_path / "new")
    with pytest.raises(ProcessFailed, match="far enough"):
        run_cluster(settings, PLAIN, Stop(), Display(Console(file=io.StringIO())))


def test_the_known_best_is_the_share_of_clicks_ranked_above_others() -> None:
    chunk = World(1).chunk(0)
    clicks, others = (chunk.probabilities_B[chunk.labels_B == label] for label in (1, 0))
    share = float((clicks[:, None] > others[None, :]).mean())
    assert KnownBest(1)(CHUNK) == pytest.approx(share, abs=1e-3)


def test_the_known_best_leaves_room_to_learn_and_adds_up() -> None:
    best = KnownBest(0)
    assert best(0) == 0.5
    assert 0.75 < best(20_000) < 0.9
    assert best(30_000) == KnownBest(0)(30_000)


def test_every_worker_gets_its_own_link_and_everyone_the_dispatcher_s_address(tmp_path: Path) -> None:
    found = made(tmp_path, "dispatch.links_gbit=5,1,0.5")
    workers = [found[f"worker-{number}"] for number in range(3)]
    assert [values(worker, "--link") for worker in workers] == [["5.0"], ["1.0"], ["0.5"]]
    assert [values(worker, "--dispatcher") for worker in workers] == [["tcp://h:3"]] * 3
    assert [values(found[f"ps-{number}"], "--dispatcher") for number in range(2)] == [["tcp://h:3"]] * 2
    assert values(found["dispatcher"], "--endpoint") == ["tcp://h:3"], "one that is started anew listens where it did"
    assert values(made(tmp_path)["worker-0"], "--link") == []


def test_processes_stop_along_the_path_of_the_data(tmp_path: Path) -> None:
    found = made(tmp_path, extras=Extras(produce=("--rate", "5")))
    ordered = sorted(found, key=lambda name: found[name].stop_order)
    assert [name.split("-")[0] for name in ordered] == ["produce", "dispatcher", *["worker"] * 3, *["ps"] * 2, "api"]
    assert [found[name].needs for name in ("dispatcher", "worker-0", "ps-1")] == [(), *[("dispatcher",)] * 2]


def test_the_end_of_the_dispatcher_alone_ends_the_run(tmp_path: Path) -> None:
    found = made(tmp_path, extras=Extras(produce=()))
    assert [name for name, spec in found.items() if spec.ends_run] == ["dispatcher"]
    assert [name for name, spec in found.items() if not spec.essential] == ["api", "produce"]


def test_shards_must_not_end_and_workers_may_leave(tmp_path: Path) -> None:
    found = made(tmp_path, extras=Extras(produce=(), broker_port=9092))
    assert [name for name, spec in found.items() if spec.may_finish] == ["worker-0", "worker-1", "worker-2", "produce"]


def test_a_worker_that_left_before_the_first_generation_ends_the_run(tmp_path: Path) -> None:
    leaves = ProcessSpec("worker-0", [sys.executable, "-c", "print('left')"], may_finish=True)
    stays = ProcessSpec("dispatcher", ["sleep", "60"])
    with Supervisor([leaves, stays], tmp_path) as supervisor:
        while supervisor.children["worker-0"].state != "finished":
            assert supervisor.poll()
        assert supervisor.children["worker-0"].status == 0
        gathering, later = EarlyLeavers(supervisor), EarlyLeavers(supervisor)
        for received in (5, 5, 6):
            gathering.check(Status(run="r"), received)
            later.check(Status(run="r", generation=1), received)
        with pytest.raises(ProcessFailed, match="'worker-0' ended with status 0"):
            gathering.check(Status(run="r"), 7)
        later.check(Status(run="r", generation=1), 7)


def test_a_worker_that_left_later_is_not_blamed_when_the_dispatcher_starts_anew(tmp_path: Path) -> None:
    leaves = ProcessSpec("worker-0", [sys.executable, "-c", "print('left')"], may_finish=True)
    with Supervisor([leaves, ProcessSpec("dispatcher", ["sleep", "60"])], tmp_path) as supervisor:
        while supervisor.children["worker-0"].state != "finished":
            assert supervisor.poll()
        leavers = EarlyLeavers(supervisor)
        for received, generation in enumerate((3, 0, 0, 0, 0)):
            leavers.check(Status(run="r", generation=generation), received)


def test_a_worker_that_was_asked_to_end_is_not_blamed(tmp_path: Path) -> None:
    sleepers = [ProcessSpec(name, ["sleep", "60"], may_finish=True) for name in ("worker-0", "worker-1")]
    with Supervisor(sleepers, tmp_path) as supervisor:
        supervisor.poll()
        supervisor.end("worker-0")
        while supervisor.children["worker-0"].state != "finished":
            assert supervisor.poll()
        leavers = EarlyLeavers(supervisor)
        for received in range(4):
            leavers.check(Status(run="r"), received)


def test_every_restart_is_told_once_with_its_reason(tmp_path: Path) -> None:
    spec = ProcessSpec("worker-1", ["sleep", "60"], restart="on_failure", backoff_seconds=0.01)
    with Supervisor([spec], tmp_path) as supervisor:
        notices, lines, worker = Notices(supervisor), list[str](), supervisor.children["worker-1"]
        supervisor.poll()
        for restarts in (1, 2):
            assert worker.pid is not None
            os.kill(worker.pid, signal.SIGKILL)
            while worker.restarts < restarts:
                supervisor.poll()
            for _ in range(2):
                lines += notices.new()
    assert lines == ["worker-1 was restarted (ended by SIGKILL)"] * 2


def test_what_a_run_cannot_do_without_is_kept_alive(tmp_path: Path) -> None:
    settings = load_settings(None, ["dispatch.workers=1", "ps.shards=1"], folder=tmp_path)
    extras = Extras(produce=(), serve=True)
    kept = {spec.name: spec for spec in kept_alive(specs(settings, extras), settings, extras)}
    assert {name for name, spec in kept.items() if spec.restart == "on_failure"} == set(kept)
    lasting = {name for name, spec in kept.items() if spec.max_restarts == MOST_RESTARTS}
    assert lasting == {"ps-0", "dispatcher", "worker-0"}
    assert {name for name, spec in kept.items() if spec.max_restarts is None} == {"api", "serve"}
    assert kept["worker-0"].alive_file == tmp_path / "endpoints" / "worker-0.alive"


def test_servers_share_the_port_of_the_first_and_the_run_can_do_without_them(tmp_path: Path) -> None:
    settings, extras = load_settings(None, ["serving.processes=2"], folder=tmp_path), Extras(serve=True)
    first, second = (spec for spec in specs(settings, extras) if spec.name.startswith("serve"))
    assert not {"--port", "--share-port"} & set(first.argv({}))  # type: ignore[operator]
    for spec in (first, second):  # the first keeps its port when it is started anew
        argv = spec.argv({"serve": "http://127.0.0.1:8123"})  # type: ignore[operator]
        assert argv[-3:] == ["--port", "8123", "--share-port"]
        assert (spec.essential, spec.restart) == (False, "on_failure")
    assert (first.needs, second.needs) == ((), ("serve",))


def test_the_processes_of_a_replay_are_not_restarted(tmp_path: Path) -> None:
    settings, extras = load_settings(None, ["ps.shards=1"], folder=tmp_path), Extras(api=False, golden=tmp_path)
    assert {spec.restart for spec in kept_alive(specs(settings, extras), settings, extras)} == {"never"}


def test_a_further_worker_is_one_that_the_run_can_do_without(tmp_path: Path) -> None:
    settings = load_settings(None, ["ps.shards=2"], folder=tmp_path)
    spec = further_worker(settings, PLAIN, "edge", LinkGbit.of(0.5))
    assert (spec.essential, spec.restart, values(spec, "--link")) == (False, "on_failure", ["0.5"])
    assert values(spec, "--dispatcher") == ["tcp://h:3"]
    with pytest.raises(ConfigError, match="has a network of its own"):
        further_worker(settings, Extras(network=Network("h", (), ())), "edge", LinkGbit.of(0.5))


def test_progress_is_the_furthest_step_of_any_status(tmp_path: Path) -> None:
    at = tmp_path / "at"
    with (
        zmq.Context() as context,
        closing(context.socket(zmq.XPUB)) as publisher,
        Supervisor([ProcessSpec("dispatcher", ["sleep", "60"], endpoint_file=at)], tmp_path) as supervisor,
        StatusSubscription(lambda: status_endpoint(supervisor), None) as statuses,
    ):
        assert statuses.newest() is None
        supervisor.poll()
        at.write_text("\n".join(("tcp://h:1", bind(publisher, "tcp://127.0.0.1:*"), "tcp://h:2")))
        supervisor.poll()
        statuses.newest()
        publisher.recv()  # the subscription
        for step in (7, 3):
            publisher.send(msgspec.json.encode(Status(run="r", step=step)))
            newest = statuses.newest(30_000)
            assert newest is not None
            assert (newest.step, statuses.furthest) == (step, 7)


def test_an_api_that_fails_is_told_once_with_its_reason_and_where_it_listens_otherwise(tmp_path: Path) -> None:
    fails = "echo settings; echo freshet: the port is taken; exit 2"
    serves = f"printf http://h:1 > {tmp_path / 'at.part'}; mv {tmp_path / 'at.part'} {tmp_path / 'at'}; sleep 60"
    ready = "API at http://h:1; 'freshet token create' creates a token for it"
    for script, state, told in ((fails, "failed", "failed: the port is taken"), (serves, "ready", ready)):
        at = tmp_path / "at"
        spec = ProcessSpec("api", ["sh", "-c", script], endpoint_file=at, essential=False, restart="on_failure")
        with Supervisor([spec, ProcessSpec("ps-0", ["sleep", "60"])], tmp_path / state) as supervisor:
            notices, lines = Notices(supervisor), list[str]()
            while supervisor.children["api"].state != state:
                assert supervisor.poll()
            for _ in range(2):
                lines += notices.new()
        assert [line.endswith(told) for line in lines] == [True], lines


def test_a_link_of_the_api_is_told_once_and_does_not_stay_in_the_folder(tmp_path: Path) -> None:
    link, at = tmp_path / "api.link", tmp_path / "at"
    link.write_text("fl_secret")
    script = f"printf http://0.0.0.0:1 > {at}.part; mv {at}.part {at}; sleep 60"
    spec = ProcessSpec("api", ["sh", "-c", script], endpoint_file=at, essential=False)
    with Supervisor([spec, ProcessSpec("ps-0", ["sleep", "60"])], tmp_path / "logs") as supervisor:
        notices, lines = Notices(supervisor, link_file=link), list[str]()
        while supervisor.children["api"].state != "ready":
            assert supervisor.poll()
        for _ in range(2):
            lines += notices.new()
    assert [line.strip() for line in lines if "#signin" in line] == ["http://127.0.0.1:1/dashboard/#signin=fl_secret"]
    assert not link.exists()


def test_a_heavy_dense_part_is_told_before_anything_starts(tmp_path: Path) -> None:
    output = io.StringIO()
    settings = load_settings(None, ["rows.dim=1024"], folder=tmp_path)
    part = tell_dense_part(settings, Display(Console(file=output, width=80)))
    assert output.getvalue().startswith("warning: the dense part has 171M weights")
    assert part.weights > 171_000_000
    tell_dense_part(load_settings(), Display(Console(file=output, width=80)))
    assert len(output.getvalue().splitlines()) == 1


def test_the_dispatcher_may_drain_longer_than_it_waits_for_workers(tmp_path: Path) -> None:
    assert made(tmp_path, "dispatch.drain_seconds=300")["dispatcher"].stop_seconds > 300


def test_the_dispatcher_gets_where_to_end_and_to_mark(tmp_path: Path) -> None:
    dispatcher = made(tmp_path, extras=Extras(samples=7, mark_at=5))["dispatcher"]
    assert (values(dispatcher, "--samples"), values(dispatcher, "--mark-at")) == (["7"], ["5"])
    assert "--stop-at-end" not in arguments(dispatcher)
    assert "--stop-at-end" in arguments(made(tmp_path, extras=Extras(stop_at_end=True))["dispatcher"])


@pytest.mark.parametrize(
    ("cores", "override", "threads"), [(8, "seed=0", 2), (2, "seed=0", 1), (8, "trainer.threads=5", 5)]
)
def test_workers_share_the_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cores: int, override: str, threads: int
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _process: set(range(cores)), raising=False)
    assert made(tmp_path, override)["worker-0"].env["OMP_NUM_THREADS"] == str(threads)


def test_a_broker_comes_before_whoever_reads_or_writes_events_and_stops_after_them(tmp_path: Path) -> None:
    found = made(tmp_path, extras=Extras(produce=(), broker_port=9092, start_arguments=("--from-offsets", "0:5")))
    assert values(found["broker"], "--port") == ["9092"]
    assert found["dispatcher"].needs == ("broker",)
    assert found["produce"].needs == ("broker",)
    assert found["broker"].stop_order > max(found[name].stop_order for name in ("produce", "dispatcher", "ps-0"))
    assert values(found["dispatcher"], "--from-offsets") == ["0:5"]


def test_secrets_reach_the_processes_that_talk_to_kafka_and_no_other(tmp_path: Path) -> None:
    settings = ("kafka.protocol=SASL_SSL", "kafka.username=a", "kafka.password=hush")
    found = made(tmp_path, *settings, extras=Extras(produce=()))
    secret = {name for name, spec in found.items() if "hush" in spec.env.values()}
    assert secret == {"api", "dispatcher", "produce"}
    assert all("hush" not in " ".join(arguments(spec)) for spec in found.values())
