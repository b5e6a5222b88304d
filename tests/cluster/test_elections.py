"""Elections that somebody wants: an unclean one by a setting or by hand, the preferred leader by hand or by the clock (E6, E8)."""

from collections.abc import Callable

import pytest
from confluent_kafka import ElectionType, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from tests.cluster.load import read_all
from tests.cluster.running_cluster import PATIENCE_S, RunningCluster
from tests.cluster.topics import admin_of, new_topic, state_of, wait_alike, wait_led_by, write


def elect(cluster: RunningCluster, kind: ElectionType, topic: str) -> KafkaError | None:
    admin = admin_of(cluster, *cluster.running())
    where = TopicPartition(topic, 0)
    results = admin.elect_leaders(kind, [where]).result(PATIENCE_S)
    error: KafkaError | None = results[where]
    return error


def alter(admin: AdminClient, kind: ResourceType, name: str, setting: str, value: str) -> None:
    entry = ConfigEntry(setting, value, incremental_operation=AlterConfigOpType.SET)
    [done] = admin.incremental_alter_configs(
        [ConfigResource(kind, name, incremental_configs=[entry])]
    ).values()
    done.result(PATIENCE_S)


def only_the_stale_one_lives(cluster: RunningCluster) -> str:
    """A topic on 1 and 2 of which the live replica, 2, lacks what was written last."""
    topic = new_topic(cluster, (1, 2))
    write(cluster, topic, *(b"%d" % value for value in range(10)))
    cluster.kill(2)
    cluster.wait_in_sync(topic, 1, [1])
    write(cluster, topic, *(b"%d" % value for value in range(10, 20)))
    cluster.kill(1)
    wait_led_by(cluster, topic, -1, via=3)
    cluster.restart(2)
    # It is there and it is asked for, but it is not in sync.
    cluster.wait_until(lambda: state_of(cluster, topic, 3).offline == (1,), "2 is known to live")
    assert state_of(cluster, topic, 3).leader == -1
    with pytest.raises(KafkaException):
        write(cluster, topic, b"-1", message_timeout_ms=500)
    return topic


@pytest.mark.parametrize("by_setting", [True, False], ids=["by setting", "by hand"])
def test_an_unclean_election_gives_up_what_only_the_dead_have(
    shared: RunningCluster, by_setting: bool
) -> None:
    topic = only_the_stale_one_lives(shared)
    if by_setting:
        alter(admin_of(shared, 3), ResourceType.TOPIC, topic, "unclean.leader.election.enable", "true")
    else:
        assert elect(shared, ElectionType.PREFERRED, topic) is not None
        assert elect(shared, ElectionType.UNCLEAN, topic) is None
    wait_led_by(shared, topic, 2, via=3)
    assert state_of(shared, topic, 3).isr == (2,)
    write(shared, topic, *(b"%d" % value for value in range(100, 110)))
    # The old leader's longer history is cut back to where the two agree.
    shared.restart(1)
    wait_alike(shared, topic, (1, 2))
    assert list(read_all(shared, topic, 20).values()) == [*range(10), *range(100, 110)]


def test_an_unclean_election_is_not_made_where_somebody_leads(shared: RunningCluster) -> None:
    topic = new_topic(shared, (1, 2))
    error = elect(shared, ElectionType.UNCLEAN, topic)
    assert error is not None and error.code() == KafkaError.ELECTION_NOT_NEEDED


def test_the_preferred_leader_leads_again_on_demand(shared: RunningCluster) -> None:
    topic = new_topic(shared, (1, 2, 3))
    shared.stop(1)
    wait_led_by(shared, topic, 2, via=3)
    error = elect(shared, ElectionType.PREFERRED, topic)
    assert error is not None and error.code() == KafkaError.PREFERRED_LEADER_NOT_AVAILABLE
    shared.restart(1)
    shared.wait_in_sync(topic, 3, (1, 2, 3))
    assert state_of(shared, topic, 3).leader == 2, "a leader that serves is not replaced by itself"
    assert elect(shared, ElectionType.PREFERRED, topic) is None
    wait_led_by(shared, topic, 1, via=3)
    assert state_of(shared, topic, 3).isr == (1, 2, 3)


def test_preferred_leaders_lead_again_after_a_while(start_cluster: Callable[..., RunningCluster]) -> None:
    cluster = start_cluster(2, leader_imbalance_check_interval_seconds="1")
    topic = new_topic(cluster, (1, 2), (2, 1))
    for stopped, other in ((1, 2), (2, 1)):
        cluster.stop(stopped)
        for number in (0, 1):
            wait_led_by(cluster, topic, other, other, number)
        cluster.restart(stopped)
        for number, leader in enumerate((1, 2)):
            wait_led_by(cluster, topic, leader, other, number)
