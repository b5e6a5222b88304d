"""That nothing waits for ever, on Apache Kafka: the tests of `tests/client/producer/test_no_hangs.py`, with another server.

And what it makes of requests that come again, after their answers were lost.
"""

from collections.abc import Iterator

import pytest

import ottla
from bench.kafka import fetch
from tests.broker_proxy import PRODUCE, Proxy
from tests.client.producer.behaviours import read_all
from tests.client.producer.test_no_hangs import *  # noqa: F403 (every test of it is one of this file)
from tests.client.producer.test_no_hangs import PATIENCE_S
from tests.running_broker import topic_name

__all__ = ["topic_name"]

END = 26


@pytest.fixture
def address(proxy: Proxy) -> str:
    return proxy.address


@pytest.fixture(scope="module")
def network(java: object, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    with Proxy() as proxy:
        settings = {"advertised.listeners": proxy.advertised}
        kafka = fetch().start(tmp_path_factory.mktemp("kafka"), port=proxy.target_port, settings=settings)
        try:
            kafka.wait_ready()
            yield proxy
        finally:
            kafka.stop()


@pytest.fixture
def ottla_address(network: Proxy) -> str:
    return network.address


@pytest.mark.parametrize("level", [2, 99])
def test_an_end_whose_answer_was_lost_is_asked_for_again(
    proxy: Proxy, topic_name: str, level: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With version 2 the epoch has moved on by then; the coordinator knows the one before."""
    from ottla.client.producer import transactions

    monkeypatch.setattr(transactions, "IMPLICIT_LEVEL", level)
    with ottla.Producer(proxy.address, transactional_id=f"{topic_name}-{level}") as producer:
        for number in range(3):
            with producer.transaction():
                producer.send(topic_name, b"%d" % number)
                producer.flush(PATIENCE_S)
                proxy.lose_answers(END)
        producer.begin()
        producer.send(topic_name, b"no")
        proxy.lose_answers(END)
        producer.abort()
        proxy.lose_answers(PRODUCE)
        with producer.transaction():
            producer.send(topic_name, b"3")
    assert [message.value() for message in read_all(proxy.address, topic_name)[0]] == [b"0", b"1", b"2", b"3"]
