"""Real files and pipes behind standard output, each failing in its own way."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SAY = """
import sys
from infra.base.output import keep_output_harmless
keep_output_harmless()
for turn in range(3):
    print("● 0.7 – ▁█ · é €")
    sys.stderr.write("x" * 100_000 + "\\n")
with open(sys.argv[1], "w") as story:
    story.write("went on")
"""


def said(folder: Path, stdout: int, **env: str) -> subprocess.CompletedProcess[bytes]:
    """Runs a process that writes a lot; proves that it got to its end."""
    command = [sys.executable, "-c", SAY, str(folder / "story")]
    stderr = subprocess.PIPE if stdout == subprocess.PIPE else stdout
    environment = {**os.environ, "PYTHONPATH": str(Path.cwd()), **env}
    ended = subprocess.run(command, stdout=stdout, stderr=stderr, env=environment, timeout=100)
    assert (ended.returncode, (folder / "story").read_text()) == (0, "went on")
    return ended


@pytest.mark.parametrize(
    ("encoding", "line"),
    [
        ("ascii", b"* 0.7 - .@ | ? ?\n"),
        ("latin-1", b"* 0.7 - .@ \xb7 \xe9 ?\n"),
        ("utf-8", "● 0.7 – ▁█ · é €\n".encode()),
    ],
)
def test_characters_that_the_encoding_lacks_become_simpler_ones(tmp_path: Path, encoding: str, line: bytes) -> None:
    assert said(tmp_path, subprocess.PIPE, PYTHONIOENCODING=encoding).stdout == 3 * line


def test_a_pipe_without_a_reader_loses_what_is_written(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    said(tmp_path, writer)
    os.close(writer)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk_loses_what_is_written(tmp_path: Path) -> None:
    with Path("/dev/full").open("wb") as full:
        said(tmp_path, full.fileno())


def test_a_closed_terminal_loses_what_is_written(tmp_path: Path) -> None:
    master, terminal = os.openpty()
    os.close(master)
    with pytest.raises(OSError, match="Input/output error"):
        os.write(terminal, b"?")
    said(tmp_path, terminal)
    os.close(terminal)


def test_streams_that_were_closed_before_the_start_show_nothing(tmp_path: Path) -> None:
    command = f'exec "{sys.executable}" -c "$0" "{tmp_path / "story"}" >&- 2>&-'
    environment = {**os.environ, "PYTHONPATH": str(Path.cwd())}
    assert subprocess.run(["/bin/sh", "-c", command, SAY], env=environment, timeout=100).returncode == 0
    assert (tmp_path / "story").read_text() == "went on"
