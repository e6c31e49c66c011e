"""Every message type of every protocol: its fields are bounded, generated messages are readable, malformed ones
refused.
"""

import random

import pytest

from dispatch.commands.protocol import CONTROL
from dispatch.commands.supervision import AGENT, STARTER
from dispatch.feed.protocol import FEED
from dispatch.protocol import FROM_DISPATCHER, TO_DISPATCHER
from infra.base.errors import WireError
from infra.base.wire import Codec, Header
from ps.protocol import FROM_SHARD, TO_SHARD
from tests.malformed import bounded_fields, spoiled_messages, valid_message

PROTOCOLS = {
    "to shard": TO_SHARD,
    "from shard": FROM_SHARD,
    "to dispatcher": TO_DISPATCHER,
    "from dispatcher": FROM_DISPATCHER,
    "commands": CONTROL.requests,
    "answers to commands": CONTROL.answers,
    "readers of the journal": FEED.requests,
    "pages of the journal": FEED.answers,
    "to supervisor": AGENT.requests,
    "from supervisor": AGENT.answers,
    "to starter of runs": STARTER.requests,
    "from starter of runs": STARTER.answers,
}
KINDS = sorted({kind for protocol in PROTOCOLS.values() for kind in protocol}, key=lambda kind: kind.__name__)


@pytest.mark.parametrize("kind", KINDS)
def test_every_field_is_bounded(kind: type[Header]) -> None:
    assert [path for path, is_bounded in bounded_fields(kind) if not is_bounded] == []


@pytest.mark.parametrize("protocol", PROTOCOLS.values(), ids=PROTOCOLS)
def test_a_message_is_read_and_refused_once_it_is_spoiled(
    protocol: tuple[type[Header], ...], fuzz_rounds: int, fuzz_seed: int
) -> None:
    codec, rng = Codec(*protocol), random.Random(fuzz_seed)
    for kind in protocol * fuzz_rounds:
        message = valid_message(kind)
        assert type(codec.decode(message.frames)[0]) is kind
        for spoiled in spoiled_messages(message, rng):
            with pytest.raises(WireError):
                pytest.fail(f"{spoiled} was read as {codec.decode(spoiled.frames)[0]}")
