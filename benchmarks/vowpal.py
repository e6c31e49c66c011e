"""One pass of Vowpal Wabbit over a file, predict-then-train, to compare with: what you might use instead.

It gets the keys that Freshet's samples have, without those of crosses, as features of one namespace, and the dense
floats in another. Needs the package ``vowpalwabbit``, which Freshet does not install.
"""

import time
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.clicks import read_samples
from benchmarks.quality import QualityResult
from dispatch.progress.prequential import Prequential, Quality
from dispatch.progress.status import KeyCounts
from infra.base.errors import ConfigError, MissingProgram
from infra.base.process import Stop
from ingest.samples import Samples
from ingest.schema import load_schema, without_crosses

FIXED = "--quiet --loss_function logistic -b 24"
OPTIONS: Mapping[str, str] = {"avazu": "-q cc -l 0.1 --power_t 0.4"}
"""The best of several set-ups, by data set."""
USUAL = "-l 0.3 --power_t 0.4"


def check_vowpal(dataset: str, options: str | None) -> None:
    """Raises an error, before anything is trained, if Vowpal Wabbit is missing or does not take the options."""
    _open(_chosen(dataset, options)).finish()


def run_vowpal(file: Path, dataset: str, options: str | None, last: int, stop: Stop) -> QualityResult:
    """Trains Vowpal Wabbit once on the file; options: None for those that are best on the data set. last: how many
    samples count as the second half, which begins with a batch of the run that it is compared with.
    """
    chosen = _chosen(dataset, options)
    parts = list(read_samples(dataset, file, without_crosses(load_schema(dataset))))
    learnt = learn_pass(parts, sum(map(len, parts)) - last, chosen, stop)
    return QualityResult(
        file=file.name,
        samples=learnt.whole.samples,
        batch=1,
        workers=1,
        model=f"vw {version('vowpalwabbit')} {chosen}",
        policy="-",
        seconds=learnt.seconds,
        samples_per_second=learnt.whole.samples / learnt.seconds,
        keys=KeyCounts(),
        overall=learnt.whole,
        second_half=learnt.later,
    )


class LearntPass(NamedTuple):
    """The quality of one pass."""

    whole: Quality
    later: Quality
    """Of the samples from a certain one on."""
    seconds: float


def learn_pass(parts: Iterable[Samples], later: int, options: str, stop: Stop) -> LearntPass:
    """Trains Vowpal Wabbit once on samples without crosses. later: the first sample that counts as later."""
    workspace = _open(options)
    whole = Prequential()
    rest = Prequential()
    began = time.monotonic()
    seen = 0
    for part in parts:
        if stop.requested:
            break
        logits_B = np.fromiter((_learn(workspace, line) for line in lines_of(part)), np.float32, len(part))
        half = min(max(later - seen, 0), len(part))
        whole.add(logits_B, part.labels_B)
        rest.add(logits_B[half:], part.labels_B[half:])
        seen += len(part)
    seconds = time.monotonic() - began
    workspace.finish()
    return LearntPass(whole.overall(), rest.overall(), seconds)


def vowpal_version() -> str | None:
    """The version that is installed; None: it is not."""
    return version("vowpalwabbit") if find_spec("vowpalwabbit") is not None else None


def lines_of(samples: Samples) -> Iterator[str]:
    """Samples in Vowpal Wabbit's format."""
    for label, keys, floats in zip(
        samples.labels_B.tolist(), samples.keys_BF.tolist(), samples.dense_BN.tolist(), strict=True
    ):
        names = " ".join(f"{key:x}" for key in keys)
        numbers = " ".join(f"{place}:{value:.6g}" for place, value in enumerate(floats) if value)
        yield f"{1 if label else -1} |c {names} |i {numbers}"


def _chosen(dataset: str, options: str | None) -> str:
    return OPTIONS.get(dataset, USUAL) if options is None else options


def _open(options: str) -> Any:
    try:
        from vowpalwabbit import Workspace
    except ImportError as error:
        raise MissingProgram(
            "Vowpal Wabbit cannot be compared with: the package 'vowpalwabbit' is missing; expected it beside Freshet; "
            "pip install vowpalwabbit"
        ) from error
    try:
        return Workspace(f"{FIXED} {options}")
    except RuntimeError as error:
        raise ConfigError(
            f"Vowpal Wabbit does not take {options!r}: {error}; expected its own options; correct --vw-options"
        ) from error


def _learn(workspace: Any, line: str) -> float:
    """The logit of an example, predicted before it is learnt from."""
    example = workspace.example(line)
    workspace.learn(example)
    logit = float(example.get_simplelabel_prediction())
    workspace.finish_example(example)
    return logit
