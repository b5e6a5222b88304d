"""An admin client of a cluster: creates and deletes topics, elects preferred leaders, reassigns replicas.

It asks any broker, and often does not learn the outcome. A topic exists once the metadata has it. A topic
whose deletion was requested is ignored. If the deletion was acknowledged, the topic must be gone at the end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from ottla.model.api_key import ApiKey
from ottla.model.errors import ErrorCode
from testkit.checkers.partition import Anomaly
from testkit.sim.actors import Actor, Common
from testkit.sim.clients import Topic

_TOPICS_MAX: Final = 3
_PARTITIONS_MAX: Final = 4


class ClusterKind(NamedTuple):
    """The properties of the topics of a name."""

    name: str
    partitions: int
    replicas: int
    is_durable: bool
    configs: dict[str, str]


class ClusterAdmin(Actor):
    def __init__(
        self, common: Common, kinds: list[ClusterKind], *, pause_ms: int, grows: bool = False
    ) -> None:
        super().__init__(common, "admin")
        #: Whether topics get more partitions.
        self._grows = grows
        self._kinds = {kind.name: kind for kind in kinds}
        self._pause_ms = pause_ms
        #: Topics whose deletion was acknowledged.
        self.deleted: dict[bytes, None] = {}

    def begin(self) -> None:
        self._create(next(iter(self._kinds.values())))

    def _next(self, delay_ms: int | None = None) -> None:
        pause_ms = 500 + self.world.below(self._pause_ms) if delay_ms is None else delay_ms
        self.world.later(pause_ms, lambda: self.refresh(self._act))

    def _act(self) -> None:
        self.adopt()
        if not self.common.is_open:
            return
        live = self.common.live()
        choice = self.world.below(10)
        taken = set(self.ids)
        free = [kind for kind in self._kinds.values() if kind.name not in taken]
        if free and (len(live) < 2 or (len(live) < _TOPICS_MAX and choice < 3)):
            self._create(free[self.world.below(len(free))])
        elif len(live) > 1 and choice < 2:
            self._delete(live[self.world.below(len(live))])
        elif live and self._grows and choice < 4:
            self._grow(live[self.world.below(len(live))])
        elif live and choice < 6:
            self._elect()
        elif live:
            self._move(live[self.world.below(len(live))])
        else:
            self._next()

    def adopt(self) -> None:
        """Add topics that are new in the metadata."""
        for name, topic_id in self.ids.items():
            if topic_id not in self.common.topics and name in self._kinds and topic_id not in self.deleted:
                kind = self._kinds[name]
                topic = Topic(name, topic_id, kind.partitions, is_durable=True, is_compacted=False)
                self.common.topics[topic_id] = topic
                self.world.log(f"admin: topic {name} is {topic_id.hex()} {kind.configs}")
        if self._grows:
            for topic_id, number in self.leaders:
                if topic_id in self.common.topics:
                    self.common.topics[topic_id].grow(number + 1)

    def _create(self, kind: ClusterKind) -> None:
        self.world.log(f"admin: create {kind.name}")

        def answered(response: Any | None) -> None:
            if response is not None:
                self.world.log(f"admin: {kind.name}: {response.topics[0].error_code!r}")
            self._next(100)

        configs = [{"name": name, "value": value} for name, value in kind.configs.items()]
        topic = {
            "name": kind.name, "num_partitions": kind.partitions, "replication_factor": kind.replicas,
            "assignments": [], "configs": configs,
        }  # fmt: skip
        self.ask(self.any_broker(), ApiKey.CREATE_TOPICS, {"topics": [topic]}, answered)

    def _delete(self, topic: Topic) -> None:
        self.world.log(f"admin: delete {topic.name} {topic.topic_id.hex()}")
        topic.live = False

        def answered(response: Any | None) -> None:
            if response is not None and response.responses[0].error_code == 0:
                self.world.log(f"admin: {topic.name} {topic.topic_id.hex()} is deleted")
                self.deleted[topic.topic_id] = None
            self._next()

        topics = [{"name": None, "topic_id": topic.topic_id}]
        self.ask(self.any_broker(), ApiKey.DELETE_TOPICS, {"topics": topics, "timeout": 1000}, answered)

    def _grow(self, topic: Topic) -> None:
        count = len(topic.partitions) + 1
        if count > _PARTITIONS_MAX:
            self._next()
            return
        self.world.log(f"admin: {topic.name} gets {count} partitions")

        def answered(response: Any | None) -> None:
            if response is not None:
                self.world.log(f"admin: {topic.name}: {response.results[0].error_code!r}")
            self._next(100)

        rows = [{"name": topic.name, "count": count, "assignments": None}]
        body = {"topics": rows, "timeout": 1000, "validate_only": False}
        self.ask(self.any_broker(), ApiKey.CREATE_PARTITIONS, body, answered)

    def _elect(self) -> None:
        self.world.log("admin: elect preferred leaders")
        body = {"election_type": 0, "topic_partitions": None, "timeout": 1000}
        self.ask(self.any_broker(), ApiKey.ELECT_LEADERS, body, self._answered("elect"))

    def _move(self, topic: Topic) -> None:
        at = self.world.below(len(topic.partitions))
        brokers = list(self.common.brokers)
        self.world.random.shuffle(brokers)
        replicas = brokers[: self._kinds[topic.name].replicas]
        self.world.log(f"admin: move {topic.name}-{at} to {replicas}")
        rows = [{"partition_index": at, "replicas": replicas}]
        body = {"timeout": 1000, "topics": [{"name": topic.name, "partitions": rows}]}
        self.ask(self.any_broker(), ApiKey.ALTER_PARTITION_REASSIGNMENTS, body, self._answered("move"))

    def _answered(self, what: str) -> Callable[[Any | None], None]:
        def answered(response: Any | None) -> None:
            if response is not None:
                self.world.log(f"admin: {what}: {ErrorCode(response.error_code)!r}")
            self._next()

        return answered

    def check_deleted(self, names: dict[bytes, None]) -> None:
        for topic_id in self.deleted:
            if topic_id in names:
                raise Anomaly("deletion-lost", f"{topic_id.hex()} was deleted, yet it is there")
