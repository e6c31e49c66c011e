"""An object store that speaks S3, for tests: S3Proxy, in memory, on this machine.

Its jars are fetched once by Maven, into the cache folder that the broker's are in.
"""

import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.errors import MissingProgram
from infra.kafka.broker import free_port
from infra.kafka.jars import cache_folder, fetch_jars, find_java

POM = Path(__file__).with_name("s3proxy.pom.xml")
START_SECONDS = 60.0
KEYS = {"AWS_ACCESS_KEY_ID": "freshet", "AWS_SECRET_ACCESS_KEY": "not-a-secret", "AWS_EC2_METADATA_DISABLED": "true"}
SETTINGS = """
s3proxy.endpoint=http://127.0.0.1:{port}
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
    try:
        java, jars = find_java(), s3proxy_jars()
    except MissingProgram as error:
        pytest.skip(f"no object store: {error}")
    folder = tmp_path_factory.mktemp("s3proxy")
    port = free_port()
    (folder / "settings").write_text(SETTINGS.format(port=port, **KEYS))
    (folder / "logback.xml").write_text('<configuration><root level="OFF"/></configuration>')
    quiet = f"-Dlogback.configurationFile={folder / 'logback.xml'}"
    command = [java, "-cp", f"{jars}/*", quiet, "org.gaul.s3proxy.Main", "--properties", str(folder / "settings")]
    with (folder / "output").open("wb") as output, subprocess.Popen(command, stdout=output, stderr=output) as process:
        try:
            with pytest.MonkeyPatch.context() as patch:
                for name, value in KEYS.items():
                    patch.setenv(name, value)
                await_port(port, process)
                yield make_bucket(port)
        finally:
            process.kill()


def make_bucket(port: int) -> str:
    from pyarrow.fs import S3FileSystem

    told = {"endpoint_override": f"127.0.0.1:{port}", "scheme": "http", "region": "us-east-1"}
    S3FileSystem(**told, allow_bucket_creation=True).create_dir("bucket")
    return "s3://bucket?" + "&".join(f"{name}={value}" for name, value in told.items())


def await_port(port: int, process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        assert process.poll() is None, "S3Proxy ended; see its output"
        assert time.monotonic() < deadline, "S3Proxy does not listen"
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.05)
            continue
        return


def s3proxy_jars() -> Path:
    """The folder with S3Proxy's jars; the first call downloads them."""
    return fetch_jars(POM, "S3Proxy", cache_folder())
