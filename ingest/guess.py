"""Guesses a schema from the events of a file: for ``freshet init``, and for ``freshet train`` without a schema.

Every guess has its reason, which is written into the schema as a comment: a person should read it once. Fields from
which nothing can be learnt are left out: those with one value, and texts that are different in almost every event.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import msgspec

from infra.base.errors import ConfigError
from ingest.codec.unknown import all_fields, show_text
from ingest.crosses import Suggestions
from ingest.errors import InputError
from ingest.producing.readers import read_jsonl
from ingest.producing.tables import (
    Row,
    columns_of,
    event_of,
    is_table,
    no_column,
    plain_object,
    read_rows,
    time_of,
)
from ingest.schema import CROSS_SIGN, FileColumns, Limits, parse_schema
from ingest.survey import Column, FieldFindings, Survey

LABEL_NAMES = ("label", "click", "clicked", "is_click", "is_clicked", "target", "converted", "conversion", "y")
TIME_NAMES = ("event_time", "timestamp", "time", "ts", "datetime", "event_ts", "created_at", "date")
OWNER_NAMES = ("user", "device", "visitor", "member", "customer", "account", "session", "cookie", "client")
"""Parts of names that say who an event is about; events of one of them should keep their order."""
ID_NAME = re.compile(
    r"(id|ids|key|code|hash|uuid|zip|slot|position|hour|weekday|day|month|user|item|device|site|app|ad|campaign|"
    r"advertiser|publisher|product|category|brand|movie|session|query|page|city|country|region)$",
    re.IGNORECASE,
)
"""Ends of names whose whole numbers are ids and not amounts."""
BAD_NAME = re.compile(r'["\\\x00-\x1f]')
"""Characters that no field of a schema can have in its name."""
FEW_VALUES = 30
"""Whole numbers with at most this many different values are categories, not amounts."""
UNIQUE_SHARE = 0.95
"""Share of different values above which a text says nothing about later events."""
UNIQUE_EVENTS = 200
"""Least events of which that can be said."""
MOST_VALUES = 32
"""Most values of a list that are kept."""
WIDE_RANGE = 10.0
"""A number that goes higher, or as far below 0, is used as its logarithm, and as a key of its bucket."""
LARGEST_NUMBER = 1e15
"""Larger numbers are ids: no amount has that many digits."""
CROSSED_EVENTS = 1000
"""Least events in which crosses are searched for: in fewer, chance finds some."""
LARGEST_SECONDS = {"s": 1e11, "ms": 1e14}
"""Times above are in a smaller unit: 1e11 seconds are in the year 5138."""

Use = Literal["key", "list", "number", "left out"]


@dataclass
class SeenField:
    """What a schema depends on, of the values of one field; the rest is what ``freshet check`` finds."""

    column: Column = field(default_factory=Column)
    longest_list: int = 0
    text_bytes: int = 0
    texts: int = 0
    numeric_texts: int = 0
    lowest: float = math.inf
    highest: float = -math.inf
    is_whole: bool = True
    has_objects: bool = False

    def add(self, value: Any) -> None:
        if value == []:
            self.longest_list = max(self.longest_list, 1)  # only a field of lists may hold an empty one
        if value is None or value == []:
            return
        self.column.add(value)
        members = value if isinstance(value, list) else [value]
        self.longest_list = max(self.longest_list, len(members) if isinstance(value, list) else 0)
        for member in members:
            self._add_member(member)

    def _add_member(self, member: Any) -> None:
        if isinstance(member, str):
            self.texts += 1
            self.text_bytes = max(self.text_bytes, len(member.encode(errors="replace")))
            number = _number(member)
            self.numeric_texts += number is not None
        elif isinstance(member, bool):
            return
        elif isinstance(member, int | float):
            number = float(member) if abs(member) < 1e300 else None
        else:
            self.has_objects = True
            return
        if number is not None:
            self.lowest = min(self.lowest, number)
            self.highest = max(self.highest, number)
            self.is_whole = self.is_whole and number.is_integer()

    @property
    def is_number(self) -> bool:
        """Whether every value is a number, or a text that is one."""
        others = {"boolean", "list", "object"} & set(self.column.kinds)
        return not others and self.numeric_texts == self.texts and self.lowest <= self.highest


@dataclass(frozen=True)
class FieldGuess:
    """How one field should be used, and why."""

    found: FieldFindings
    use: Use
    why: str
    values: int = 1
    lowest: float = 0.0
    highest: float = 0.0
    is_text: bool = False
    """Whether its numbers are texts."""

    @property
    def name(self) -> str:
        return self.found.name

    @property
    def is_always_there(self) -> bool:
        return self.found.share == 1.0

    @property
    def is_wide(self) -> bool:
        return self.use == "number" and max(-self.lowest, self.highest) > WIDE_RANGE

    @property
    def has_buckets(self) -> bool:
        """Whether it is a key of its size, too; below 0 every whole number is a bucket of its own."""
        return self.is_wide and self.lowest >= -WIDE_RANGE

    @property
    def transform(self) -> str:
        if not self.is_wide:
            return "identity"
        return "log1p" if self.lowest >= 0 else "signed_log1p"


@dataclass(frozen=True)
class SchemaGuess:
    """A schema with reasons."""

    name: str
    fields: tuple[FieldGuess, ...]
    partition_by: str | None
    columns: FileColumns | None
    limits: Limits
    events: int
    """Events that were examined."""
    broken: int
    """Lines among them that are not events."""
    first_broken: str
    clicks: int
    """Events with label 1."""
    labels: int
    """Events with label 0 or 1."""
    unlabelled: int
    crosses: Suggestions | None = None
    """None: they were not searched for."""

    def is_required(self, guess: FieldGuess) -> bool:
        """Whether events without this field are rejected: an event about nobody is broken; others are trained without
        a value.
        """
        return guess.name == self.partition_by and guess.is_always_there

    @property
    def toml(self) -> str:
        return "\n".join(_lines_of(self)) + "\n"


def guess_schema(
    path: Path, label: str | None, time: str | None, limit: int, suggests_crosses: bool = False
) -> SchemaGuess:
    """Examines up to limit events of a file; raises ConfigError or InputError if no schema can be guessed from them.

    label, time: columns of a table, or of lines that are plain objects; None: guessed by their names, the time also as
    the only column of dates that never go back.
    suggests_crosses: whether crosses are searched for in the events, too.
    """
    if not path.is_file():
        raise ConfigError(f"no file at {path}; expected JSON lines, CSV or Parquet; correct the path")
    rows = list(islice(_rows(path), limit))
    if not rows:
        raise InputError(f"{path} holds no events; expected at least one line or row; give another file")
    columns = _columns(path, rows, label, time)
    events = [_event(row, at, columns) for at, row in enumerate(rows)]
    guess = _guess(path, events, columns)
    schema = parse_schema(guess.toml, f"guessed from {path}")  # a schema that is written can be read
    if not suggests_crosses or len(events) < CROSSED_EVENTS:
        return guess
    from ingest.cross_search import suggest_crosses  # loads numba

    survey = Survey(schema, keeps_samples=True)
    survey.add(events)
    return replace(guess, crosses=suggest_crosses(survey.samples, schema))


def _rows(path: Path) -> Iterator[Row | bytes]:
    """Rows of a table; lines unchanged."""
    return read_rows(path) if is_table(path) else (line for line in read_jsonl(path) if line is not None)


def _event(row: Row | bytes, number: int, columns: FileColumns | None) -> bytes:
    plain = plain_object(row) if isinstance(row, bytes) and columns is not None else row
    if columns is None or plain is None or isinstance(plain, bytes):
        assert isinstance(row, bytes), "a table has columns"
        return row
    return event_of(plain, number, columns)


# ── columns ───────────────────────────────────────────────────────────────────────────────────────────────────────────
def _columns(path: Path, rows: list[Row | bytes], label: str | None, time: str | None) -> FileColumns | None:
    """Which columns are label and time; None if the lines are events already."""
    objects = (plain_object(row) if isinstance(row, bytes) else row for row in rows)
    plain = [row for row in objects if row is not None]
    if not is_table(path) and 2 * len(plain) <= len(rows):  # a few broken events do not make a table
        if label or time:
            given = "--label" if label else "--time"
            raise ConfigError(
                f"{given} is given, and {path} holds events, not rows with columns; expected it for CSV, Parquet and "
                f"plain objects; leave out {given}"
            )
        return None
    there = columns_of(path) if is_table(path) else list(dict.fromkeys(name for row in plain for name in row))
    for column, option in ((label, "--label"), (time, "--time")):
        if column is not None and column not in there:
            raise no_column(path, column, there, option)
    chosen = label or _named(there, LABEL_NAMES)
    if chosen is None:
        raise ConfigError(
            f"no column of {path} is called {', '.join(LABEL_NAMES[:-1])} or {LABEL_NAMES[-1]}; there are "
            f"{', '.join(there)}; expected one with 1 for a click and 0 for none; name it with --label"
        )
    timed = time or _named(there, TIME_NAMES) or _dated(there, plain) or ""
    return FileColumns(chosen, timed, _unit_of(path, plain, timed) if timed else "s")


def _named(there: list[str], names: tuple[str, ...]) -> str | None:
    by_letters = {name.lower(): name for name in reversed(there)}
    return next((by_letters[name] for name in names if name in by_letters), None)


def _dated(there: list[str], rows: list[Row]) -> str | None:
    """The only column in which every row has a date or a time, none earlier than that of the row before."""
    found = [name for name in there if _never_goes_back([_date_of(row.get(name)) for row in rows])]
    return found[0] if len(found) == 1 else None


def _never_goes_back(times: list[float | None]) -> bool:
    dated = [time for time in times if time is not None]
    return len(dated) == len(times) and dated == sorted(dated) and dated[0] < dated[-1]


def _date_of(value: Any) -> float | None:
    """Seconds since 1970 of a timestamp or of ISO 8601 with signs between its parts; None for all else."""
    if isinstance(value, str) and not value.strip().isdigit():
        try:
            value = datetime.fromisoformat(value.strip())
        except ValueError:
            return None
    return float(time_of(value, "s")) if isinstance(value, date) else None


def _unit_of(path: Path, rows: list[Row], time: str) -> Literal["s", "ms", "us"]:
    """The unit in which the times are numbers; raises ConfigError if a column holds no times."""
    times = [time_of(row.get(time), "s") for row in rows]
    texts = [each for each in times if isinstance(each, str)]
    if texts or not any(isinstance(each, float) for each in times):
        found = show_text(texts[0]) if texts else "no value"
        raise ConfigError(
            f"column {time!r} of {path} holds {found!r}; expected seconds since 1970, ISO 8601 or timestamps; name "
            "another column with --time"
        )
    largest = max(each for each in times if isinstance(each, float))
    return "s" if largest < LARGEST_SECONDS["s"] else "ms" if largest < LARGEST_SECONDS["ms"] else "us"


# ── fields ────────────────────────────────────────────────────────────────────────────────────────────────────────────
class _Head(msgspec.Struct):
    label: Any = None
    event_time: Any = None


_head = msgspec.json.Decoder(_Head)


def _guess(path: Path, events: list[bytes], columns: FileColumns | None) -> SchemaGuess:
    seen: dict[str, SeenField] = {}
    labels: list[Any] = []
    good = 0
    first_broken = ""
    for event in events:
        fields = all_fields(event)
        if fields is None:
            first_broken = first_broken or show_text(event.decode(errors="replace"))
            continue
        good += 1
        labels.append(_head.decode(event).label)
        for name, value in fields.items():
            seen.setdefault(name, SeenField()).add(value)
    if not good:
        raise InputError(
            f"none of {len(events):,} lines of {path} is an event; the first is {first_broken!r}; expected JSON "
            "objects in lines, or a CSV or Parquet file with that suffix; give another file"
        )
    clicks, known = _clicks(path, labels, columns)
    guesses = tuple(guess_field(name, each, good) for name, each in seen.items() if each.column.present)
    if not any(guess.use != "left out" for guess in guesses):
        left = "; ".join(f"{guess.name}: {guess.why}" for guess in guesses) or "no event has a field"
        raise InputError(f"{path} has no field to learn from ({left}); expected some; give another file")
    return SchemaGuess(
        name=re.sub(r"\W+", "-", path.name.split(".")[0]).strip("-") or "events",
        fields=_with_a_key(guesses),
        partition_by=_owner(guesses, good),
        columns=columns,
        limits=_limits(seen, max(map(len, events))),
        events=len(events),
        broken=len(events) - good,
        first_broken=first_broken,
        clicks=clicks,
        labels=known,
        unlabelled=good - known,
    )


def _clicks(path: Path, labels: list[Any], columns: FileColumns | None) -> tuple[int, int]:
    """Events with label 1, and those with any label; raises InputError for labels from which nothing can be learnt."""
    where = "label" if columns is None else columns.label
    option = "" if columns is None else ", or name another column with --label"
    known = [each for each in labels if each in (0, 1)]
    if not known:
        other = next((show_text(str(each)) for each in labels if each is not None), None)
        found = "no event has one" if other is None else f"there is {other!r}"
        raise InputError(
            f"no event of {path} has {where!r} 0 or 1: {found}; expected 1 for a click, 0 for none{option}"
        )
    clicks = sum(map(int, known))
    if clicks in (0, len(known)):
        raise InputError(
            f"{where!r} is {int(known[0])} in all {len(known):,} events of {path} that were examined; expected clicks "
            f"and non-clicks; examine more with --limit, mix the file's lines{option}"
        )
    return clicks, len(known)


def guess_field(name: str, seen: SeenField, events: int) -> FieldGuess:
    """How a field should be used."""
    found = seen.column.findings(name, events)
    if not name or BAD_NAME.search(name):
        return FieldGuess(found, "left out", "has no name, or one with a quote, a backslash or a control character")
    if seen.has_objects:
        return FieldGuess(found, "left out", "holds objects; write their values as fields of their own")
    if found.distinct <= 1 and found.share == 1.0:
        return FieldGuess(found, "left out", f"has the same value in every event: {', '.join(found.examples)}")
    if seen.longest_list:
        kept = min(max(seen.longest_list, 2), MOST_VALUES)
        more = f", of which the first {kept} are kept" if seen.longest_list > kept else ""
        return FieldGuess(found, "list", f"lists of up to {seen.longest_list} values{more}", values=kept)
    if seen.is_number and not _is_category(name, seen, found):
        kind = "whole numbers" if seen.is_whole else "numbers"
        why = f"{kind} from {seen.lowest:g} to {seen.highest:g}{', as text' if seen.texts else ''}"
        return FieldGuess(found, "number", why, 1, seen.lowest, seen.highest, bool(seen.texts))
    if found.distinct > UNIQUE_SHARE * seen.column.present and seen.column.present >= UNIQUE_EVENTS:
        return FieldGuess(found, "left out", "is different in almost every event; nothing recurs")
    return FieldGuess(found, "key", f"{found.distinct:,} different values, for example {', '.join(found.examples)}")


def _is_category(name: str, seen: SeenField, found: FieldFindings) -> bool:
    is_huge = max(abs(seen.lowest), abs(seen.highest)) > LARGEST_NUMBER
    return is_huge or (seen.is_whole and (found.distinct <= FEW_VALUES or ID_NAME.search(name) is not None))


def _with_a_key(guesses: tuple[FieldGuess, ...]) -> tuple[FieldGuess, ...]:
    """The guesses; one field at least must be a key, so numbers alone get one as a key, too."""
    has_key = any(guess.use in ("key", "list") or guess.has_buckets for guess in guesses)
    if has_key:
        return guesses
    first = next(guess for guess in guesses if guess.use == "number")
    key = FieldGuess(first.found, "key", f"{first.why}; a key, since a schema needs one")
    return tuple(key if guess is first else guess for guess in guesses)


def _owner(guesses: tuple[FieldGuess, ...], events: int) -> str | None:
    """The field by which events should keep their order: whom they are about."""
    keys = [guess for guess in guesses if guess.use == "key" and guess.found.share > 0.99]
    named = [g for g in keys if any(part in g.name.lower() for part in OWNER_NAMES)]
    return max(named, key=lambda guess: guess.found.distinct).name if named else None


def _limits(seen: dict[str, SeenField], longest_record: int) -> Limits:
    """The usual limits, or twice what was found if that is more."""
    usual = Limits()
    longest_text = max((each.text_bytes for each in seen.values()), default=0)
    return Limits(
        record_bytes=max(usual.record_bytes, _power_of_two(2 * longest_record)),
        string_bytes=max(usual.string_bytes, _power_of_two(2 * longest_text) if longest_text > 128 else 0),
    )


def _power_of_two(least: int) -> int:
    return 1 << max(least - 1, 1).bit_length()


def _number(text: str) -> float | None:
    """The number that a text is, as ``coerce`` reads it; None for text that is none."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) and "_" not in text else None


# ── the file ──────────────────────────────────────────────────────────────────────────────────────────────────────────
def _lines_of(guess: SchemaGuess) -> Iterator[str]:
    rate = guess.clicks / guess.labels
    yield f"# Guessed by 'freshet init' from {guess.events:,} events, of which {rate:.2%} are clicks. Read it once."
    yield "# docs/schemas.md explains every option; 'freshet check FILE --schema THIS' compares it with events."
    yield f"name = {_text(guess.name)}"
    if guess.partition_by is not None:
        yield f"partition_by = {_text(guess.partition_by)}  # its events keep their order"
    if guess.crosses is not None:
        yield from _cross_lines(guess.crosses)
    if guess.columns is not None:
        yield from _file_lines(guess.columns)
    for each in guess.fields:
        yield ""
        yield from _field_lines(each, {other.name for other in guess.fields}, guess.is_required(each))
    yield ""
    yield "# Sizes above which an event is rejected."
    yield "[limits]"
    yield f"record_bytes = {guess.limits.record_bytes}"
    yield f"string_bytes = {guess.limits.string_bytes}"


def _cross_lines(found: Suggestions) -> Iterator[str]:
    """The crosses that pay; if none does, a comment."""
    yield ""
    if not found.crosses:
        yield "# No combination of two tables predicts later events better by more than chance would:"
        yield f"# {found.line}"
        return
    yield f"# Combinations of values that have a key of their own; measured on the last {found.later:,} events."
    for cross in found.crosses:
        names = _comment(CROSS_SIGN.join(cross.tables))
        yield f"# {names}: logloss lower by {cross.gain:.5f}, {cross.keys:,} keys"
    yield found.line


def _file_lines(columns: FileColumns) -> Iterator[str]:
    yield ""
    yield "# Columns of the file that are not fields."
    yield "[file]"
    yield f"label = {_text(columns.label)}"
    if columns.time:
        yield f"time = {_text(columns.time)}"
        yield f"time_unit = {_text(columns.time_unit)}  # if times are numbers"
    else:
        yield '# No time was found, so rows count as a second apart; name the column as: time = "…"'


def _field_lines(guess: FieldGuess, names: set[str], is_required: bool) -> Iterator[str]:
    present = "" if guess.found.share == 1.0 else f"; {guess.found.share:.1%} of the events have it"
    yield f"# {_comment(guess.name)}: {_comment(guess.why)}{present}"
    if guess.use == "left out":
        yield "# It is left out."
    elif guess.use == "number":
        yield from _number_lines(guess, names)
    else:
        yield "[[tables]]"
        yield f"name = {_text(guess.name)}"
        if guess.use == "list":
            yield f"values = {guess.values}"
            yield "truncate = true  # a longer list keeps its first values; without, its event is rejected"
        yield from _required(guess, is_required)


def _number_lines(guess: FieldGuess, names: set[str]) -> Iterator[str]:
    yield "[[dense_fields]]"
    yield f"name = {_text(guess.name)}"
    yield f'transform = "{guess.transform}"'
    yield f"min = {_round(guess.lowest, down=True)}  # an event with a smaller number is rejected"
    yield f"max = {_round(guess.highest, down=False)}"
    yield from _coerced(guess)
    yield from _required(guess, is_required=False)
    if guess.has_buckets:
        bucket = f"{guess.name}_bucket"
        while bucket in names:
            bucket += "_"
        yield ""
        yield f"# {_comment(guess.name)} again, as a key of its size: floor(ln(v+1)^2)"
        yield "[[tables]]"
        yield f"name = {_text(bucket)}"
        yield f"source = {_text(guess.name)}"
        yield 'bucket = "log_square"'
        yield from _coerced(guess)


def _coerced(guess: FieldGuess) -> Iterator[str]:
    if guess.is_text:
        yield 'coerce = true  # "12.5" is 12.5, and "" is no value'


def _required(guess: FieldGuess, is_required: bool) -> Iterator[str]:
    if is_required:
        yield "required = true  # every event has it; one without is rejected"
    elif guess.is_always_there:
        yield "# required = true  # every event has it; remove the first # to reject one without"


def _round(bound: float, down: bool) -> str:
    """A round limit with room for ten times the number that was found; not below 0 for numbers that never are."""
    if down and bound >= 0:
        return "0.0"
    room = 10.0 ** math.ceil(math.log10(max(10 * abs(bound), 1.0)))
    return f"{-room if down else room:.1f}" if room < 1e15 else f"{-room if down else room:e}"


def _text(text: str) -> str:
    """A text of TOML, which JSON's are, but for one character."""
    return msgspec.json.encode(text).decode().replace("\x7f", "\\u007f")


def _comment(text: str) -> str:
    return text if text.isprintable() else ascii(text)[1:-1]
