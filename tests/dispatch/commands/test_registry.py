"""What every command in the registry keeps to, whatever it is about."""

import pytest

from dispatch.commands.desired import Desired, ShareLimits
from dispatch.commands.registry import COMMANDS, read_command, recorded_command, shown_value, written_value
from dispatch.commands.spec import CommandOrigin, CommandSpec
from dispatch.errors import CommandRefused

VALUES = {
    "alpha": ["auto", "0.25", "1"],
    "policy": ["laia", "esd:0.5"],
    "deadline": ["true", "false"],
    "skip_above": ["none", "1000"],
    "link": ["0", "2.5", "2.5/0.25"],
    "shares": ["0.5:2"],
}
TAKES_ANY_TEXT = {"policy"}
"""whose value is looked at when it is checked, not when it is read"""
GIVEN = [(verb, value) for verb in COMMANDS for value in VALUES.get(verb, [""])]
ORIGIN = CommandOrigin("ann", "it is time", 7.0)


def given(verb: str, value: str) -> CommandSpec:
    return read_command(verb, "worker-1" if COMMANDS[verb].names_worker else "", value)


@pytest.mark.parametrize(("verb", "value"), GIVEN)
def test_the_normal_form_of_a_value_is_read_as_the_same_command(verb: str, value: str) -> None:
    command = given(verb, value)
    assert str(command) == value
    assert given(verb, str(command)) == command


@pytest.mark.parametrize(("verb", "value"), GIVEN)
def test_a_value_may_be_given_as_it_is_shown(verb: str, value: str) -> None:
    command = given(verb, value)
    assert given(verb, written_value(command.shown)) == command


@pytest.mark.parametrize(("verb", "value"), GIVEN)
def test_a_command_on_record_has_the_same_effect_however_often_it_is_read(verb: str, value: str) -> None:
    command = given(verb, value)
    once = command.effect(Desired(), ORIGIN)
    assert command.effect(once, ORIGIN) == once


@pytest.mark.parametrize(("verb", "value"), GIVEN)
def test_a_command_says_what_it_comes_to(verb: str, value: str) -> None:
    assert given(verb, value).answer(7)[0].islower()


@pytest.mark.parametrize("verb", sorted(VALUES.keys() - TAKES_ANY_TEXT))
def test_a_value_of_another_kind_is_refused_with_what_was_expected(verb: str) -> None:
    with pytest.raises(CommandRefused, match=rf"{verb} cannot be 'of another kind'; expected \w+"):
        given(verb, "of another kind")


def test_an_unknown_command_is_refused_with_those_there_are() -> None:
    with pytest.raises(CommandRefused, match="there is no command 'sing'; expected one of drain, remove, pause"):
        read_command("sing", "", "")


def test_a_command_to_the_whole_run_is_about_no_worker() -> None:
    with pytest.raises(CommandRefused, match="pause was given for worker 'worker-1'; expected no worker"):
        read_command("pause", "worker-1", "")


def test_a_command_without_a_value_takes_none() -> None:
    with pytest.raises(CommandRefused, match="stop was given the value 'now'; expected none"):
        read_command("stop", "", "now")


def test_a_command_of_another_release_on_record_is_none_of_ours() -> None:
    assert recorded_command("sing", "worker-1", "loudly") is None


@pytest.mark.parametrize(
    ("verb", "written", "shown"),
    [
        ("alpha", "0.25", 0.25),
        ("alpha", "auto", "auto"),
        ("deadline", "false", False),
        ("skip_above", "12", 12),
        ("link", "0", "unknown"),
        ("shares", "0.5:2", ShareLimits(0.5, 2.0)),
        ("policy", "gone with its release", "gone with its release"),
        ("alpha", "much", "much"),
        ("pause", "", None),
        ("sing", "", None),
    ],
)
def test_a_value_is_shown_typed_as_far_as_it_can_be_read(verb: str, written: str, shown: object) -> None:
    assert shown_value(verb, written) == shown
