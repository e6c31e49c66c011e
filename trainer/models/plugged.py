"""A model of one's own: a torch module from another package, between the rows of a sample and Freshet's output layer.

    class Tower(nn.Module):
        def __init__(self, inputs: ModelInputs) -> None: ...
        def forward(self, embeddings_BFD: Tensor, dense_BN: Tensor) -> Tensor: ...  # hidden_BH, of any width H

The output layer adds what all models share: the wide weights, the base rate, a head for each label. The module is
tried with random inputs whenever it is built. It is refused if training with it could not be exact: if what it says
about a sample depends on chance or on the other samples of a batch.

Legend: B samples, F vectors a sample, D columns of each, N dense inputs, H width of the hidden vector.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from infra.base.errors import ConfigError
from infra.base.plugins import MODELS, describe_failure, find_plugin, load_plugin
from trainer.config import BUILT_IN, ModelConfig
from trainer.models.layers import ClickModel, Output

KIND = "model"
TRIED = 4
"""Samples of a trial."""
CLOSE = 1e-4
"""Largest difference, absolute or relative, of a sample's hidden vector alone and among others."""
_drawing = threading.Lock()


@dataclass(frozen=True)
class ModelInputs:
    """What a model is built for."""

    vectors: int
    """Embedding vectors of a sample: one for each value of a field, or one for a pooled list."""
    dim: int
    """Columns of a vector (``rows.dim``)."""
    dense: int
    """Dense inputs of a sample; may be 0."""
    mlp: tuple[int, ...]
    """Widths of hidden layers (``model.mlp``), for the model to use as it likes."""

    @property
    def width(self) -> int:
        """All inputs of a sample side by side."""
        return self.vectors * self.dim + self.dense


class PluggedModel(ClickModel):
    """A module of another package, and the output layer."""

    def __init__(
        self,
        body: Callable[[ModelInputs], Any],
        config: ModelConfig,
        fields: int,
        dim: int,
        dense: int,
        wide: int,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        inputs = ModelInputs(fields, dim, dense, config.mlp)
        self.body = drawn(config.name, body, inputs, generator.initial_seed())
        self.output = Output(try_body(config.name, self.body, inputs), config, wide)

    def forward(self, embeddings_BFD: Tensor, wide_BF: Tensor | None, dense_BN: Tensor) -> Tensor:
        logits_B: Tensor = self.output(self.body(embeddings_BFD, dense_BN), wide_BF)
        return logits_B


def plugged(name: str) -> Callable[[ModelConfig, int, int, int, int, torch.Generator], ClickModel]:
    """What builds the model of that name; raises ConfigError if it cannot be loaded, or is no torch module."""
    found = load_plugin(KIND, find_plugin(KIND, MODELS, name, BUILT_IN))
    if not (isinstance(found, type) and issubclass(found, nn.Module)):
        what = f"class {found.__name__}" if isinstance(found, type) else type(found).__name__
        raise ConfigError(
            f"model {name!r} is no model: it is a {what}; expected a class derived from torch.nn.Module; correct "
            "model.name, or the class"
        )
    return partial(PluggedModel, found)


def drawn(name: str, body: Callable[[ModelInputs], Any], inputs: ModelInputs, seed: int) -> nn.Module:
    """The module with weights that are a function of the seed, although it draws them from torch's global state."""
    generator = torch.default_generator
    with _drawing:
        before = generator.get_state()
        generator.manual_seed(seed)
        try:
            module = body(inputs)
        except Exception as error:
            raise ConfigError(
                f"model {name!r} cannot be built: {describe_failure(error)}; expected __init__(self, inputs) that "
                f"works with {inputs}; correct the class"
            ) from error
        finally:
            generator.set_state(before)
    assert isinstance(module, nn.Module), "a class derived from nn.Module makes one"
    return module


def try_body(name: str, body: nn.Module, inputs: ModelInputs) -> int:
    """Width of the hidden vector; raises ConfigError for a module that cannot be trained exactly."""
    source = torch.Generator().manual_seed(0)
    embeddings_BFD = torch.randn(TRIED, inputs.vectors, inputs.dim, generator=source).requires_grad_()
    dense_BN = torch.randn(TRIED, inputs.dense, generator=source)
    hidden_BH = _forward(name, body, embeddings_BFD, dense_BN, inputs)
    if _is_other(hidden_BH, _forward(name, body, embeddings_BFD, dense_BN, inputs)):
        raise _inexact(name, "gives different results for the same inputs", "no dropout or other randomness")
    part_bH = _forward(name, body, embeddings_BFD[:2], dense_BN[:2], inputs)
    if _is_other(hidden_BH[:2], part_bH):
        raise _inexact(name, "depends on the other samples of a batch", "layers without batch statistics (LayerNorm)")
    if hidden_BH.requires_grad:
        torch.autograd.backward(hidden_BH.sum())
    body.zero_grad(set_to_none=True)
    if embeddings_BFD.grad is None:
        raise ConfigError(
            f"model {name!r} learns nothing from rows: no gradient reaches the embeddings; expected a hidden vector "
            "that is computed from them; correct its forward"
        )
    return hidden_BH.shape[1]


def _forward(name: str, body: nn.Module, embeddings_BFD: Tensor, dense_BN: Tensor, inputs: ModelInputs) -> Tensor:
    try:
        hidden_BH: Tensor = body(embeddings_BFD, dense_BN)
    except Exception as error:
        raise ConfigError(
            f"model {name!r} cannot predict: {describe_failure(error)}; expected forward(self, embeddings, dense) that "
            f"works with embeddings {tuple(embeddings_BFD.shape)} and dense {tuple(dense_BN.shape)}; correct it"
        ) from error
    samples = len(embeddings_BFD)
    is_right = isinstance(hidden_BH, Tensor) and hidden_BH.is_floating_point()
    if not is_right or hidden_BH.dim() != 2 or len(hidden_BH) != samples or not hidden_BH.shape[1]:
        given = tuple(hidden_BH.shape) if isinstance(hidden_BH, Tensor) else type(hidden_BH).__name__
        kind = f" of {hidden_BH.dtype}" if isinstance(hidden_BH, Tensor) else ""
        raise ConfigError(
            f"model {name!r} gives {given}{kind} for {samples} samples; expected floats of shape ({samples}, H), a "
            "hidden vector for each sample; correct what its forward returns"
        )
    return hidden_BH


def _is_other(hidden_BH: Tensor, again_BH: Tensor) -> bool:
    return hidden_BH.shape != again_BH.shape or not torch.allclose(
        hidden_BH, again_BH, rtol=CLOSE, atol=CLOSE, equal_nan=True
    )


def _inexact(name: str, does: str, expected: str) -> ConfigError:
    return ConfigError(
        f"model {name!r} cannot be trained exactly: its forward {does}; expected {expected}; correct the class"
    )


def check_repeatable(name: str, first: nn.Module, second: nn.Module) -> None:
    """Raises ConfigError for two builds with the same seed that differ: processes would begin with other weights."""
    pairs = zip(first.named_parameters(), second.named_parameters(), strict=True)
    for (weight, one), (_, other) in pairs:
        if not torch.equal(one, other):
            raise ConfigError(
                f"model {name!r} does not begin with the same weights each time: {weight.removeprefix('body.')!r} "
                "differs; expected weights drawn by torch alone; draw them with torch.nn.init, not random or numpy"
            )
