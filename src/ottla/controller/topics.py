"""Topic changes: the records that create a topic, add partitions or delete it.

Pure functions of the image and the request's values. They raise `Refusal` with the protocol's error code and
a message; the caller answers it for that topic only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from ottla.config.broker import BrokerConfig
from ottla.config.definition import InvalidConfig
from ottla.config.topic import validate
from ottla.controller.replica_placement import check_replicas, spread
from ottla.metadata import records as r
from ottla.metadata.image import NO_CONFIG, TOPIC_RESOURCE, Image
from ottla.model.errors import ErrorCode, Refusal
from ottla.model.limits import (
    PARTITIONS_PER_REQUEST_MAX,
    PARTITIONS_PER_TOPIC_MAX,
    REPLICAS_PER_BROKER_MAX,
    TOPICS_MAX,
)
from ottla.model.names import collides, topic_name_problem
from ottla.ports.entropy import Entropy

NO_ASSIGNMENTS: Mapping[int, Sequence[int]] = {}
#: The cost of a topic in addition to its partitions (see `model/steps.py`).
TOPIC_COST: Final = 10


class Drafts:
    """The topics of one request, with different names. Each is decided on top of those before it.

    The image is not copied per topic. All topics together may have `PARTITIONS_PER_REQUEST_MAX` new
    partitions, so that a large request does not block others.
    """

    def __init__(self, image: Image, broker: BrokerConfig, entropy: Entropy) -> None:
        self._broker = broker
        self._entropy = entropy
        self._partitions_left = PARTITIONS_PER_REQUEST_MAX
        #: Drafts that are not in the image yet.
        self._topics_drafted = self._replicas_drafted = 0
        #: Replicas by broker, computed once when a manual assignment needs them.
        self._by_broker: Counter[int] | None = None
        self._use(image)

    def rebase(self, image: Image, *, with_drafts: bool) -> None:
        """Use a later image. It has the drafts so far, unless `with_drafts` is set."""
        flat_names = self._flat_names
        if not with_drafts:
            self._topics_drafted = self._replicas_drafted = 0
        self._use(image)
        if with_drafts:
            self._flat_names.update(flat_names)

    def _use(self, image: Image) -> None:
        self._flat_names = dict(image.flat_names)
        self._image = image._replace(flat_names=self._flat_names)
        self._topics_left = TOPICS_MAX - len(image.topics) - self._topics_drafted
        self._replicas_left = len(image.brokers) * REPLICAS_PER_BROKER_MAX - sum(
            len(topic.partitions) * len(topic.partitions[0].replicas)
            for topic in image.topics.values()
            if topic.partitions
        )
        self._replicas_left -= self._replicas_drafted

    def create(
        self,
        name: str,
        *,
        partitions: int = -1,
        replication_factor: int = -1,
        assignments: Mapping[int, Sequence[int]] = NO_ASSIGNMENTS,
        configs: Mapping[str, str] = NO_CONFIG,
    ) -> list[r.Record]:
        count = len(assignments) or (self._broker.num_partitions if partitions == -1 else partitions)
        self._check_count(count)
        made = create(
            self._image, self._broker, self._entropy,
            name=name, partitions=partitions, replication_factor=replication_factor,
            assignments=assignments, configs=configs,
        )  # fmt: skip
        if self._topics_left <= 0:
            raise Refusal(
                ErrorCode.POLICY_VIOLATION,
                f"the cluster has {TOPICS_MAX} topics, which is the limit: delete some first",
            )
        self._add(made[-1], is_manual=bool(assignments))
        self._topics_left -= 1
        self._topics_drafted += 1
        if "." in name or "_" in name:
            self._flat_names[collides(name)] = name
        return made

    def widen(self, name: str, count: int, assignments: Sequence[Sequence[int]] | None) -> list[r.Record]:
        topic = self._image.topics.get(name)
        self._check_count(count - (0 if topic is None else len(topic.partitions)))
        made = widen(
            self._image, self._broker, self._entropy, name=name, count=count, assignments=assignments
        )
        self._add(made[-1], is_manual=assignments is not None)
        return made

    def _check_count(self, count: int) -> None:
        if self._partitions_left < count <= PARTITIONS_PER_REQUEST_MAX:
            raise Refusal(
                ErrorCode.POLICY_VIOLATION,
                f"one request may create {PARTITIONS_PER_REQUEST_MAX} partitions: these {count} exceed that",
            )

    def _add(self, made: r.Record, *, is_manual: bool) -> None:
        """Add new partitions, or refuse them if brokers would have too many replicas."""
        assert isinstance(made, r.NewPartitions)
        added = Counter(node for replicas in made.replicas for node in replicas)
        if added.total() > self._replicas_left:
            raise Refusal(
                ErrorCode.POLICY_VIOLATION,
                f"{added.total()} more replicas would be more than {REPLICAS_PER_BROKER_MAX} per broker",
            )
        if is_manual:
            if self._by_broker is None:
                self._by_broker = Counter(
                    node
                    for topic in self._image.topics.values()
                    for partition in topic.partitions
                    for node in partition.replicas
                )
            for node, count in added.items():
                if self._by_broker[node] + count > REPLICAS_PER_BROKER_MAX:
                    raise Refusal(
                        ErrorCode.POLICY_VIOLATION,
                        f"broker {node} has {self._by_broker[node]} replicas, {count} more would be more than {REPLICAS_PER_BROKER_MAX}",
                    )
        if self._by_broker is not None:
            self._by_broker.update(added)
        self._replicas_left -= added.total()
        self._replicas_drafted += added.total()
        self._partitions_left -= len(made.replicas)


def partitions_of(made: Sequence[r.Record]) -> int:
    """The number of new partitions in these records of one topic."""
    return sum(len(record.replicas) for record in made[-1:] if isinstance(record, r.NewPartitions))


def create(
    image: Image,
    broker: BrokerConfig,
    entropy: Entropy,
    *,
    name: str,
    partitions: int,
    replication_factor: int,
    assignments: Mapping[int, Sequence[int]],
    configs: Mapping[str, str],
) -> list[r.Record]:
    """The records of a new topic. -1 partitions or replicas means the broker's default."""
    problem = topic_name_problem(name)
    if problem is not None:
        raise Refusal(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)
    if name in image.topics:
        raise Refusal(ErrorCode.TOPIC_ALREADY_EXISTS, f"topic '{name}' already exists")
    other = image.collision(name)
    if other is not None:
        raise Refusal(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"topic '{name}' collides with '{other}': names may not differ in '.' and '_' alone",
        )
    try:
        validate(configs, broker)
    except InvalidConfig as error:
        raise Refusal(ErrorCode.INVALID_CONFIG, str(error)) from error
    placed = (
        _given(image, assignments, partitions, replication_factor)
        if assignments
        else place(image, broker, entropy, partitions, replication_factor, first=0)
    )
    topic_id = entropy.id_bytes()
    made: list[r.Record] = [r.Topic(name, topic_id)]
    made += [r.Config(TOPIC_RESOURCE, name, key, value) for key, value in configs.items()]
    made.append(_partitions(image, topic_id, 0, placed))
    return made


def widen(
    image: Image,
    broker: BrokerConfig,
    entropy: Entropy,
    *,
    name: str,
    count: int,
    assignments: Sequence[Sequence[int]] | None,
) -> list[r.Record]:
    """The records that give a topic more partitions."""
    topic = image.topics.get(name)
    if topic is None:
        raise Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic '{name}' does not exist")
    present = len(topic.partitions)
    if count <= present:
        raise Refusal(
            ErrorCode.INVALID_PARTITIONS,
            f"topic '{name}' has {present} partitions; {count} is not more, and partitions cannot be removed",
        )
    if count > PARTITIONS_PER_TOPIC_MAX:
        raise Refusal(
            ErrorCode.INVALID_PARTITIONS,
            f"a topic has at most {PARTITIONS_PER_TOPIC_MAX} partitions, not {count}",
        )
    factor = len(topic.partitions[0].replicas)
    if assignments is not None:
        if len(assignments) != count - present:
            raise Refusal(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"{count - present} partitions are new, but {len(assignments)} assignments were given",
            )
        placed = _given(image, dict(enumerate(assignments)), -1, -1)
        if len(placed[0]) != factor:
            raise Refusal(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"the partitions of topic '{name}' have {factor} replicas, those given {len(placed[0])}",
            )
    else:
        placed = place(image, broker, entropy, count - present, factor, first=present)
    return [_partitions(image, topic.topic_id, present, placed)]


def place(
    image: Image,
    broker: BrokerConfig,
    entropy: Entropy,
    partitions: int,
    replication_factor: int,
    *,
    first: int,
) -> list[list[int]]:
    """Replicas for new partitions, numbered from `first` on; -1 means the broker's default."""
    partitions = broker.num_partitions if partitions == -1 else partitions
    factor = broker.default_replication_factor if replication_factor == -1 else replication_factor
    if not 1 <= partitions <= PARTITIONS_PER_REQUEST_MAX:
        raise Refusal(
            ErrorCode.INVALID_PARTITIONS,
            f"the number of partitions must be between 1 and {PARTITIONS_PER_REQUEST_MAX}, not {partitions}",
        )
    return spread(image, entropy, partitions=partitions, factor=factor, first=first)


def _given(
    image: Image, assignments: Mapping[int, Sequence[int]], partitions: int, replication_factor: int
) -> list[list[int]]:
    if partitions != -1 or replication_factor != -1:
        raise Refusal(
            ErrorCode.INVALID_REQUEST,
            "with a replica assignment the number of partitions and the replication factor must be -1",
        )
    if len(assignments) > PARTITIONS_PER_REQUEST_MAX:
        raise Refusal(
            ErrorCode.INVALID_PARTITIONS,
            f"one request may create {PARTITIONS_PER_REQUEST_MAX} partitions, not {len(assignments)}",
        )
    if sorted(assignments) != list(range(len(assignments))):
        raise Refusal(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "the assigned partitions must be numbered from 0 without a gap",
        )
    placed = [list(assignments[number]) for number in range(len(assignments))]
    for replicas in placed:
        check_replicas(image, replicas)
        if len(replicas) != len(placed[0]):
            raise Refusal(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT, "every partition needs the same number of replicas"
            )
        if not any(map(image.is_live, replicas)):
            raise Refusal(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"none of the brokers {', '.join(map(str, replicas))} is live: the partition would have no leader",
            )
    return placed


def _partitions(
    image: Image, topic_id: bytes, first: int, placed: Sequence[Sequence[int]]
) -> r.NewPartitions:
    chosen = {node for replicas in placed for node in replicas}
    away = tuple(sorted(node for node in chosen if not image.is_live(node)))
    return r.NewPartitions(topic_id, first, tuple(tuple(replicas) for replicas in placed), away)
