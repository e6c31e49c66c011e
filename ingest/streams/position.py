"""Places in a stream: a position between two events, and the range between two positions."""

import msgspec


class Position(msgspec.Struct, frozen=True, order=True):
    """A place between two events of a partition: before event ``index`` of record ``offset``.

    The place after a record's last event is always written (offset + 1, 0), so equal places are equal positions.
    """

    offset: int
    index: int = 0


class Range(msgspec.Struct, frozen=True):
    """Events of one partition from start up to, not including, end."""

    partition: int
    start: Position
    end: Position
