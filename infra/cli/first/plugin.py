"""``freshet init --plugin model``: writes a package with a model of one's own, which can be trained as it is."""

from pathlib import Path

from infra.base.errors import ConfigError
from infra.base.process import write_whole

MODULE = "my_model"
PYPROJECT = """\
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "my-model"
version = "0.1.0"
description = "A click model for Freshet"

# Freshet finds the model by the name on the left: --set model.name=my_model
[project.entry-points."freshet.models"]
my_model = "my_model:MyModel"

[tool.setuptools]
py-modules = ["my_model"]
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
FILES = {"pyproject.toml": PYPROJECT, f"{MODULE}.py": MODEL}


def write_plugin(folder: Path) -> list[str]:
    """Writes the package into a new folder; returns the commands that train its model."""
    if folder.exists():
        raise ConfigError(f"{folder} exists; expected a new folder; choose another with -o")
    folder.mkdir(parents=True)
    for name, text in FILES.items():
        write_whole(folder / name, text)
    return [f"pip install -e {folder}", f"freshet train clicks.csv --set model.name={MODULE}"]
