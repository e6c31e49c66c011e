"""Models of other packages: what they are given, and what is refused with one line."""

from pathlib import Path

import pytest
import torch

from infra.base.errors import ConfigError
from infra.base.plugins import code_digest
from infra.cli.first.plugin import write_plugin
from tests.own_modules import WriteModule
from trainer.config import ModelConfig
from trainer.models.layers import ClickModel
from trainer.models.registry import build_model
from trainer.models.size import dense_weights

HEAD = "import random\nimport torch\nfrom torch import nn\n\n\nclass Tower(nn.Module):\n"
BUILT = "    def __init__(self, inputs):\n        super().__init__()\n        self.deep = nn.Linear(inputs.width, 3)\n"
FLAT = "torch.cat([embeddings.flatten(1), dense], 1)"
FORWARD = "    def forward(self, embeddings, dense):\n        return "


@pytest.fixture
def tower(write_module: WriteModule) -> WriteModule:
    """Writes a module; returns model.name of its class Tower."""
    return lambda text: f"{write_module(text)}:Tower"


def built(name: str, seed: int = 0, labels: int = 1, dense: int = 2) -> ClickModel:
    config = ModelConfig(name=name, mlp=(5,))
    return build_model(config, 3, 4, dense, seed, torch.float32, torch.device("cpu"), crosses=1, labels=labels)


def test_a_model_of_another_module_gets_rows_and_its_weights_follow_from_the_seed(tower: WriteModule) -> None:
    name = tower(HEAD + BUILT + FORWARD + f"self.deep({FLAT})")
    first, again, other = (built(name, seed) for seed in (1, 1, 2))
    before = torch.random.get_rng_state()
    assert all(torch.equal(one, two) for one, two in zip(first.parameters(), again.parameters(), strict=True))
    assert not torch.equal(first.body.deep.weight, other.body.deep.weight)  # type: ignore[union-attr,arg-type]
    logits = first(torch.randn(6, 3, 4, generator=torch.Generator()), torch.ones(6, 4), torch.zeros(6, 2))
    assert logits.shape == (6,)
    built(name)
    assert torch.equal(torch.random.get_rng_state(), before), "the caller's random numbers"


@pytest.mark.parametrize("labels", [1, 3])
def test_its_weights_are_counted_before_a_run_starts(tower: WriteModule, labels: int) -> None:
    name = tower(HEAD + BUILT + FORWARD + f"self.deep({FLAT})")
    weights = sum(weight.numel() for weight in built(name, labels=labels).parameters())
    assert dense_weights(ModelConfig(name=name), 3, 4, 2, crosses=1, labels=labels) == weights


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("import nothing_of_that_name\n", "ModuleNotFoundError: No module named 'nothing_of_that_name'"),
        ("class Tower:\n", "cannot be loaded: IndentationError"),
        ("class Towers: ...\n", "has no 'Tower'; expected a class of that name; write own_"),
        ("class Tower: ...\n", "it is a class Tower; expected a class derived from torch.nn.Module"),
        ("Tower = 7\n", "it is a int; expected a class derived from torch.nn.Module"),
        (
            HEAD + "    def __init__(self):\n        super().__init__()\n",
            "cannot be built: TypeError: Tower.__",
        ),
        (HEAD + BUILT.replace("width", "wide"), "AttributeError: 'ModelInputs' object has no attribute 'wide'"),
        (HEAD + BUILT + "    def forward(self, rows):\n        return rows", "cannot predict: TypeError"),
        (HEAD + BUILT + FORWARD + "self.deep(dense)", "cannot predict: RuntimeError: "),
        (HEAD + BUILT + FORWARD + f"self.deep({FLAT}).sum(1)", "gives (4,) of torch.float32 for 4 samples; expected"),
        (HEAD + BUILT + FORWARD + f"self.deep({FLAT}) > 0", "gives (4, 3) of torch.bool for 4 samples; expected"),
        (HEAD + BUILT + FORWARD + "{'hidden': embeddings}", "gives dict for 4 samples; expected floats"),
        (HEAD + BUILT + FORWARD + f"self.deep({FLAT}.detach())", "no gradient reaches the embeddings"),
        (HEAD + BUILT + FORWARD + f"nn.functional.dropout({FLAT})", "gives different results for the same inputs"),
        (HEAD + BUILT + FORWARD + f"{FLAT} - {FLAT}.mean(0)", "depends on the other samples of a batch"),
    ],
)
def test_a_mistake_is_refused_with_one_line(tower: WriteModule, text: str, told: str) -> None:
    with pytest.raises(ConfigError) as refused:
        built(tower(text))
    assert told in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_model_that_begins_with_other_weights_each_time_is_refused(tower: WriteModule) -> None:
    drawn = "        nn.init.constant_(self.deep.bias, random.random())\n"
    name = tower(HEAD + BUILT + drawn + FORWARD + f"self.deep({FLAT})")
    with pytest.raises(ConfigError, match=r"'deep\.bias' differs; expected weights drawn by torch alone"):
        dense_weights(ModelConfig(name=name), 3, 4, 2)


def test_a_module_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"there is no module 'nowhere'; .* set PYTHONPATH to its folder"):
        built("nowhere.models:Tower")


def test_a_name_that_nothing_has_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(ValueError, match=r"no model 'dcm'; expected one of wdl, .* write 'dcn'"):
        ModelConfig(name="dcm")


def test_the_digest_of_a_package_is_that_of_all_of_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    package = tmp_path / "towers_of_test" / "deep"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").write_text("raise AssertionError('nothing is loaded')")
    digests = [code_digest("towers_of_test.deep:Tower")]
    (package / "layers.py").write_text("WIDTH = 3")
    digests.append(code_digest("towers_of_test.deep:Tower"))
    assert len({*digests, code_digest("towers_nowhere:Tower")}) == 3


def test_the_template_is_a_model_and_replaces_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_plugin("model", tmp_path / "own")
    monkeypatch.syspath_prepend(tmp_path / "own")
    assert built("my_model:MyModel", dense=0).output.weight.shape == (4 + 5,)
    with pytest.raises(ConfigError, match="exists; expected a new folder"):
        write_plugin("model", tmp_path / "own")
