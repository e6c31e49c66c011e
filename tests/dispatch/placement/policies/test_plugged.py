"""Policies of other packages: what they are given, and what is refused with one line."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dispatch.commands.policy import PolicyCommand
from dispatch.placement.policies.registry import build_policy, parse_spec
from infra.base.errors import ConfigError
from infra.cli.first.plugin import write_plugin
from tests.dispatch.placement.assign.situations import draw_situation
from tests.own_modules import WriteModule

HEAD = "import random\nimport numpy as np\nclass Own:\n"
BUILT = "    def __init__(self, parameters, seed):\n        self.parameters = parameters\n"
ASSIGN = "    def assign(self, situation):\n        return "
IN_TURN = "np.repeat(np.arange(situation.workers), situation.capacity_n)[:situation.samples]"


def test_a_policy_of_another_module_decides_with_its_parameters(write_module: WriteModule) -> None:
    own = write_module(HEAD + BUILT + ASSIGN + f"{IN_TURN}[::-1] if self.parameters == ('back',) else {IN_TURN}")
    situation = draw_situation(3)
    there, back = (build_policy(f"{own}:Own{text}", 0).assign(situation).worker_B for text in ("", ":back"))
    assert there.dtype == np.int32
    assert np.array_equal(there[::-1], back)
    assert len(set(there.tolist())) > 1


def test_it_may_be_elastic_and_fully_synchronised_as_ours(write_module: WriteModule) -> None:
    text = f"{write_module(HEAD + BUILT + ASSIGN + IN_TURN)}:Own:2:elastic:full"
    spec = parse_spec(text)
    assert str(spec) == text
    assert spec.needs == parse_spec("esd:1:elastic:full").needs
    assert spec.is_plugged


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("import nothing_of_that_name\n", "ModuleNotFoundError: No module named 'nothing_of_that_name'"),
        ("class Owns: ...\n", "has no 'Own'; expected a class of that name; write own_"),
        ("Own = 7\n", "is no policy: it is a int; expected a class with assign"),
        ("class Own: ...\n", "is no policy: it is a class Own without it"),
        (HEAD + ASSIGN + IN_TURN, "cannot be built: TypeError: Own() takes no arguments; expected __init__"),
        (HEAD + BUILT + "        int(parameters[0])\n" + ASSIGN + IN_TURN, "cannot be built: IndexError: tuple index"),
        (
            HEAD + BUILT + ASSIGN + "situation.nothing",
            "cannot decide step 0: AttributeError: 'Situation' object has no",
        ),
        (HEAD + BUILT + ASSIGN + "situation.capacity_n.sort()", "cannot decide step 0: ValueError: sort array is read"),
        (HEAD + BUILT + ASSIGN + "None", "gives object of shape () in step 0; expected 6 numbers of workers below 2"),
        (HEAD + BUILT + ASSIGN + f"{IN_TURN}[1:]", "gives int64 of shape (5,) in step 0"),
        (HEAD + BUILT + ASSIGN + f"{IN_TURN} * 1.0", "gives float64 of shape (6,) in step 0"),
        (HEAD + BUILT + ASSIGN + f"{IN_TURN} + 1", "gives a worker 2 in step 0"),
        (HEAD + BUILT + ASSIGN + f"{IN_TURN} - 1", "gives a worker -1 in step 0"),
        (HEAD + BUILT + ASSIGN + f"{IN_TURN} * 0", "gives [6, 0] samples in step 0; expected"),
        (HEAD + BUILT + ASSIGN + f"np.random.permutation({IN_TURN})", "answers an equal situation with"),
    ],
)
def test_a_mistake_is_refused_with_one_line_before_a_run(write_module: WriteModule, text: str, told: str) -> None:
    spec = parse_spec(f"{write_module(text)}:Own")
    with pytest.raises(ConfigError) as refused:
        spec.try_out()
    assert told in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_wrong_answer_of_a_later_step_ends_the_run(write_module: WriteModule) -> None:
    own = write_module(HEAD + BUILT + ASSIGN + f"{IN_TURN} if situation.step < 9 else {IN_TURN} * 0")
    policy = build_policy(f"{own}:Own", 0)
    situation = replace(draw_situation(3), step=9)
    with pytest.raises(ConfigError, match=r"samples in step 9; expected .* choose another dispatch.policy"):
        policy.assign(situation)


def test_a_module_that_is_not_there_is_refused_with_the_choices() -> None:
    with pytest.raises(ConfigError, match=r"got 'nowhere:Own'; expected one of random, .* also as module:Name"):
        parse_spec("nowhere:Own")


def test_a_command_says_whether_it_names_code_of_another_package(write_module: WriteModule) -> None:
    own = write_module(HEAD + BUILT + ASSIGN + IN_TURN)
    assert PolicyCommand(f"{own}:Own").names_plugin
    assert not PolicyCommand("joint:2:elastic").names_plugin


def test_the_template_is_a_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_plugin("policy", tmp_path / "own")
    monkeypatch.syspath_prepend(tmp_path / "own")
    parse_spec("my_policy:MyPolicy").try_out()
    situation = replace(draw_situation(5), capacity_n=np.full(4, 100))
    held = [int(word) for word in situation.holders_UQ[:, 0]]
    for sample, worker in enumerate(build_policy("my_policy:MyPolicy", 0).assign(situation).worker_B):
        counts = [sum(held[row] >> j & 1 for row in situation.local_BF[sample]) for j in range(4)]
        assert counts[worker] == max(counts)
