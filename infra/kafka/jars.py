"""Apache Kafka's jars: resolved once by Maven from ``infra/kafka/pom.xml``, kept in the user's cache folder.

    ~/.cache/freshet/kafka-HASH     (or below XDG_CACHE_HOME)

A finished download is a folder named by a hash of the pom. It appears whole (lock, then rename), so that any number of
callers may ask at once, and an interrupted download leaves nothing that looks finished.
"""

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
from pathlib import Path

from infra.errors import MissingProgram, ProcessFailed

POM = Path(__file__).parent / "pom.xml"
JAVA_VERSION = 17
"""the oldest Java that Kafka 4 runs on"""
MAVEN_SECONDS = 600.0


def find_java() -> str:
    """The path of a Java that can run Kafka; MissingProgram says what is wrong."""
    java = shutil.which("java")
    if java is None:
        raise MissingProgram(
            f"no broker can be started: 'java' is not on the PATH; expected Java {JAVA_VERSION} or newer; install it "
            "(Debian: openjdk-17-jdk-headless), or name a running broker in FRESHET_KAFKA"
        )
    text = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60).stderr
    found = re.search(r'version "(?:1\.)?(\d+)', text)
    if found is None or int(found[1]) < JAVA_VERSION:
        raise MissingProgram(
            f"no broker can be started: {java} is {' '.join(text.split()[:3]) or 'of unknown version'}; expected Java "
            f"{JAVA_VERSION} or newer; install one, or name a running broker in FRESHET_KAFKA"
        )
    return java


def cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "freshet"


def kafka_jars(cache: Path | None = None) -> Path:
    """The folder with every jar of the broker; the first call downloads them, which takes about a minute."""
    cache = cache or cache_folder()
    folder = cache / f"kafka-{hashlib.sha256(POM.read_bytes()).hexdigest()[:16]}"
    if folder.is_dir():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    lock = os.open(cache / "kafka.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another caller may be downloading: wait, then look again
        if not folder.is_dir():
            part = folder.with_suffix(".part")
            shutil.rmtree(part, ignore_errors=True)
            _download(part)
            part.replace(folder)
    finally:
        os.close(lock)
    return folder


def _download(folder: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise MissingProgram(
            "Kafka's jars cannot be fetched: 'mvn' is not on the PATH; expected Apache Maven 3.6 or newer; install it "
            "(Debian: maven), or name a running broker in FRESHET_KAFKA"
        )
    copy = ["dependency:copy-dependencies", f"-DoutputDirectory={folder}", "-DincludeScope=runtime"]
    done = subprocess.run(
        [maven, "-q", "-B", "-f", str(POM), *copy], capture_output=True, text=True, timeout=MAVEN_SECONDS
    )
    if done.returncode != 0 or not list(folder.glob("kafka-clients-*.jar")):
        output = "\n".join(f"  | {line}" for line in (done.stdout + done.stderr).strip().splitlines()[-8:])
        raise ProcessFailed(
            f"Kafka's jars cannot be fetched: Maven ended with status {done.returncode}; expected the jars of {POM} in "
            f"{folder}; check the network and Maven's settings; its output:\n{output or '  | (nothing)'}"
        )
