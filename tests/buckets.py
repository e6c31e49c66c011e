"""An object store that speaks S3, for tests: S3Proxy, in memory, on this machine.

Maven downloads its jars once, into the same cache folder as the broker's.
"""

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from infra.base.errors import MissingProgram
from infra.kafka.jars import cache_folder, fetch_jars, find_java
from tests.ports import free_port

POM = Path(__file__).with_name("s3proxy.pom.xml")
HOST = "127.0.0.1"
START_SECONDS = 120.0
ANSWER_SECONDS = 5.0
"""Time limit for one request."""
STARTS = 3
KEYS = {"AWS_ACCESS_KEY_ID": "freshet", "AWS_SECRET_ACCESS_KEY": "not-a-secret", "AWS_EC2_METADATA_DISABLED": "true"}
SETTINGS = """
s3proxy.endpoint=http://{host}:{port}
s3proxy.authorization=aws-v2-or-v4
s3proxy.identity={AWS_ACCESS_KEY_ID}
s3proxy.credential={AWS_SECRET_ACCESS_KEY}
jclouds.provider=transient-nio2
jclouds.identity=local
jclouds.credential=local
"""


@pytest.fixture(scope="session")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of an empty bucket; skips without Java and Maven."""
    with running_store(tmp_path_factory.mktemp("s3proxy")) as url:
        yield url


@contextmanager
def running_store(folder: Path, host: str = HOST) -> Iterator[str]:
    """A store of its own; the URL of its bucket. Its keys are in the environment meanwhile."""
    try:
        java, jars = find_java(), s3proxy_jars()
    except MissingProgram as error:
        pytest.skip(f"no object store: {error}")
    (folder / "logback.xml").write_text('<configuration><root level="OFF"/></configuration>')
    quiet = f"-Dlogback.configurationFile={folder / 'logback.xml'}"
    command = [java, "-cp", f"{jars}/*", quiet, "org.gaul.s3proxy.Main", "--properties", str(folder / "settings")]
    with pytest.MonkeyPatch.context() as patch:
        for name, value in KEYS.items():
            patch.setenv(name, value)
        process, url = start_store(command, folder, host)
        try:
            yield url
        finally:
            process.kill()
            process.wait()


def start_store(command: list[str], folder: Path, host: str) -> tuple["subprocess.Popen[bytes]", str]:
    """Starts a store on a free port, and creates its bucket; if another process takes the port first, tries another
    one.
    """
    for _ in range(STARTS):
        port = free_port()
        (folder / "settings").write_text(SETTINGS.format(host=host, port=port, **KEYS))
        with (folder / "output").open("wb") as output:
            process = subprocess.Popen(command, stdout=output, stderr=output)
        if (url := make_bucket(host, port, process)) is not None:
            return process, url
    raise AssertionError(f"S3Proxy did not start {STARTS} times: {(folder / 'output').read_text()}")


def make_bucket(host: str, port: int, process: "subprocess.Popen[bytes]") -> str | None:
    """The URL of a new bucket; None if the store has ended. Another program on its port would not know its keys."""
    from pyarrow.fs import S3FileSystem

    told = {"endpoint_override": f"{host}:{port}", "scheme": "http", "region": "us-east-1"}
    limits = {"connect_timeout": ANSWER_SECONDS, "request_timeout": ANSWER_SECONDS}
    deadline = time.monotonic() + START_SECONDS
    while process.poll() is None:
        try:
            S3FileSystem(**told, **limits, allow_bucket_creation=True).create_dir("bucket")
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
            continue
        return "s3://bucket?" + "&".join(f"{name}={value}" for name, value in told.items())
    return None


def s3proxy_jars() -> Path:
    """The folder with S3Proxy's jars; the first call downloads them."""
    return fetch_jars(POM, "S3Proxy", cache_folder())
