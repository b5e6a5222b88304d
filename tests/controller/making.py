"""Small clusters for the tests of the controller's decisions."""

from collections.abc import Iterable

from ottla.config.broker import BrokerConfig
from ottla.controller.leader_election import Rules
from ottla.metadata import records as r
from ottla.metadata.image import TOPIC_RESOURCE, Image
from ottla.ports.store import Registration

CONFIG = BrokerConfig.from_properties(
    {"log.dirs": "/nowhere", "node.id": "1", "log.flush.policy": "page-cache"}
)
T = b"t" * 16
PAGE_CACHE = Rules(min_isr=2, unclean=False, durable=False)


def registration(node: int, epoch: int | None = None, *, clean: bool = True) -> Registration:
    return Registration(
        node, f"h{node}", 9092, None, (f"d{node}",), "i", clean, node if epoch is None else epoch
    )


def living(*nodes: int) -> dict[int, Registration]:
    """Registrations in the lives that `cluster` knows."""
    return {node: registration(node) for node in nodes}


def part(
    replicas: Iterable[int] = (1, 2, 3),
    isr: Iterable[int] | None = None,
    leader: int | None = None,
    **more: object,
) -> r.Partition:
    replicas = tuple(replicas)
    isr = replicas if isr is None else tuple(isr)
    chosen = (isr[0] if isr else -1) if leader is None else leader
    fields = {"leader_epoch": 5, "partition_epoch": 9, **more}
    return r.Partition(T, 0, replicas, isr, chosen, **fields)  # type: ignore[arg-type]  # as the caller gives them


def cluster(
    *partitions: r.Partition,
    brokers: Iterable[int] = (1, 2, 3, 4),
    fenced: Iterable[int] = (),
    stopping: Iterable[int] = (),
    settings: dict[str, str] | None = None,
) -> Image:
    """Brokers, each in the life of its own number, and the topic `t`: page cache, min ISR 2 unless it is set."""
    made: list[r.Record] = [
        r.BrokerRegistration(
            node,
            node,
            f"h{node}",
            9092,
            fenced=node in fenced,
            stopping=node in stopping,
            directories=(f"d{node}",),
        )
        for node in brokers
    ]
    made.append(r.Topic("t", T))
    made += [
        r.Config(TOPIC_RESOURCE, "t", name, value)
        for name, value in {"min.insync.replicas": "2", **(settings or {})}.items()
    ]
    made += [each._replace(partition=at) for at, each in enumerate(partitions)]
    return Image().apply(made)


def only(image: Image) -> r.Partition:
    return image.topics["t"].partitions[0]


def state(partition: r.Partition) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    """What most tests look at: leader, ISR, eligible."""
    return partition.leader, partition.isr, partition.eligible


def after(old: r.Partition, new: r.Partition) -> tuple[int, int]:
    """By how much the leader's and the partition's epochs grew."""
    return new.leader_epoch - old.leader_epoch, new.partition_epoch - old.partition_epoch
