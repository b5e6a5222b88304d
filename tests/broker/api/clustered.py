"""A core among others: broker 1 controls, and 2 to 4 are known to it as records only."""

from typing import Any

from ottla.metadata import records as r
from ottla.ports.store import Registration

T = b"t" * 16


def part(number: int, *replicas: int, **more: Any) -> r.Partition:
    fields = {"isr": replicas, "leader": replicas[0], **more}
    return r.Partition(T, number, replicas, **fields)


def join_cluster(driver: Any, *partitions: r.Partition, fenced: tuple[int, ...] = ()) -> None:
    """Make this core the controller of a cluster with the topic `t`; broker N lives in epoch N."""
    broker = driver.broker
    broker.clustered = True
    membership = broker.lifecycle
    membership.controller_id, membership.controller_epoch = 1, 7
    membership.live = {
        node: Registration(node, f"h{node}", 9092, None, (), "i", True, node)
        for node in (1, 2, 3, 4)
        if node not in fenced
    }
    me = broker.image.brokers[1]
    broker.committed(
        [
            me._replace(epoch=1),
            *(
                r.BrokerRegistration(node, node, f"h{node}", 9092, fenced=node in fenced)
                for node in (2, 3, 4)
            ),
            r.Topic("t", T),
            r.Config(2, "t", "min.insync.replicas", "2"),
            *partitions,
        ],
        driver.now_ms,
    )
    broker.controller_driver.take_over(7, driver.now_ms)
    driver.turn()


def partition(driver: Any, number: int = 0) -> r.Partition:
    found: r.Partition = driver.broker.image.topics["t"].partitions[number]
    return found
