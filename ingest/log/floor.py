"""How far back runs may have to read a topic of the embedded log again: the floor under its retention.

    FOLDER/TOPIC/floor-RUN.json    positions by partition, of the oldest checkpoint that run RUN can go back to

A run writes its file when it has dropped old checkpoints, and removes it at its end. Before writers of the topic remove
segments, they read all of these files and keep what a run needs, up to a cap. Files are replaced as a whole; if one
cannot be read, it counts as needing everything.
"""

from collections.abc import Mapping
from pathlib import Path

import msgspec
import structlog

from infra.base.files import naming, writing_whole
from ingest.errors import LogError
from ingest.streams.position import Position

_decoder = msgspec.json.Decoder(dict[int, Position])


def write_floor(folder: Path, topic: str, run: str, positions: Mapping[int, Position]) -> None:
    """Makes writers of a topic keep everything after these positions, and partitions that are not named from 0 on.

    Raises FileUnusable if it cannot be written; the previous positions then stay in force.
    """
    with writing_whole(_path(folder / topic, run)) as temporary:
        temporary.write_bytes(msgspec.json.encode(dict(positions)))


def remove_floor(folder: Path, topic: str, run: str) -> None:
    """Removes the floor of a run that has ended and needs nothing any more."""
    with naming(folder, LogError):
        _path(folder / topic, run).unlink(missing_ok=True)


def lowest_needed(folder: Path, partition: int) -> int | None:
    """The first record of a partition that some run may read again; None: there is no floor. folder: of the topic."""
    floors = [_read(path, partition) for path in sorted(folder.glob("floor-*.json"))]
    return min((floor for floor in floors if floor is not None), default=None)


def _read(path: Path, partition: int) -> int | None:
    try:
        return _decoder.decode(path.read_bytes()).get(partition, Position(0)).offset
    except FileNotFoundError:  # the run has just ended
        return None
    except (OSError, msgspec.DecodeError) as error:
        hint = "a floor cannot be read, and nothing is removed up to the cap; remove the file if its run is over"
        structlog.get_logger().warning(hint, path=str(path), reason=str(error))
        return 0


def _path(folder: Path, run: str) -> Path:
    return folder / f"floor-{run}.json"
