"""Apache Kafka's jars: resolved once by Maven from ``infra/kafka/pom.xml``, kept in the user's cache folder.

Tests fetch those of another program in the same way.

    ~/.cache/freshet/kafka-HASH               (or below XDG_CACHE_HOME)
    ~/.cache/freshet/kafka-HASH-JAVA.classes

A finished download is a folder named by a hash of the pom. It appears whole (lock, then rename), so that any number of
callers may ask at once, and an interrupted download leaves nothing that looks finished.

The file holds the broker's classes as a Java has loaded them, which spares the next broker nearly half of its start. A
broker writes it at its end, if there is none.
"""

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
from pathlib import Path

from infra.base.errors import MissingProgram, ProcessFailed

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
    return fetch_jars(POM, "Kafka", cache or cache_folder(), instead=", or name a running broker in FRESHET_KAFKA")


def class_archive(java: str, jars: Path) -> Path:
    """The file for the classes in some jars as this Java has loaded them; it may be missing."""
    program = Path(java).resolve()
    stamp = hashlib.sha256(f"{program} {program.stat().st_mtime_ns}".encode()).hexdigest()[:16]
    return jars.with_name(f"{jars.name}-{stamp}.classes")


def keep_classes(written: Path, archive: Path) -> None:
    """Puts an archive that a Java has written into its place, whole, unless that fails; removes what was written."""
    part = archive.with_name(f"{archive.name}.{os.getpid()}.part")
    try:
        shutil.copyfile(written, part)
        part.replace(archive)
    except OSError:  # the next broker tries again
        part.unlink(missing_ok=True)
    written.unlink(missing_ok=True)


def fetch_jars(pom: Path, program: str, cache: Path, *, instead: str = "") -> Path:
    """The folder with the jars of a pom. An error says what else can be done instead, if anything."""
    name = program.lower()
    folder = cache / f"{name}-{hashlib.sha256(pom.read_bytes()).hexdigest()[:16]}"
    if folder.is_dir():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    lock = os.open(cache / f"{name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another caller may be downloading: wait, then look again
        if not folder.is_dir():
            part = folder.with_suffix(".part")
            shutil.rmtree(part, ignore_errors=True)
            _download(pom, program, part, instead)
            part.replace(folder)
    finally:
        os.close(lock)
    return folder


def _download(pom: Path, program: str, folder: Path, instead: str) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise MissingProgram(
            f"{program}'s jars cannot be fetched: 'mvn' is not on the PATH; expected Apache Maven 3.6 or newer; "
            f"install it (Debian: maven){instead}"
        )
    copy = ["dependency:copy-dependencies", f"-DoutputDirectory={folder}", "-DincludeScope=runtime"]
    done = subprocess.run(
        [maven, "-q", "-B", "-f", str(pom), *copy], capture_output=True, text=True, timeout=MAVEN_SECONDS
    )
    if done.returncode != 0 or not list(folder.glob("*.jar")):
        output = "\n".join(f"  | {line}" for line in (done.stdout + done.stderr).strip().splitlines()[-8:])
        raise ProcessFailed(
            f"{program}'s jars cannot be fetched: Maven ended with status {done.returncode}; expected the jars of "
            f"{pom} in {folder}; check the network and Maven's settings; its output:\n{output or '  | (nothing)'}"
        )
