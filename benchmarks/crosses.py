"""Suggested crosses against those of a built-in schema and against none: found on the first half, judged on the second.

Each choice is a real run, one pass over the whole file. The search sees the events of the first half alone.
"""

from pathlib import Path

import msgspec

from benchmarks.clicks import read_samples
from benchmarks.quality import run_quality
from dispatch.progress.quality import Quality
from infra.base.process import Stop
from infra.run.display import Display
from ingest.cross_search import suggest_crosses
from ingest.crosses import Suggestions
from ingest.samples import join_samples
from ingest.schema import Schema, load_schema


class CrossesResult(msgspec.Struct, frozen=True, kw_only=True):
    """One pass over the file with one choice of crosses."""

    choice: str
    """none, built-in or suggested."""
    crosses: int
    samples: int
    keys: int
    """Keys with rows at the end."""
    seconds: float
    overall: Quality
    second_half: Quality


def run_crosses(
    folder: Path, file: Path, dataset: str, workers: int, stop: Stop, display: Display
) -> tuple[Suggestions, list[CrossesResult]]:
    """Searches the first half for crosses, then trains with none, with the schema's and with those found."""
    schema = load_schema(dataset)
    suggested = suggest_first_half(file, dataset, schema)
    (folder / "suggested.toml").write_text(_toml(schema, suggested), encoding="utf-8")
    choices = {
        "none": (0, ["stream.crosses=false"]),
        "built-in": (len(schema.crosses), []),
        "suggested": (len(suggested.crosses), [f"stream.schema_name={folder / 'suggested.toml'}"]),
    }
    results = []
    for choice, (crosses, overrides) in choices.items():
        done = run_quality(folder / choice, file, dataset, 1024, workers, overrides, stop, display)
        results.append(
            CrossesResult(
                choice=choice,
                crosses=crosses,
                samples=done.samples,
                keys=done.keys.known,
                seconds=done.seconds,
                overall=done.overall,
                second_half=done.second_half,
            )
        )
    return suggested, results


def suggest_first_half(file: Path, dataset: str, schema: Schema) -> Suggestions:
    """The crosses that the first half of a file suggests."""
    samples = join_samples(list(read_samples(dataset, file, schema)))
    return suggest_crosses(samples.slice(0, len(samples) // 2), schema)


def _toml(schema: Schema, suggested: Suggestions) -> str:
    """The schema with the suggested crosses; tables and fields of the built-in ones have plain values only."""
    lines = [f'name = "{schema.name}"', suggested.line]
    for kind, uses in (("tables", schema.tables), ("dense_fields", schema.dense_fields)):
        for use in uses:
            lines.append(f"[[{kind}]]")
            for name, value in msgspec.structs.asdict(use).items():
                lines.append(f"{name} = {msgspec.json.encode(value).decode()}")
    return "\n".join(lines) + "\n"
