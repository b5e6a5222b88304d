"""Members of our own client in groups with the others': under their leader, as leader of them, and both on the consumer protocol."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.clients.adapters import Confluent
from tests.clients.conftest import BrokerProcess
from tests.clients.subscribers import (
    AioKafkaSubscriber,
    ConfluentFollower,
    ConfluentSubscriber,
    KafkaPythonSubscriber,
    OttlaFollower,
    OttlaSubscriber,
    eventually,
    fill,
    have_all,
    places,
)

PAIRS = [
    (ConfluentSubscriber, OttlaSubscriber, "cooperative-sticky"),
    (KafkaPythonSubscriber, OttlaSubscriber, "sticky"),
    (AioKafkaSubscriber, OttlaSubscriber, "range"),
    (ConfluentFollower, OttlaFollower, "uniform"),
]


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker whose groups do not wait long for anybody."""
    process = BrokerProcess(
        tmp_path_factory.mktemp("mixed") / "data", group_initial_rebalance_delay_ms="100",
        group_consumer_min_heartbeat_interval_ms="200", group_consumer_heartbeat_interval_ms="200",
        auto_create_topics_enable="false",
    )  # fmt: skip
    yield process
    process.close()


@pytest.mark.parametrize(
    ("theirs", "ours", "assignor"), PAIRS, ids=[f"{pair[0].name}-{pair[2]}" for pair in PAIRS]
)
def test_ours_and_theirs_share_whoever_leads(
    quick: BrokerProcess, topic: str, group: str, theirs: Any, ours: Any, assignor: str
) -> None:
    client = Confluent(quick.address)
    client.create(topic, 4)
    fill(client, topic, 4, 0, 5)
    everything = places(topic, 4)

    def shared() -> bool:
        return have_all(members, *everything) and all(len(each.parts) == 2 for each in members)

    members = [theirs(quick.address, group, topic, assignor=assignor)]
    try:
        eventually(lambda: have_all(members, *everything), "theirs has all")
        members.append(ours(quick.address, group, topic, assignor=assignor))
        eventually(shared, "each has two under their leader")
        members.pop(0).close()
        eventually(lambda: have_all(members, *everything), "ours has all")
        members.append(theirs(quick.address, group, topic, assignor=assignor))
        eventually(shared, "each has two under ours")
        fill(client, topic, 4, 5, 10)
        eventually(
            lambda: {at[:3] for each in members for at in each.seen} >= {(topic, n, 9) for n in range(4)},
            "they read it all",
        )
    finally:
        for member in members:
            member.close()
