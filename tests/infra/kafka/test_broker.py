import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from infra.base.errors import MissingProgram, ProcessFailed
from infra.kafka import broker, jars
from tests.brokers import TestBroker, admin, running_broker
from tests.end_to_end.processes import ROOT, wait_until


def test_the_shared_broker_answers(kafka: TestBroker) -> None:
    topic = kafka.new_topic(partitions=3)
    with admin(kafka.config()) as client:
        (described,) = client.describe_topics([topic])
    assert len(described["partitions"]) == 3


@pytest.fixture(scope="module")
def unlucky(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[broker.Broker, list[int]]]:
    """A broker whose first port was taken before it could bind it, and the ports it was given.

    Nobody has left classes for it.
    """
    choose, chosen = broker.Broker._choose_ports, list[int]()

    def lose_the_first(self: broker.Broker) -> dict[str, int]:
        ports = choose(self) | ({} if chosen else {"PLAINTEXT": taken.getsockname()[1]})
        chosen.append(ports["PLAINTEXT"])
        return ports

    with pytest.MonkeyPatch.context() as patch, socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        patch.setattr(broker.Broker, "_choose_ports", lose_the_first)
        archive = tmp_path_factory.mktemp("kept") / "classes"
        patch.setattr(broker, "class_archive", lambda _java, _jars: archive)
        with running_broker(tmp_path_factory.mktemp("unlucky")) as started:
            yield started, chosen


def test_a_lost_port_is_replaced_by_another(unlucky: tuple[broker.Broker, list[int]]) -> None:
    started, (lost, kept) = unlucky
    assert started.running
    assert lost != kept
    assert started.address == f"127.0.0.1:{kept}"


def test_a_killed_broker_comes_back_at_its_address_with_its_topics(unlucky: tuple[broker.Broker, list[int]]) -> None:
    started, _ = unlucky
    test, address, first = TestBroker((started.address,)), started.address, started.pid
    topic = test.new_topic()
    started.kill()
    assert not started.running
    started.start()
    assert (started.address, started.pid != first) == (address, True)
    with admin(test.config()) as client:
        assert topic in str(client.list_topics())


def test_a_broker_that_ends_in_order_leaves_its_classes_for_the_next(
    unlucky: tuple[broker.Broker, list[int]],
) -> None:
    started, _ = unlucky
    java, folder = jars.find_java(), jars.kafka_jars()
    archive = started._archive
    assert archive is not None
    assert not archive.exists()
    started.stop()
    assert not (started.folder / "classes").exists()
    loads = ["-Xshare:on", f"-XX:SharedArchiveFile={archive}", "-Xlog:class+load", "-cp", f"{folder}/*"]
    tool = subprocess.run(
        [java, *loads, "kafka.tools.StorageTool", "random-uuid"], capture_output=True, text=True, timeout=100
    )
    assert "kafka.tools.StorageTool source: jar" not in tool.stdout
    assert "shared objects file (top)" in tool.stdout  # where the classes of the archive come from


def test_classes_that_cannot_be_kept_are_no_error(tmp_path: Path) -> None:
    (tmp_path / "written").write_bytes(b"classes")
    jars.keep_classes(tmp_path / "written", tmp_path / "missing" / "archive")
    assert list(tmp_path.iterdir()) == []
    jars.keep_classes(tmp_path / "written", tmp_path / "archive")
    assert list(tmp_path.iterdir()) == []


def test_another_java_has_other_classes(tmp_path: Path) -> None:
    one, other = (tmp_path / name for name in ("one", "other"))
    one.touch()
    other.touch()
    assert len({jars.class_archive(str(java), tmp_path / "kafka-1") for java in (one, other, one)}) == 2


def test_a_broker_that_does_not_start_is_reported_with_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_first(monkeypatch, tmp_path, "java", "echo 'version \"17\"' >&2; [ $# = 1 ] || { echo no luck; exit 3; }")
    monkeypatch.setattr(broker, "kafka_jars", lambda: tmp_path)
    with pytest.raises(ProcessFailed, match=r"could not format(.|\n)*no luck"):
        broker.Broker(tmp_path / "broker").start()


def test_a_port_that_is_taken_is_named_without_starting_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_first(monkeypatch, tmp_path, "java", f"echo 'version \"17\"' >&2; [ $# = 1 ] || touch {tmp_path}/started")
    monkeypatch.setattr(broker, "kafka_jars", lambda: tmp_path)
    monkeypatch.setattr(broker, "TRIES", 1)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            ProcessFailed, match=rf"cannot listen on 127.0.0.1, port {port}, .*choose another --port"
        ) as refused:
            broker.Broker(tmp_path / "broker", port=port).start()
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "started").exists()


def test_a_broker_ends_with_the_process_that_started_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    version, started = "-version) echo 'version \"17\"' >&2;;", "*) echo Kafka Server started; exec sleep 600;;"
    put_first(monkeypatch, tmp_path, "java", f"case $* in {version} *StorageTool*) ;; {started} esac")
    code = (
        "import sys, time, infra.kafka.broker as b; from pathlib import Path; b.kafka_jars = lambda: Path('jars'); "
        "broker = b.Broker(Path(sys.argv[1])); broker.start(); print(broker.pid, flush=True); time.sleep(600)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code, tmp_path], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = psutil.Process(int(parent.stdout.readline()))
    assert child.is_running()
    parent.kill()
    parent.communicate()
    wait_until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)


def test_without_java_or_maven_the_missing_program_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingProgram, match=r"'java' is not on the PATH; expected Java 17"):
        jars.find_java()
    with pytest.raises(MissingProgram, match=r"'mvn' is not on the PATH; expected Apache Maven"):
        jars.kafka_jars(tmp_path / "cache")


def test_an_old_java_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_first(monkeypatch, tmp_path, "java", "echo 'openjdk version \"1.8.0_392\"' >&2")
    with pytest.raises(MissingProgram, match=r'version "1.8.0_392"; expected Java 17'):
        jars.find_java()


def test_a_failed_download_leaves_nothing_that_looks_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_first(monkeypatch, tmp_path, "mvn", "echo no network; exit 1")
    for _ in range(2):
        with pytest.raises(ProcessFailed, match=r"status 1.*\n.*no network"):
            jars.kafka_jars(tmp_path / "cache")


def test_a_finished_download_is_used_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = "for a; do case $a in -DoutputDirectory=*) folder=${a#*=};; esac; done"
    put_first(monkeypatch, tmp_path, "mvn", f'{folder}\nmkdir -p "$folder"\ntouch "$folder/kafka-clients-4.jar"')
    first = jars.kafka_jars(tmp_path / "cache")
    (tmp_path / "mvn").unlink()
    assert jars.kafka_jars(tmp_path / "cache") == first
    assert [jar.name for jar in first.iterdir()] == ["kafka-clients-4.jar"]


def put_first(monkeypatch: pytest.MonkeyPatch, folder: Path, program: str, script: str) -> None:
    """Puts a shell script on the PATH in place of a program."""
    (folder / program).write_text(f"#!/bin/sh\n{script}\n")
    (folder / program).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


def test_jars_are_kept_in_the_users_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert jars.cache_folder() == tmp_path / "freshet"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert jars.cache_folder() == tmp_path / "home" / ".cache" / "freshet"
