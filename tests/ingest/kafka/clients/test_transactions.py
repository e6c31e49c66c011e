"""What the library raises becomes an error of ours that says what to do."""

import pytest
from kafka.errors import KafkaError, KafkaTimeoutError, ProducerFencedError, TopicAuthorizationFailedError

from ingest.errors import TransactionFailed, TransactionFenced, TransactionRefused
from ingest.kafka.clients.transactions import _translated


@pytest.mark.parametrize(
    ("raised", "kind"),
    [
        (ProducerFencedError(), TransactionFenced),
        (KafkaError("a request before has failed", ProducerFencedError()), TransactionFenced),
        (KafkaTimeoutError("not now"), TransactionFailed),
        (TopicAuthorizationFailedError(), TransactionRefused),
    ],
)
def test_errors_are_told_apart(raised: KafkaError, kind: type[TransactionFailed]) -> None:
    with pytest.raises(TransactionFailed) as caught, _translated():
        raise raised
    assert type(caught.value) is kind
