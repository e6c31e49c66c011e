"""``freshet snapshots``: the snapshots of a run, and which one is to be served.

Everything is read from and written to the storage of the checkpoints, so it works while training, serving and SQL are
down.
"""

import getpass
import time
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from infra.cli.checkpoints import AsJson, CheckpointNumber, echo_json, no_checkpoint, print_table, time_text
from infra.cli.options import RunOrFolder, SettingsOptions, grouped
from infra.run.figures import count, size
from infra.run.folder import checkpoint_place
from infra.run.settings import Settings, read_stored

if TYPE_CHECKING:
    from infra.base.storage import Storage
    from ps.checkpoints.choice import Choice
    from ps.checkpoints.manifest import CheckpointFigures, CheckpointManifest
    from serving.snapshots.difference import ModelDifference
    from serving.snapshots.model import ReadModel, RunModel

app = typer.Typer(
    help="Snapshots: checkpoints that can be served. List, compare, pin, release and export them.", no_args_is_help=True
)
EVENTS_FOR_NAMES = 100_000
UNKNOWN = "not known"
Reason = Annotated[str, typer.Option(help="Why, for the record.")]


@dataclass(frozen=True)
class SnapshotOptions(SettingsOptions, RunOrFolder):
    """Which run, or where its checkpoints are."""

    checkpoints_url: Annotated[
        str, typer.Option("--checkpoints-url", help="Where its checkpoints are, instead of its folder.")
    ] = ""
    old_url: Annotated[str, typer.Option("--cuts-url", hidden=True)] = ""

    @cached_property
    def url(self) -> str:
        """Where the checkpoints are, with a notice for the older spelling; empty: in the folder of the run."""
        if self.old_url:
            hint = "freshet: --cuts-url is now --checkpoints-url; the old name works for one more release"
            typer.echo(hint, err=True)
        return self.checkpoints_url or self.old_url

    def settings(self) -> Settings:
        """The settings of the run or, if only its checkpoints are named, those given as for any command."""
        return self.load() if self.url and self.folder is None else read_stored(self.find())

    def storage(self) -> "Storage":
        """The storage of the checkpoints."""
        from infra.base.storage import Storage

        if self.url:
            return Storage.at(self.url)
        folder = self.find()
        return Storage.at(checkpoint_place(folder, read_stored(folder).checkpoints.url))


# ── looking ───────────────────────────────────────────────────────────────────────────────────────────────────────────
@app.command("list")
@grouped
def list_snapshots(as_json: AsJson = False, *, given: SnapshotOptions) -> None:
    """List the snapshots of a run, newest last: verdict, age, and which one is pinned or requested.

    Example: freshet snapshots list --run up-20261115-021100
    """
    from ps.checkpoints.choice import read_choice
    from serving.snapshots.choosing import wanted_of

    storage = given.storage()
    found, damage = _manifests(storage)
    choice = read_choice(storage)
    wanted = wanted_of(found, choice)
    listed = [_listed(manifest, choice, wanted) for manifest in found]
    if as_json:
        echo_json([*listed, *({"checkpoint": number, "damage": why} for number, why in damage.items())])
        return
    columns = ("checkpoint", "timeline", "step", "taken", "age", "rows", "verdict", "served")
    print_table(columns, [_cells(each) for each in listed])
    for why in damage.values():
        typer.echo(why)


@app.command()
@grouped
def show(number: CheckpointNumber, as_json: AsJson = False, *, given: SnapshotOptions) -> None:
    """Show one snapshot: the figures that it was judged by, and the current choice of what is served.

    Example: freshet snapshots show 7 --run up-20261115-021100
    """
    from ps.checkpoints.choice import read_choice
    from serving.snapshots.choosing import wanted_of

    storage = given.storage()
    found, _ = _manifests(storage)
    manifest = _of(found, number)
    choice = read_choice(storage)
    facts = _listed(manifest, choice, wanted_of(found, choice)) | {"figures": manifest.figures, "choice": choice}
    if as_json:
        echo_json(facts)
        return
    figures = manifest.figures
    print_table(
        None,
        [
            ("checkpoint", f"{number}, timeline {manifest.timeline}, step {manifest.step:,} of run {manifest.run}"),
            ("taken", f"{time_text(manifest.at_seconds)}, {_age(facts['age_seconds'])} ago"),
            ("rows", f"{manifest.rows:,} on {count(len(manifest.shards), 'shard')}, {size(facts['bytes'])}"),
            ("verdict", _verdict(facts)),
            ("served", _served(facts)),
            ("logloss", f"{figures.logloss:.4f} of {figures.samples:,} samples"),
            ("calibration", f"{figures.calibration:.3f}"),
            ("against", _compared(figures)),
            ("changed rows", f"{figures.changed_share:.1%}, {figures.average_changed_share:.1%} before"),
            *([("live chunks", f"{figures.live_share:.1%}")] if figures.live_share < 1.0 else []),
            ("non-finite values", f"{figures.non_finite:,}"),
            ("wanted by", " ".join(filter(None, (choice.actor, choice.reason and f"({choice.reason})"))) or "nobody"),
        ],
    )


@app.command()
@grouped
def diff(
    first: Annotated[int, typer.Argument(metavar="A", help="A checkpoint.", min=1)],
    second: Annotated[int, typer.Argument(metavar="B", help="Another one.", min=1)],
    as_json: AsJson = False,
    *,
    given: SnapshotOptions,
) -> None:
    """Compare two snapshots: new and changed rows, the largest changes, dense weights, quality.

    A row is named by its field and value if they can be found in the run's newest or oldest events, or its schema.

    Example: freshet snapshots diff 7 9 --run up-20261115-021100
    """
    from ingest.names import find_names, newest_payloads
    from serving.snapshots.difference import compare

    storage = given.storage()
    settings = given.settings()
    found, _ = _manifests(storage)
    one, two = (_read(storage, settings, _of(found, number))[0] for number in (first, second))
    events = newest_payloads(settings.stream, settings.kafka, EVENTS_FOR_NAMES)
    difference = compare(one, two, lambda keys: find_names(keys, settings.event_schema, events))
    if as_json:
        echo_json(difference)
    else:
        _print_difference(difference)


# ── changing ──────────────────────────────────────────────────────────────────────────────────────────────────────────
@app.command()
@grouped
def pin(number: CheckpointNumber, reason: Reason = "", as_json: AsJson = False, *, given: SnapshotOptions) -> None:
    """Serve one snapshot, whatever its verdict, until it is unpinned; its checkpoint is kept.

    Example: freshet snapshots pin 7 --run up-20261115-021100 --reason "better before the sale"
    """
    from serving.snapshots.choosing import choose_pin

    storage = given.storage()
    _of(_manifests(storage)[0], number)
    _print_choice(
        choose_pin(storage, number, getpass.getuser(), reason), f"checkpoint {number} is served until unpinned", as_json
    )


@app.command()
@grouped
def unpin(reason: Reason = "", as_json: AsJson = False, *, given: SnapshotOptions) -> None:
    """Serve the newest good snapshot again.

    Example: freshet snapshots unpin --run up-20261115-021100
    """
    from serving.snapshots.choosing import choose_newest

    message = "no snapshot is pinned any more; the newest good one is served"
    _print_choice(choose_newest(given.storage(), getpass.getuser(), reason), message, as_json)


@app.command()
@grouped
def rollback(reason: Reason = "", as_json: AsJson = False, *, given: SnapshotOptions) -> None:
    """Go back: pin the newest snapshot that may be served and is older than the one that is served, or pinned, now.

    Example: freshet snapshots rollback --run up-20261115-021100 --reason "clicks fell"
    """
    from ps.checkpoints.served import served_now
    from serving.snapshot_id import SnapshotId
    from serving.snapshots.choosing import choose_before

    storage = given.storage()
    served = [SnapshotId(each.timeline, each.step, each.checkpoint) for each in served_now(storage, time.time())]
    found, _ = _manifests(storage)
    choice = choose_before(storage, found, max(served, default=None), getpass.getuser(), reason)
    _print_choice(choice, f"checkpoint {choice.pinned} is served until unpinned", as_json)


@app.command()
@grouped
def release(number: CheckpointNumber, reason: Reason = "", as_json: AsJson = False, *, given: SnapshotOptions) -> None:
    """Allow a snapshot that is held back to be served; it is served if it is the newest one allowed.

    Example: freshet snapshots release 9 --run up-20261115-021100
    """
    from serving.snapshots.choosing import choose_release

    storage = given.storage()
    _of(_manifests(storage)[0], number)
    _print_choice(
        choose_release(storage, number, getpass.getuser(), reason), f"checkpoint {number} may be served", as_json
    )


@app.command()
@grouped
def export(
    number: CheckpointNumber,
    into: Annotated[Path, typer.Argument(metavar="FOLDER", help="A new folder.")],
    onnx: Annotated[bool, typer.Option("--onnx", help="Also export the dense part as ONNX.")] = False,
    as_json: AsJson = False,
    *,
    given: SnapshotOptions,
) -> None:
    """Export a snapshot as a folder that other programs load without Freshet: safetensors, JSON and, if requested,
    ONNX.

    Example: freshet snapshots export 7 exported --run up-20261115-021100
    """
    from serving.snapshots.folder import check_free, write_export

    check_free(into)
    storage = given.storage()
    settings = given.settings()
    found, _ = _manifests(storage)
    model, of = _read(storage, settings, _of(found, number))
    files = write_export(into, model, of, onnx)
    if as_json:
        echo_json({"folder": str(into), "checkpoint": number, "rows": len(model.keys_R), "files": files})
    else:
        rows = count(len(model.keys_R), "row")
        typer.echo(f"checkpoint {number} with {rows} is in {into}: {', '.join(files)}")


# ── shared by the commands ────────────────────────────────────────────────────────────────────────────────────────────
def _manifests(storage: "Storage") -> tuple[list["CheckpointManifest"], dict[int, str]]:
    """Returns the manifests that can be read, ascending, and the reasons why others cannot, by number."""
    from dispatch.checkpoints.survey import find_checkpoints

    checkpoints = find_checkpoints(storage)
    damage = {checkpoint.number: checkpoint.damage for checkpoint in checkpoints if checkpoint.damage is not None}
    return [checkpoint.manifest for checkpoint in checkpoints if checkpoint.manifest is not None], damage


def _of(found: list["CheckpointManifest"], number: int) -> "CheckpointManifest":
    manifest = next((each for each in found if each.number == number), None)
    if manifest is None:
        raise no_checkpoint(number, [each.number for each in found])
    return manifest


def _read(storage: "Storage", settings: Settings, manifest: "CheckpointManifest") -> "tuple[ReadModel, RunModel]":
    from serving.snapshots.model import RunModel, read_model

    of = RunModel(manifest.run, settings.seed, settings.scaled_rows, settings.model, settings.event_schema)
    return read_model(storage, manifest.number, of), of


def _listed(manifest: "CheckpointManifest", choice: "Choice", wanted: "CheckpointManifest | None") -> dict[str, Any]:
    from dispatch.checkpoints.retention import parts_of

    return {
        "checkpoint": manifest.number,
        "timeline": manifest.timeline,
        "step": manifest.step,
        "at_seconds": manifest.at_seconds,
        "age_seconds": max(0.0, time.time() - manifest.at_seconds),
        "rows": manifest.rows,
        "bytes": sum(part.nbytes for part in parts_of(manifest)),
        "reasons": manifest.verdict.reasons,
        "is_released": manifest.number in choice.released,
        "is_pinned": manifest.number == choice.pinned,
        "is_wanted": wanted is not None and manifest.number == wanted.number,
    }


def _cells(facts: dict[str, Any]) -> list[str]:
    numbers = (f"{facts['checkpoint']}", f"{facts['timeline']}", f"{facts['step']:,}")
    times = (time_text(facts["at_seconds"]), _age(facts["age_seconds"]))
    return [*numbers, *times, f"{facts['rows']:,}", _verdict(facts), _served(facts)]


def _compared(figures: "CheckpointFigures") -> str:
    if figures.reference_step < 0:
        return "its own past: no server has scored the newest samples"
    samples = f"{figures.compared_samples:,} samples with {figures.clicks:,} clicks"
    loss = figures.reference_logloss + figures.excess_logloss
    return (
        f"the snapshot of step {figures.reference_step:,}, on {samples}: "
        f"logloss {loss:.4f} ({figures.reference_logloss:.4f}), AUC {figures.auc:.4f} ({figures.reference_auc:.4f}), "
        f"predicted clicks {figures.predicted_clicks:,.0f} ({figures.expected_clicks:,.0f})"
    )


def _verdict(facts: dict[str, Any]) -> str:
    if not facts["reasons"]:
        return "good"
    return f"{'released' if facts['is_released'] else 'held back'}: {'; '.join(facts['reasons'])}"


def _served(facts: dict[str, Any]) -> str:
    return "pinned" if facts["is_pinned"] else "wanted" if facts["is_wanted"] else ""


def _age(seconds: float) -> str:
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.1f} s"


def _print_choice(choice: "Choice", message: str, as_json: bool) -> None:
    if as_json:
        echo_json(choice)
    else:
        typer.echo(message)


def _print_difference(found: "ModelDifference") -> None:
    (one, two), (before, after) = found.checkpoints, found.figures
    moved = f"{found.dense_distance:.4g} of {found.dense_norm:.4g}"
    rows = [
        ("step", f"{found.steps[0]:,}", f"{found.steps[1]:,}"),
        ("rows", f"{found.rows[0]:,}", f"{found.rows[1]:,}"),
        ("rows added, removed", "", f"{found.added:,}, {found.removed:,}"),
        ("rows changed", "", f"{found.changed:,}, by {found.mean_distance:.4g} on average"),
        ("dense weights moved", "", moved),
        ("verdict", *("; ".join(each.reasons) or "good" for each in found.verdicts)),
        ("newest samples", f"{before.samples:,}", f"{after.samples:,}"),
        ("logloss", *(f"{each.logloss:.4f}" if each.samples else UNKNOWN for each in found.figures)),
        ("AUC", *(f"{each.auc:.4f}" if each.auc else UNKNOWN for each in found.figures)),
        ("calibration", *(f"{each.calibration:.3f}" if each.samples else UNKNOWN for each in found.figures)),
        ("changed share", f"{before.changed_share:.1%}", f"{after.changed_share:.1%}"),
    ]
    print_table(("", f"checkpoint {one}", f"checkpoint {two}"), rows)
    print_table(
        ("field", "value", "key", "distance"),
        [
            (each.field or "unknown", each.value or "unknown value", each.key, f"{each.distance:.4g}")
            for each in found.largest
        ],
    )
    print_table(("dense weight", "distance"), [(name, f"{far:.4g}") for name, far in found.dense_by_weight.items()])
