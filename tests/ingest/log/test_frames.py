"""What tells an append that was cut short from damage."""

from pathlib import Path

import pytest

from ingest.errors import LogCorrupt
from ingest.log.frames import HEAD, frame, read_frames
from tests.disks import flip_each_bit

OPENING = b"OPENING!"
CONTENT = [b"one", b"\0" * 9, b"three" * 9]
WHOLE = OPENING + b"".join(map(frame, CONTENT))
LAST = len(WHOLE) - len(frame(CONTENT[-1]))


def read(path: Path, content: bytes) -> list[bytes]:
    path.write_bytes(content)
    return read_frames(path, OPENING)[0]


def test_whole_frames_are_read(tmp_path: Path) -> None:
    assert read(tmp_path / "f", WHOLE) == CONTENT


def test_no_flip_of_a_bit_makes_a_file_shorter(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(WHOLE)
    for _ in flip_each_bit(tmp_path / "f"):
        with pytest.raises(LogCorrupt, match=str(tmp_path / "f")):
            read_frames(tmp_path / "f", OPENING)


@pytest.mark.parametrize("zeros", [0, 1, HEAD.size, 5000])
def test_an_append_cut_short_at_any_byte_is_a_torn_tail_also_if_zeros_follow(tmp_path: Path, zeros: int) -> None:
    for cut in range(len(WHOLE)):
        found = read(tmp_path / "f", WHOLE[:cut] + b"\0" * zeros)
        assert found == CONTENT[: len(found)]
        assert len(found) == 2 or cut < LAST


@pytest.mark.parametrize(
    ("tail", "why"),
    [
        (frame(b"four")[:-1] + b"\xfe", "complete, with another end"),
        (b"\1" + frame(b"four")[1:], "another length"),
        (frame(b"four")[:4] + b"\1", "the part of a header that is there contradicts itself"),
        (b"\0" * 12 + frame(b"four")[12:], "the beginning was not written, the end was"),
        (b"garbage of some length", "no frame at all"),
    ],
)
def test_a_last_frame_that_no_cut_explains_is_damage(tmp_path: Path, tail: bytes, why: str) -> None:
    with pytest.raises(LogCorrupt, match=f"is damaged at byte {len(WHOLE)} of {len(WHOLE + tail)}"):
        read(tmp_path / "f", WHOLE + tail)


def test_zeros_with_a_frame_behind_them_are_damage(tmp_path: Path) -> None:
    with pytest.raises(LogCorrupt, match=f"is damaged at byte {len(WHOLE)}"):
        read(tmp_path / "f", WHOLE + b"\0" * 64 + frame(b"four"))


def test_a_file_that_opens_otherwise_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LogCorrupt, match="another version of Freshet wrote it"):
        read(tmp_path / "f", b"\x03\0\0\0\x17\x42\x17\x42one")
