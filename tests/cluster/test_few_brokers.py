"""With most brokers dead: what is enough still serves, and what is not enough says so (E5, E7, R8)."""

import pytest
from confluent_kafka import KafkaError, KafkaException

from tests.cluster.load import Load, read_all
from tests.cluster.running_cluster import RunningCluster
from tests.cluster.topics import new_topic, state_of, wait_alike, wait_led_by, write

ALL = (1, 2, 3)


def test_n_replicas_survive_the_loss_of_all_but_one(shared: RunningCluster) -> None:
    topic = new_topic(shared, (1, 2, 3), min_insync_replicas="1")
    with Load(shared, topic) as load:
        for _ in range(2):
            load.wait_for_more(100)
            leader = state_of(shared, topic).leader
            shared.kill(leader)
            # The next one leads, with everything.
            [*alive] = shared.running()
            shared.wait_in_sync(topic, alive[0], alive)
            load.wait_for_more(100)
        assert len(shared.running()) == 1
        shared.heal()
        load.wait_for_more(50)
    wait_alike(shared, topic)


def test_too_few_in_sync_refuse_writes_until_one_is_back(shared: RunningCluster) -> None:
    topic = new_topic(shared, (1, 2, 3), min_insync_replicas="2")
    with Load(shared, topic) as load:
        load.wait_for_more(100)
        for dead in (2, 3):
            shared.kill(dead)
        shared.wait_in_sync(topic, 1, [1])
        # A client that does not try again hears why. The load does, and waits.
        with pytest.raises(KafkaException) as failed:
            write(shared, topic, b"-1", retries=0)
        assert failed.value.args[0].code() == KafkaError.NOT_ENOUGH_REPLICAS
        # It can still be read.
        assert read_all(shared, topic, 50)[49] == 49
        before = len(load.times)
        shared.restart(2)
        load.wait_for_more(100)
        assert len(load.times) > before
        shared.restart(3)
    wait_alike(shared, topic)


def test_all_are_killed_at_once_and_have_everything_when_they_are_back(shared: RunningCluster) -> None:
    topic = new_topic(shared, (1, 2, 3), min_insync_replicas="2")
    with Load(shared, topic) as load:
        load.wait_for_more(100)
        for dead in (3, 2, 1):
            shared.kill(dead)
        shared.heal()
        load.wait_for_more(100)
    wait_alike(shared, topic)


def test_one_that_left_when_nothing_could_be_committed_any_more_may_lead(shared: RunningCluster) -> None:
    """KIP-966: below min.insync.replicas nothing is committed, so whoever left the ISR then lacks nothing."""
    topic = new_topic(shared, (1, 2, 3), min_insync_replicas="2")
    with Load(shared, topic) as load:
        load.wait_for_more(100)
        shared.stop(3)
        shared.wait_in_sync(topic, 1, (1, 2))
        load.wait_for_more(100)
        # 2 leaves behind only 1, which writes and does not commit; 3 has missed something.
        shared.stop(2)
        shared.wait_in_sync(topic, 1, (1,))
        shared.kill(1)
        shared.restart(3)
        shared.wait_until(lambda: state_of(shared, topic, 3).leader == -1, "1 is known to be dead")
        shared.restart(2)
        wait_led_by(shared, topic, 2, via=3)
        load.wait_for_more(100)
        shared.restart(1)
    wait_alike(shared, topic)
