"""The two ends of a topic's partitions, for examining a few records of many."""

from collections.abc import Mapping


def both_ends(spans: Mapping[int, tuple[int, int]], records: int) -> list[tuple[int, int, int]]:
    """(partition, first, end) of about that many records in all, the newest and the oldest of each, no record twice."""
    each = max(1, records // (2 * max(1, len(spans))))
    ranges = []
    for partition, (first, end) in sorted(spans.items()):
        newest = max(first, end - each)
        ranges.append((partition, newest, end))
        if first < newest:
            ranges.append((partition, first, min(newest, first + each)))
    return [(partition, first, end) for partition, first, end in ranges if first < end]
