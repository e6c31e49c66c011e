"""The dense weights of one worker and their optimizer, all in a few flat tensors.

Weights and gradients of every layer are views into one tensor each: an all-reduce sends the gradients as they are in
memory, the optimizer is one call, and a newcomer gets everything in a handful of broadcasts. Each layer starts on a
64-byte boundary. Shards keep the same flat tensors, split into one range per shard (ps/dense/range.py).

On disk this is one safetensors file with, per weight, its value and its optimizer state, by name, and a checksum.
"""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import torch
from crc32c import crc32c
from numpy.typing import NDArray
from safetensors.numpy import save
from torch import Tensor, nn

from infra.base.errors import ConfigError, FileUnusable, WireError
from infra.base.files import naming, writing_whole
from ps.client import DenseRanges
from ps.dense.range import FIRST_PIECE, pieces_of, place_of
from ps.protocol import BARE
from trainer.config import ModelConfig

ALIGNED_FLOATS = 16
CHECKSUM = "checksum"
"""Entry of the file's metadata."""


class Sgd:
    """w -= rate·g"""

    def __init__(self, weights: Tensor, rate: float) -> None:
        self._rate = rate
        self.state: dict[str, Tensor] = {}

    def step(self, weights: Tensor, gradients: Tensor) -> None:
        weights.add_(gradients, alpha=-self._rate)


class Adam:
    """torch's fused Adam with torch's usual settings.

    The kernel is called directly, as torch.optim calls it: torch.optim itself would first load torch's compiler, which
    costs every worker seconds. The state is created now and not at the first step, so that it can be received before
    that.
    """

    def __init__(self, weights: Tensor, rate: float) -> None:
        self._rate = rate
        step = torch.zeros((), dtype=torch.float32, device=weights.device)
        self.state = {"exp_avg": torch.zeros_like(weights), "exp_avg_sq": torch.zeros_like(weights), "step": step}

    def step(self, weights: Tensor, gradients: Tensor) -> None:
        self.state["step"] += 1
        torch._fused_adam_(
            [weights],
            [gradients],
            [self.state["exp_avg"]],
            [self.state["exp_avg_sq"]],
            [],
            [self.state["step"]],
            lr=self._rate,
            beta1=0.9,
            beta2=0.999,
            weight_decay=0.0,
            eps=1e-8,
            amsgrad=False,
            maximize=False,
        )


class Dense:
    """A model's weights, gradients and optimizer state."""

    def __init__(self, model: nn.Module, config: ModelConfig) -> None:
        self._places = places_of(model)
        length = max(place.stop for place in self._places.values()) if self._places else 0
        any_weight = next(model.parameters())
        self.weights = torch.zeros(length, dtype=any_weight.dtype, device=any_weight.device)
        self.gradients = torch.zeros_like(self.weights)
        for name, weight in model.named_parameters():
            place = self._places[name]
            self.weights[place].copy_(weight.detach().reshape(-1))
            weight.data = self.weights[place].view_as(weight)
            weight.grad = self.gradients[place].view_as(weight)
        self._shapes = {name: weight.shape for name, weight in model.named_parameters()}
        self._optimizer = (Adam if config.dense_optimizer == "adam" else Sgd)(self.weights, config.dense_rate)

    def clear(self) -> None:
        """Resets the gradients to 0 for the next step."""
        self.gradients.zero_()

    def step(self) -> None:
        """Changes the weights by the gradients."""
        self._optimizer.step(self.weights, self.gradients)

    def tensors(self) -> list[Tensor]:
        """Everything that a newcomer needs, in an order that is the same on every worker."""
        return [self.weights, *self._optimizer.state.values()]

    def ranges(self, form: int, shards: int) -> DenseRanges:
        """A copy for the shards: of the gradients, or of weights and state."""
        places = [self._place(shard, shards) for shard in range(shards)]
        if form == BARE:
            gradients = self.gradients.to("cpu", copy=True).numpy()
            return DenseRanges(form, [gradients[place] for place in places])
        return DenseRanges(form, [torch.cat(self._parts(place)).cpu().numpy() for place in places])

    def put(self, form: int, shard: int, shards: int, floats: NDArray[Any], pieces: range = FIRST_PIECE) -> None:
        """Replaces neighbouring pieces of a shard's range of the weights, or the whole range, weights and state."""
        place = self._place(shard, shards)
        if form == BARE:
            places = pieces_of(place.stop - place.start, self.weights.element_size())
            parts = [self.weights[place][place_of(places, pieces)]]
        else:
            parts = self._parts(place)
        if floats.size != sum(part.numel() for part in parts):
            raise WireError(
                f"shard {shard} answered with {floats.size} floats of dense weights in form {form}; expected "
                f"{sum(part.numel() for part in parts)}; give worker and shard the same settings"
            )
        received = torch.from_numpy(np.require(floats, requirements="W"))
        start = 0
        for part in parts:
            part.copy_(received[start : start + part.numel()])
            start += part.numel()

    def _place(self, shard: int, shards: int) -> slice:
        """A shard's range of the flat tensors."""
        length = self.weights.numel()
        return slice(length * shard // shards, length * (shard + 1) // shards)

    def _parts(self, place: slice) -> list[Tensor]:
        """Views of weights and state in a range, in the order in which shards keep them."""
        return [flat[place] if flat.ndim else flat.view(1) for flat in self.tensors()]

    def named(self) -> Iterator[tuple[str, Tensor]]:
        """Each weight and its optimizer state, as views, by name."""
        for kind, flat in {"weight": self.weights, **self._optimizer.state}.items():
            if flat.ndim == 0:
                yield kind, flat
                continue
            for name, place in self._places.items():
                yield f"{kind}/{name}", flat[place].view(self._shapes[name])


def places_of(model: nn.Module) -> dict[str, slice]:
    """The location of each weight in the flat tensors."""
    places = {}
    start = 0
    for name, weight in model.named_parameters():
        places[name] = slice(start, start + weight.numel())
        start += -(-weight.numel() // ALIGNED_FLOATS) * ALIGNED_FLOATS
    return places


def save_dense(path: Path, dense: Dense, about: Mapping[str, Any]) -> None:
    """Writes weights and optimizer state atomically: a reader sees the whole new file or the one before it."""
    # Saved as numpy arrays: safetensors.torch would leave reference cycles for the garbage collector.
    tensors = {name: tensor.detach().cpu().contiguous().numpy() for name, tensor in dense.named()}
    metadata = {name: str(value) for name, value in about.items()}
    content = save(tensors, {**metadata, CHECKSUM: _checksum(tensors, metadata)})
    with writing_whole(path) as temporary, temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _checksum(tensors: Mapping[str, NDArray[Any]], metadata: Mapping[str, str]) -> str:
    """Checksum of every name, shape and value; a safetensors file itself has none."""
    total = crc32c(repr(sorted(metadata.items())).encode())
    for name, values in sorted(tensors.items()):
        total = crc32c(values.tobytes(), crc32c(f"{name} {values.dtype} {values.shape}".encode(), total))
    return str(total)


def _read(path: Path) -> dict[str, NDArray[Any]]:
    """The tensors of a file; raises an error if it changed after it was written."""
    try:
        with naming(path), safetensors.safe_open(path, framework="np") as file:
            found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (the file is not a dict)
            metadata = dict(file.metadata() or {})
    except safetensors.SafetensorError as error:
        raise FileUnusable(
            f"{path} is damaged: {error}; expected a whole file of dense weights; restore it from a copy"
        ) from error
    if metadata.pop(CHECKSUM, "") != _checksum(found, metadata):
        raise FileUnusable(
            f"{path} is damaged, or another version of Freshet wrote it: its checksum is wrong or missing; expected an "
            "unchanged file; restore it from a copy"
        )
    return found


def load_dense(path: Path, dense: Dense) -> None:
    """Reads what ``save_dense`` wrote into a model of the same shape; checks everything before it changes anything."""
    wanted = dict(dense.named())
    found = _read(path)
    differing = wanted.keys() ^ found.keys() | {
        n for n in wanted.keys() & found.keys() if wanted[n].shape != found[n].shape
    }
    if differing:
        raise ConfigError(
            f"{path} does not fit this model: {sorted(differing)[:3]} differ; expected the weights of the same model, "
            "widths and optimizer; use the settings the file was written with"
        )
    for name, tensor in wanted.items():
        tensor.copy_(torch.from_numpy(found[name]))
