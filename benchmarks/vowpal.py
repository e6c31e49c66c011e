"""Vowpal Wabbit, to compare with: keys are features of one namespace, dense floats of another.

Needs the package ``vowpalwabbit``, which Freshet does not install.
"""

from collections.abc import Iterator, Mapping
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

import numpy as np

from benchmarks.others import Learn, Other
from infra.base.errors import ConfigError, MissingProgram
from ingest.samples import Samples

FIXED = "--quiet --loss_function logistic -b 24"
OPTIONS: Mapping[str, str] = {"avazu": "-q cc -l 0.1 --power_t 0.4"}
"""The best of several set-ups, by data set."""
USUAL = "-l 0.3 --power_t 0.4"


def open_vowpal(dataset: str, options: str | None = None) -> Other:
    """Raises an error if Vowpal Wabbit is missing or does not take the options; None: those that are best on the data
    set.
    """
    chosen = OPTIONS.get(dataset, USUAL) if options is None else options
    learn = learn_with(chosen)
    return Other(f"vw {version('vowpalwabbit')} {chosen}", learn)


def learn_with(options: str) -> Learn:
    """Vowpal Wabbit with these options, which has not learnt yet."""
    workspace = open_workspace(options)
    return lambda samples: np.fromiter(
        (learn_line(workspace, line) for line in lines_of(samples)), np.float32, len(samples)
    )


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


def open_workspace(options: str) -> Any:
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


def learn_line(workspace: Any, line: str) -> float:
    """The logit of an example, predicted before it is learnt from."""
    example = workspace.example(line)
    workspace.learn(example)
    logit = float(example.get_simplelabel_prediction())
    workspace.finish_example(example)
    return logit
