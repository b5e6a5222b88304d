"""What many tests of a cluster do first and last: a topic of one partition, with these replicas; all of them alike."""

import itertools
from collections.abc import Iterable
from typing import Any

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from ottla import Admin
from ottla.client.metadata import TopicPartition
from tests.cluster.running_cluster import PATIENCE_S, PartitionState, RunningCluster

_NUMBERS = itertools.count()

#: librdkafka tells of every broker that goes away; here they do.
QUIET: dict[str, Any] = {"log_level": 0}


def admin_of(cluster: RunningCluster, *via: int) -> AdminClient:
    """A client that knows these brokers at first, or all."""
    addresses = ",".join(cluster.nodes[node].address for node in via) or cluster.bootstrap
    return AdminClient({"bootstrap.servers": addresses, **QUIET})


def new_topic(
    cluster: RunningCluster, replicas: Iterable[int] = (1, 2, 3), *more: Iterable[int], **config: str
) -> str:
    """A topic whose partitions have these replicas, led by the first; all of them in sync."""
    topic = f"t{next(_NUMBERS)}"
    assignment = [list(each) for each in (replicas, *more)]
    settings = {name.replace("_", "."): value for name, value in config.items()}
    admin = admin_of(cluster)
    made = admin.create_topics(
        [NewTopic(topic, len(assignment), replica_assignment=assignment, config=settings)]
    )
    made[topic].result(PATIENCE_S)
    for number, members in enumerate(assignment):
        for via in cluster.running():
            cluster.wait_in_sync(topic, via, members, [number])
    return topic


def controller_of(cluster: RunningCluster) -> int:
    via = cluster.running()[0]
    cluster.wait_until(lambda: cluster.controller(via) > 0, "somebody controls")
    return cluster.controller(via)


def controller_first(cluster: RunningCluster) -> tuple[int, int, int]:
    """The controller, and two that may stand still without anybody's missing what only it can do."""
    controller = controller_of(cluster)
    one, other = (node for node in cluster.nodes if node != controller)
    return controller, one, other


def state_of(cluster: RunningCluster, topic: str, via: int = 0, number: int = 0) -> PartitionState:
    state = cluster.partition(topic, via or cluster.running()[0], number)
    assert state is not None, f"{topic}-{number} is not known"
    return state


def wait_led_by(cluster: RunningCluster, topic: str, leader: int, via: int = 0, number: int = 0) -> None:
    via = via or cluster.running()[0]

    def is_led() -> bool:
        state = cluster.partition(topic, via, number)
        return state is not None and state.leader == leader

    cluster.wait_until(is_led, f"{topic} is led by {leader}")


def lead_by_preference(cluster: RunningCluster, topic: str, partitions: int) -> None:
    """Whoever was away leads again what it should lead, and everybody knows."""
    cluster.wait_in_sync(topic, 1, (1, 2, 3), range(partitions))
    with Admin(cluster.bootstrap) as admin:
        admin.elect_leaders([TopicPartition(topic, number) for number in range(partitions)])
    for via in (1, 2, 3):
        cluster.wait_until(
            lambda via=via: all(
                each.leader == each.replicas[0] for each in cluster.partitions(topic, via).values()
            ),
            "the preferred replicas lead",
        )


def write(cluster: RunningCluster, topic: str, *values: bytes, number: int = 0, **settings: Any) -> list[int]:
    """Their offsets; acknowledged by all that are in sync. Raises what the producer hears."""
    names = {name.replace("_", "."): value for name, value in settings.items()}
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all", **QUIET, **names})
    offsets: list[int] = []
    errors: list[Any] = []

    def delivered(error: Any, message: Any) -> None:
        if error is None:
            offsets.append(message.offset())
        else:
            errors.append(error)

    for value in values:
        producer.produce(topic, value, partition=number, on_delivery=delivered)
    assert producer.flush(PATIENCE_S) == 0
    if errors:
        raise KafkaException(errors[0])
    return offsets


def wait_alike(
    cluster: RunningCluster, topic: str, members: Iterable[int] = (1, 2, 3), number: int = 0
) -> None:
    """Until all replicas are in sync again and have the same bytes."""
    wanted = tuple(members)
    cluster.wait_in_sync(topic, wanted[0], wanted, [number])
    cluster.wait_until(
        lambda: len({cluster.log_bytes(node, topic, number) for node in wanted}) == 1,
        f"the replicas of {topic} are alike to the byte",
    )
    assert cluster.log_bytes(wanted[0], topic, number)


def stall_of(times: list[float], since_s: float) -> float:
    """The longest time between two acknowledgements from then on."""
    later = [since_s, *(each for each in list(times) if each >= since_s)]
    return max((after - before for before, after in itertools.pairwise(later)), default=0.0)
