"""Numbers, sizes and durations as people read them, and lines of bars."""

from collections.abc import Sequence
from itertools import pairwise

BARS = "▁▂▃▄▅▆▇█"


def count(amount: int, noun: str) -> str:
    """1 step, 2,345 steps."""
    return f"{amount:,} {noun}" if amount == 1 else f"{amount:,} {noun}s"


def number(value: float) -> str:
    """1,234 up to 9,999, then 12.3k, 4.56M, 7.89G: at most five characters."""
    if abs(value) < 9_999.5:
        return f"{value:,.0f}"
    return _scaled(value, "kMGT")


def size(value: float) -> str:
    """Bytes in decimal units: 812 B, 12.3 kB, 4.56 MB."""
    if abs(value) < 999.5:
        return f"{value:.0f} B"
    return f"{_scaled(value, 'kMGT', space=' ')}B"


def _scaled(value: float, units: str, space: str = "") -> str:
    for unit in units:
        value /= 1000
        if abs(value) < 999.5 or unit == units[-1]:
            break
    digits = 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0
    return f"{value:.{digits}f}{space}{unit}"


def ratio(value: float | None, digits: int = 4) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f}%"


def duration(seconds: float) -> str:
    """12.3 s, 4 min 05 s, 3 h 07 min, 731 days."""
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours < 48 else f"{hours // 24} days"


def sparkline(values: Sequence[float], width: int) -> str:
    """The values as one line of bars, lowest to highest; more values than columns are averaged."""
    if not values or width <= 0:
        return ""
    columns = min(width, len(values))
    edges = [round(i * len(values) / columns) for i in range(columns + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    low = min(means)
    high = max(means)
    span = (high - low) or 1.0
    return "".join(BARS[min(len(BARS) - 1, int((mean - low) / span * len(BARS)))] for mean in means)
