"""The transactional producer with ottla's broker. `transactional.py` has the tests for any broker."""

from collections.abc import Callable
from typing import Any

import pytest

import ottla
from ottla.client.errors import KafkaError
from ottla.client.producer import transactions
from tests.client.producer.behaviours import read_all
from tests.client.producer.transactional import *  # noqa: F403
from tests.client.producer.transactional import committed


def test_a_broker_killed_and_started_again_in_the_middle_keeps_all_or_nothing(
    start_broker: Callable[..., Any],
) -> None:
    broker = start_broker()
    port, address = broker.port, broker.address
    with ottla.Admin(address) as admin:
        admin.create_topic("t", 2)
    expected = []
    with ottla.Producer(address, transactional_id="id", retry_backoff_ms=20) as producer:
        for number in range(4):
            producer.begin()
            producer.send("t", b"%d" % number, partition=0)
            if number == 2:
                producer.flush(60)
            producer.send("t", b"%d" % number, partition=1)
            if number == 2:
                broker.kill()
                start_broker(port)
            producer.commit()
            expected.append(b"%d" % number)
    assert committed(address, "t") == expected * 2


def test_a_coordinator_that_stays_away_is_given_up_after_max_block_ms(
    start_broker: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "IMPLICIT_LEVEL", 99)
    broker = start_broker()
    port = broker.port
    producer = ottla.Producer(
        broker.address,
        transactional_id="id",
        max_block_ms=500,
        retry_backoff_ms=20,
        reconnect_backoff_max_ms=50,
    )
    producer.begin()
    producer.send("t", b"v", partition=0).result(30)
    broker.kill()
    with pytest.raises(KafkaError, match=r"refused|did not answer|broke"):
        producer.commit()
    # Whether it happened is unknown: only the same call tells.
    with pytest.raises(KafkaError, match=r"commit\(\) again"):
        producer.abort()
    start_broker(port)
    producer.commit()
    producer.close()
    assert [message.value() for message in read_all(broker.address, "t")[0]] == [b"v"]
