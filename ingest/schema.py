"""What an event's fields mean: which become keys of which table, which become dense floats, and their limits.

A schema is a TOML file; criteo, avazu, movielens and synthetic are built in (ingest/schemas). The keys of a sample are
in the order of the tables, ``values`` of them for each table; a shorter list is padded with the table's absent key.
After them come the keys of the crosses, one each (ingest/crosses.py).
Dense floats are in the order of the dense fields; an absent one is 0.
"""

import re
import tomllib
from collections.abc import Collection
from functools import cached_property
from importlib import resources
from itertools import accumulate
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec
import xxhash

from infra.base.errors import ConfigError

FLOAT32_MAX = 3.4028234663852886e38
"""The largest float32; limits of dense fields must be within it, since a larger number would become infinite."""
CROSS_SIGN = "×"
"""Between the tables in the name of a cross."""
MOST_CROSSES = 100
MOST_LABELS = 16
LEAST_SHARE = 1e-4
"""Least share of negatives that may be kept."""
BUILT_IN = ("avazu", "criteo", "movielens", "synthetic")


class KeyTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One family of keys."""

    name: str
    source: str = ""
    """Field of the event; the table's name if not given."""
    values: int = 1
    """Most values that the field may hold; more than 1 makes it a list."""
    bucket: Literal["none", "log_square"] = "none"
    """log_square: the field is a number v and the raw value is floor(ln(v+1)^2), or v itself if negative."""
    required: bool = False
    """Whether an event without the field is rejected."""
    truncate: bool = False
    """Whether a list of more than ``values`` keeps its first ones, instead of its event being rejected."""
    pool: Literal["none", "sum", "mean", "attention"] = "none"
    """What the model uses of several values: each at its place in the list (none), or one vector, their sum or mean by
    the weights that an object gives them, as in {"news": 0.7, "sport": 0.3}; in a list each weighs 1. attention: a mean
    in which the model learns how much each value counts.
    """
    query: str = ""
    """With attention, the table of one value by which it depends how much each value counts, such as the item that is
    shown. Empty: the values alone decide.
    """
    rows_of: str = ""
    """Table whose rows the values use: value 7 has the row of value 7 there. Empty: rows of their own."""
    coerce: bool = False
    """For a table with a bucket: whether text that is a number counts as that number, and empty text as no value."""

    @property
    def field(self) -> str:
        return self.source or self.name

    @property
    def key_table(self) -> str:
        """The table with whose name values are hashed."""
        return self.rows_of or self.name


class ListPool(NamedTuple):
    """Several keys of a sample of which the model uses one vector."""

    first: int
    values: int
    attends: bool = False
    """Whether the model learns how much each counts."""
    query: int = -1
    """Place of the key by which that depends; -1: of none."""


class DenseField(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One dense float."""

    name: str
    source: str = ""
    """Field of the event; the dense field's name if not given."""
    transform: Literal["log1p", "signed_log1p", "identity"] = "log1p"
    """log1p: ln(1 + max(v, 0)); signed_log1p: the same for numbers below 0, with their sign; identity: v."""
    min: float = 0.0
    """An event with a smaller number is rejected."""
    max: float = 1e12
    """An event with a larger number is rejected."""
    required: bool = False
    """Whether an event without the field is rejected."""
    coerce: bool = False
    """Whether text that is a number counts as that number, and empty text as no value; otherwise
    any text is rejected.
    """

    @property
    def field(self) -> str:
        return self.source or self.name


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Sizes above which an event is rejected as oversized."""

    record_bytes: int = 1 << 20
    """Bytes of one record, JSON or packed."""
    string_bytes: int = 256
    """Bytes of one raw value's text in UTF-8."""


class FileColumns(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which columns of a file's rows are the label and the time; all others are fields.

    For CSV and Parquet files, and for lines of JSON that are not events but objects of plain values.
    """

    label: str = "label"
    """Column with 1 or true for a click, 0 or false for none."""
    time: str = ""
    """Column with the time of the event: a number, an ISO 8601 text or a timestamp; if empty, rows are a second apart.
    """
    time_unit: Literal["s", "ms", "us"] = "s"
    """Unit of times that are numbers, counted from 1970."""


class Schema(msgspec.Struct, frozen=True, forbid_unknown_fields=True, dict=True):
    """Tables, dense fields and limits of one kind of event."""

    name: str
    tables: tuple[KeyTable, ...]
    dense_fields: tuple[DenseField, ...] = ()
    partition_by: str | None = None
    """Events with equal values of this field keep their order; None spreads events evenly."""
    limits: Limits = Limits()
    labels: tuple[str, ...] = ()
    """Names of several labels of an event, the main one first: the model predicts each. Empty: one label."""
    weight: str = ""
    """Field of the event whose number weighs the sample in the loss and in metrics; a sample without it weighs 1.
    Empty: all weigh 1.
    """
    keep_negatives: float = 1.0
    """Share of the samples without a click that are trained; they weigh the more, so that predictions stay the same.
    1: all.
    """
    negatives_kept: float = 1.0
    """Share of the samples without a click that the events still contain, if somebody has left out the others before.
    """
    crosses: tuple[tuple[str, ...], ...] = ()
    """Pairs and triples of tables: each combination of their values has a key of its own, with a wide weight that the
    model uses.
    """
    file: FileColumns | None = None
    """How rows of a file become events; None: lines of JSON are events already."""

    @cached_property
    def fields(self) -> int:
        """F, keys per sample, with those of crosses."""
        return self.singles + len(self.crosses)

    @cached_property
    def singles(self) -> int:
        """E, keys per sample of single values, which come first; the model uses their embeddings, too."""
        return sum(table.values for table in self.tables)

    @cached_property
    def pools(self) -> tuple[ListPool, ...]:
        """The keys of each pooled table."""
        starts = accumulate((table.values for table in self.tables), initial=0)
        return tuple(
            ListPool(
                first=start,
                values=table.values,
                attends=table.pool == "attention",
                query=self.columns.index(table.query) if table.query else -1,
            )
            for start, table in zip(starts, self.tables, strict=False)
            if table.pool != "none"
        )

    @cached_property
    def has_attention(self) -> bool:
        """Whether the model learns how much each value of a list counts."""
        return any(pool.attends for pool in self.pools)

    @cached_property
    def shares(self) -> int:
        """P, keys of pooled tables, each of which has a share."""
        return sum(pool.values for pool in self.pools)

    @cached_property
    def vectors(self) -> int:
        """V, embeddings that the model uses: one for each key of single values, and one for each pooled table."""
        return self.singles - self.shares + len(self.pools)

    @cached_property
    def cross_names(self) -> tuple[str, ...]:
        """The name of each cross."""
        return tuple(CROSS_SIGN.join(cross) for cross in self.crosses)

    @cached_property
    def cross_places(self) -> tuple[tuple[int, ...], ...]:
        """Where the keys of each cross's tables are in a sample."""
        places = {name: place for place, name in enumerate(self.columns)}
        return tuple(tuple(places[name] for name in cross) for cross in self.crosses)

    @cached_property
    def dense(self) -> int:
        """N, dense floats per sample."""
        return len(self.dense_fields)

    @cached_property
    def sources(self) -> tuple[str, ...]:
        """The fields of an event that are used, each once."""
        return tuple(dict.fromkeys(use.field for use in self._uses))

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """The same with the field of weights."""
        return tuple(dict.fromkeys((*self.sources, self.weight))) if self.weight else self.sources

    @cached_property
    def required(self) -> tuple[str, ...]:
        """The fields that no event may lack."""
        return tuple(dict.fromkeys(use.field for use in self._uses if use.required))

    @property
    def more_labels(self) -> tuple[str, ...]:
        """The labels after the main one."""
        return self.labels[1:]

    @cached_property
    def negative_weight(self) -> float:
        """What a sample without a click weighs, so that it counts for those that are missing."""
        return 1 / (self.keep_negatives * self.negatives_kept)

    @cached_property
    def coerced(self) -> tuple[str, ...]:
        """The fields whose numbers may be given as text."""
        return tuple(dict.fromkeys(use.field for use in self._uses if use.coerce))

    @property
    def _uses(self) -> tuple[KeyTable | DenseField, ...]:
        return (*self.tables, *self.dense_fields)

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The table or cross of each of the F keys."""
        singles = tuple(table.name for table in self.tables for _ in range(table.values))
        return singles + self.cross_names

    @cached_property
    def key_tables(self) -> tuple[str, ...]:
        """The table or cross with whose name each of the F keys is hashed."""
        singles = tuple(table.key_table for table in self.tables for _ in range(table.values))
        return singles + self.cross_names

    @cached_property
    def fingerprint(self) -> str:
        """16 hex digits, equal if samples mean the same; rules of rejection do not count."""
        more: list[object] = [self.crosses] if self.crosses else []
        more += [[self.keep_negatives, self.negatives_kept]] if self.negative_weight != 1 else []
        if not more:
            return self.record_fingerprint
        return xxhash.xxh3_64_hexdigest(msgspec.json.encode([self.record_fingerprint, *more]))

    @cached_property
    def record_fingerprint(self) -> str:
        """The same without crosses and down-sampling, which packed records do not contain."""
        pools = [() if t.pool == "none" else (t.pool,) for t in self.tables]
        tables = [(t.key_table, t.field, t.values, t.bucket, *pool) for t, pool in zip(self.tables, pools, strict=True)]
        dense = [(d.name, d.field, d.transform) for d in self.dense_fields]
        more: list[object] = [self.weight] if self.weight else []
        more += [{"labels": self.more_labels}] if self.more_labels else []
        more += [{"queries": [t.query for t in self.tables]}] if any(t.query for t in self.tables) else []
        return xxhash.xxh3_64_hexdigest(msgspec.json.encode([1, tables, dense, *more]))


def without_crosses(schema: Schema) -> Schema:
    """The same with the keys of tables alone."""
    return msgspec.structs.replace(schema, crosses=())


def load_schema(name: str) -> Schema:
    """A built-in schema by name, or a TOML file by path."""
    if name in BUILT_IN:
        text = resources.files(__package__).joinpath("schemas", f"{name}.toml").read_text(encoding="utf-8")
        return parse_schema(text, name)
    try:
        text = Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise ConfigError(
            f"cannot read schema {name!r}: {error}; expected one of {', '.join(BUILT_IN)} or the path of a TOML file; "
            "correct stream.schema_name"
        ) from error
    return parse_schema(text, name)


def parse_schema(text: str, origin: str) -> Schema:
    """A schema from TOML text; origin names it in messages."""
    try:
        schema = msgspec.convert(tomllib.loads(text), Schema)
    except RecursionError as error:
        raise ConfigError(f"schema {origin!r} is nested too deeply; expected tables of values; correct it") from error
    except msgspec.ValidationError as error:
        raise ConfigError(
            f"schema {origin!r} is wrong: {error}; expected {_part_of(error)} as in ingest/schemas; correct the file"
        ) from error
    except ValueError as error:  # TOML's own, or an integer of thousands of digits
        raise ConfigError(f"schema {origin!r} is not TOML: {error}; expected TOML 1.0; correct the file") from error
    for fault, expected in _faults(schema):
        raise ConfigError(f"schema {origin!r} is wrong: {fault}; expected {expected}; correct the file")
    return schema


def _part_of(error: msgspec.ValidationError) -> str:
    """What is allowed where an error was found, by its path such as $.tables[1]."""
    parts = {"tables": KeyTable, "dense_fields": DenseField, "limits": Limits, "file": FileColumns}
    place = re.search(r"`\$\.(\w+)", str(error))
    part = parts.get(place[1]) if place else None
    names = ", ".join((part or Schema).__struct_fields__)
    return f"{names} in {place[1]}" if place and part else names


def _faults(schema: Schema) -> list[tuple[str, str]]:
    """What is wrong and what was expected, for everything that the types do not check."""
    faults: list[tuple[str, str]] = []
    if not schema.tables:
        faults.append(("it has no tables", "at least one [[tables]]"))
    for kind, names in (
        ("table", [t.name for t in schema.tables]),
        ("dense field", [d.name for d in schema.dense_fields]),
    ):
        faults += [(f"{kind} {n!r} is there twice", "each name once") for n in sorted(set(names)) if names.count(n) > 1]
        faults += [(f"a {kind} has an empty name", "a name") for n in names if not n]
    for table in schema.tables:
        if not 1 <= table.values <= 1000:
            faults.append((f"table {table.name!r} has values = {table.values}", "1 to 1000"))
        if table.bucket != "none" and table.values != 1:
            faults.append((f"table {table.name!r} has both a bucket and {table.values} values", "values = 1"))
        if table.truncate and table.values == 1:
            faults.append((f"table {table.name!r} has truncate and one value", "truncate of lists, values above 1"))
        if table.pool != "none" and table.values == 1:
            faults.append((f"table {table.name!r} has pool and one value", "pool of lists, values above 1"))
        if table.coerce and table.bucket == "none":
            faults.append((f"table {table.name!r} has coerce and no bucket", "coerce of numbers: ids are any values"))
    faults += _cross_faults(schema)
    faults += [fault for table in schema.tables for fault in _reference_faults(table, schema)]
    if len(set(schema.labels)) < len(schema.labels) or "" in schema.labels or len(schema.labels) > MOST_LABELS:
        faults.append((f"labels are {list(schema.labels)}", f"at most {MOST_LABELS} different names"))
    for dense in schema.dense_fields:
        if not -FLOAT32_MAX <= dense.min <= dense.max <= FLOAT32_MAX:
            faults.append(
                (
                    f"dense field {dense.name!r} has min {dense.min} and max {dense.max}",
                    f"finite min <= max, of a float32: {FLOAT32_MAX:g} at most in size",
                )
            )
    if schema.limits.record_bytes < 64 or schema.limits.string_bytes < 1:
        faults.append((f"limits are {schema.limits}", "record_bytes >= 64 and string_bytes >= 1"))
    pooled = {t.field for t in schema.tables if t.pool != "none"}
    for name in sorted({t.field for t in schema.tables if t.pool == "none"} & pooled):
        faults.append((f"field {name!r} has pool for one use and not for another", "one meaning a field"))
    single = {t.field for t in schema.tables if t.values == 1} | _numeric(schema)
    for name in sorted({t.field for t in schema.tables if t.values > 1} & single):
        faults.append((f"field {name!r} is a list for one use and a single value for another", "one meaning a field"))
    for name, share in (("keep_negatives", schema.keep_negatives), ("negatives_kept", schema.negatives_kept)):
        if not LEAST_SHARE <= share <= 1:
            faults.append((f"{name} is {share}", f"a share from {LEAST_SHARE:g} to 1"))
    if schema.weight and schema.weight in {t.field for t in schema.tables if t.bucket == "none"}:
        faults.append((f"field {schema.weight!r} is a weight and has keys of a table", "one meaning a field"))
    for name in sorted(_coerced(schema, True) & _coerced(schema, False)):
        faults.append((f"field {name!r} has coerce for one use and not for another", "one meaning a field"))
    return faults


def _reference_faults(table: KeyTable, schema: Schema) -> list[tuple[str, str]]:
    """What is wrong with the other tables that one names."""
    faults: list[tuple[str, str]] = []
    singles = {other.name for other in schema.tables if other.values == 1} - {table.name}
    if table.query and table.pool != "attention":
        faults.append((f"table {table.name!r} has a query and pool = {table.pool!r}", 'query with pool = "attention"'))
    if table.query and table.query not in singles:
        expected = f"a table of one value: {_list(singles)}"
        faults.append((f"table {table.name!r} has the query {table.query!r}", expected))
    owners = {other.name for other in schema.tables if other.bucket == "none" and not other.rows_of} - {table.name}
    if table.rows_of and table.rows_of not in owners:
        expected = f"a table with its own: {_list(owners)}"
        faults.append((f"table {table.name!r} uses the rows of {table.rows_of!r}", expected))
    if table.rows_of and table.bucket != "none":
        faults.append((f"table {table.name!r} has both a bucket and rows_of", "rows_of for ids, not for numbers"))
    return faults


def _list(names: Collection[str]) -> str:
    return ", ".join(sorted(names)) or "there is none"


def _cross_faults(schema: Schema) -> list[tuple[str, str]]:
    faults: list[tuple[str, str]] = []
    widths = {table.name: table.values for table in schema.tables}
    if len(schema.crosses) > MOST_CROSSES:
        faults.append((f"it has {len(schema.crosses)} crosses", f"at most {MOST_CROSSES}"))
    for place, (name, cross) in enumerate(zip(schema.cross_names, schema.crosses, strict=True)):
        if len(cross) not in (2, 3):
            faults.append((f"cross {name!r} has {len(cross)} tables", "two or three"))
        faults += [
            (f"cross {name!r} names the table {each!r}, which there is not", f"names of tables: {', '.join(widths)}")
            for each in cross
            if each not in widths
        ]
        faults += [
            (f"cross {name!r} has the table {each!r} of {widths[each]} values", "tables of one value")
            for each in cross
            if widths.get(each, 1) > 1
        ]
        if len(set(cross)) < len(cross):
            faults.append((f"cross {name!r} has a table twice", "different tables"))
        if {*cross} in [{*before} for before in schema.crosses[:place]]:
            faults.append((f"cross {name!r} is there twice", "each combination of tables once, in any order"))
        if name in widths:
            faults.append((f"a table is called {name!r}, as a cross is", "other names of tables"))
    return faults


def _coerced(schema: Schema, value: bool) -> set[str]:
    """Fields for which a use sets coerce to this value."""
    return {use.field for use in schema._uses if use.coerce is value}


def _numeric(schema: Schema) -> set[str]:
    return {d.field for d in schema.dense_fields} | {t.field for t in schema.tables if t.bucket != "none"}
