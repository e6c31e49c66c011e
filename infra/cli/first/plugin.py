"""``freshet init --plugin``: writes a package with a model, policy or source of one's own, which works as it is."""

from pathlib import Path
from typing import Literal, NamedTuple

from infra.base.errors import ConfigError
from infra.base.plugins import MODELS, POLICIES, SOURCES
from infra.base.process import write_whole

PluginKind = Literal["model", "policy", "source"]
PYPROJECT = """\
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "my-{kind}"
version = "0.1.0"
description = "A {kind} for Freshet"

# Freshet finds the {kind} by the name on the left: --set {setting}=my_{kind}
[project.entry-points."{group}"]
my_{kind} = "my_{kind}:My{title}"

[tool.setuptools]
py-modules = ["my_{kind}"]
"""
MODEL = '''\
"""A click model: what happens between the rows of a sample and the output layer.

Freshet looks up the rows, and turns the hidden vector into a logit for each label, with the wide weights.
"""

import torch
from freshet import ModelInputs
from torch import Tensor, nn


class MyModel(nn.Module):
    """Attention over the fields of a sample, next to an MLP over all of its inputs."""

    def __init__(self, inputs: ModelInputs) -> None:
        """inputs: ``vectors`` of ``dim`` columns a sample, ``dense`` numbers, and the widths of ``mlp``."""
        super().__init__()
        self.interest = nn.Linear(inputs.dim, 1)
        layers: list[nn.Module] = []
        width = inputs.width  # vectors · dim + dense
        for wider in inputs.mlp:
            layers += [nn.Linear(width, wider), nn.ReLU()]
            width = wider
        self.deep = nn.Sequential(*layers)

    def forward(self, embeddings: Tensor, dense: Tensor) -> Tensor:
        """embeddings: samples × vectors × dim; dense: samples × dense. Returns samples × any width.

        A sample's result must not depend on the other samples or on chance: no BatchNorm, no dropout.
        """
        shares = torch.softmax(self.interest(embeddings), dim=1)
        summed = (shares * embeddings).sum(1)
        deep = self.deep(torch.cat([embeddings.flatten(1), dense], 1))
        return torch.cat([summed, deep], 1)
'''
POLICY = '''\
"""A policy: which worker trains which sample of a batch. The model that is trained does not depend on it."""

from collections.abc import Sequence

import numpy as np
from freshet import Situation


class MyPolicy:
    """Each sample to the worker that holds most of its rows, samples that have most to lose first."""

    def __init__(self, parameters: Sequence[str], seed: int) -> None:
        """parameters: what follows the name, separated by colons; seed: for numpy.random.default_rng([seed, step])."""
        if parameters:
            raise ValueError("my_policy has no parameters")

    def assign(self, situation: Situation) -> np.ndarray:
        """Returns a worker for each sample, each worker at most situation.capacity_n times.

        Equal situations must get equal answers. The arrays must not be changed.
        """
        workers = np.arange(situation.workers)
        bit = (workers % 64).astype(np.uint64)
        holds_Un = situation.holders_UQ[:, workers // 64] >> bit & np.uint64(1)  # 1: the worker holds the row
        held_Bn = holds_Un[situation.local_BF].sum(axis=1).astype(int)  # rows of the sample that the worker holds
        left_n = situation.capacity_n.copy()
        worker_B = np.empty(situation.samples, np.int32)
        for sample in np.argsort(-held_Bn.max(axis=1), kind="stable"):
            worker = np.where(left_n > 0, held_Bn[sample], -1).argmax()
            worker_B[sample] = worker
            left_n[worker] -= 1
        return worker_B
'''
SOURCE = '''\
"""A source: where events come from. This one reads a folder of files, PARTITION.jsonl, with an event on each line."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from freshet import Record, SourceInputs


class MySource:
    """Every file is a partition, and the number of a line is its offset; a line must not change once it is there."""

    clock = "append"

    def __init__(self, inputs: SourceInputs) -> None:
        """inputs: ``topic``, ``folder`` and ``partitions`` of the settings in [stream]."""
        self.folder = inputs.folder / inputs.topic

    def partitions(self) -> list[int]:
        return sorted(int(file.stem) for file in self.folder.glob("*.jsonl"))

    def span(self, partition: int) -> tuple[int, int]:
        """The first offset, and the offset after the last whole record."""
        return 0, len(self._lines(partition))

    def read(self, partition: int, offset: int, max_bytes: int) -> list[Record]:
        """Records from the offset on, at least one if there is one, about as many bytes as asked for.

        Raise freshet.SourceUnavailable if that cannot be answered now.
        """
        records: list[Record] = []
        for number, line in enumerate(self._lines(partition)[offset:], start=offset):
            records.append(Record(offset=number, key=None, payload=line, time_ms=0))
            max_bytes -= len(line)
            if max_bytes <= 0:
                break
        return records

    def offset_at(self, partition: int, time_ms: int) -> int:
        """The first offset at or after a time, for --from-time; these records have no times."""
        return self.span(partition)[1]

    def commit(self, offsets: Mapping[int, int]) -> None:
        """How far a run has read, for display."""

    def close(self) -> None:
        pass

    @classmethod
    def open_sink(cls, inputs: SourceInputs) -> "MySink":
        """For freshet produce and events over REST; leave it out if others write the events."""
        return MySink(inputs)

    def _lines(self, partition: int) -> list[bytes]:
        content = (self.folder / f"{partition}.jsonl").read_bytes()
        return content[: content.rfind(b"\\n") + 1].splitlines()  # a line is there once it has an end


class MySink:
    """Appends events to the files."""

    def __init__(self, inputs: SourceInputs) -> None:
        self.folder = inputs.folder / inputs.topic
        self.folder.mkdir(parents=True, exist_ok=True)
        self.partitions = list(range(inputs.partitions))
        for partition in self.partitions:
            self._file(partition).touch()

    def write(self, entries: Mapping[int, Sequence[tuple[bytes | None, bytes]]]) -> None:
        """Appends keys and payloads by partition; returns once they are safe."""
        for partition, records in entries.items():
            with self._file(partition).open("ab") as file:
                file.writelines(payload + b"\\n" for _, payload in records)

    def ends(self) -> dict[int, int]:
        """The offset that the next record of each partition gets."""
        return {partition: self._file(partition).read_bytes().count(b"\\n") for partition in self.partitions}

    def close(self) -> None:
        pass

    def _file(self, partition: int) -> Path:
        return self.folder / f"{partition}.jsonl"
'''


class Template(NamedTuple):
    """A package that is written."""

    group: str
    """Group of entry points."""
    setting: str
    module: str
    """Text of its one module."""
    example: str
    """A command that uses it."""


TEMPLATES: dict[PluginKind, Template] = {
    "model": Template(MODELS, "model.name", MODEL, "freshet train clicks.csv"),
    "policy": Template(POLICIES, "dispatch.policy", POLICY, "freshet train clicks.csv --set dispatch.workers=2"),
    "source": Template(SOURCES, "stream.source", SOURCE, "freshet up --run mine"),
}


def write_plugin(kind: PluginKind, folder: Path) -> list[str]:
    """Writes the package into a new folder; returns the commands that use it."""
    if folder.exists():
        raise ConfigError(f"{folder} exists; expected a new folder; choose another with -o")
    template = TEMPLATES[kind]
    folder.mkdir(parents=True)
    words = {"kind": kind, "title": kind.title(), "group": template.group, "setting": template.setting}
    write_whole(folder / "pyproject.toml", PYPROJECT.format(**words))
    write_whole(folder / f"my_{kind}.py", template.module)
    return [f"pip install -e {folder}", f"{template.example} --set {template.setting}=my_{kind}"]
