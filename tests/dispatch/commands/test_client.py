"""Asking a process that cannot answer: it takes the time that is allowed, and the message says what was looked for."""

from contextlib import closing
from pathlib import Path

import pytest
import zmq

from dispatch.commands.client import ask_members
from dispatch.commands.server import ControlSocket
from dispatch.errors import NoAnswer
from infra.base.wire import load_curve, write_curve

SECONDS = 2.0


def test_a_process_with_keys_is_not_waited_for_without_them(tmp_path: Path) -> None:
    write_curve(tmp_path, ["server"])
    curve = load_curve(tmp_path, "server")
    with (
        zmq.Context() as context,
        closing(ControlSocket(context, "tcp://127.0.0.1:*", "r", curve)) as control,
        pytest.raises(NoAnswer, match=f"nobody answers at {control.endpoint} within 2 seconds") as told,
    ):
        ask_members(control.endpoint, "r", timeout_seconds=SECONDS)
    assert "without keys" in str(told.value)


def test_nobody_there_is_not_waited_for() -> None:
    with pytest.raises(NoAnswer, match="expected a process of run 'r' there"):
        ask_members("tcp://127.0.0.1:1", "r", timeout_seconds=SECONDS)
