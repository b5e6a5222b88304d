"""An admin client: creates and deletes topics, recreates them under the same name, deletes records, and moves
partitions between log directories.

When its connection breaks, the outcome of its request is unknown; it requests metadata until it knows. Until
then no client relies on the topic.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from ottla.model.api_key import ApiKey
from ottla.model.errors import ErrorCode
from testkit.checkers.partition import Anomaly
from testkit.sim.clients import Client, Shared, Topic

_TOPICS_MAX: Final = 3
#: Log start offsets that retention may reach: any.
_ANY_START: Final = 1 << 62


class Kind(NamedTuple):
    """A name, and the properties of its topics."""

    name: str
    partitions: int
    is_durable: bool
    configs: dict[str, str]


class Admin(Client):
    def __init__(
        self, shared: Shared, kinds: list[Kind], *, log_dirs: tuple[str, ...], pause_ms: int
    ) -> None:
        super().__init__(shared, "admin")
        self._kinds = kinds
        self._log_dirs = log_dirs
        self._pause_ms = pause_ms
        #: Names whose last request has no response.
        self.unknown: dict[str, Kind] = {}
        self._generation = 0

    def connected(self) -> None:
        self._generation += 1
        # A request of the previous connection may still be on its way to the metadata log.
        self._soon(500 if self.unknown else 1, self._look)

    def _soon(self, delay_ms: int, action: Callable[[], None]) -> None:
        generation = self._generation
        self.world.later(
            delay_ms, lambda: action() if generation == self._generation and self.is_connected else None
        )

    def _look(self) -> None:
        if not self.unknown:
            self._soon(1 + self.world.below(self._pause_ms), self._act)
            return

        def answered(response: Any) -> None:
            ids = {topic.name: topic.topic_id.bytes for topic in response.topics}
            for kind in self.unknown.values():
                for topic in self.shared.topics.values():
                    if topic.name == kind.name and ids.get(kind.name) == topic.topic_id:
                        topic.live = True
                if kind.name in ids and ids[kind.name] not in self.shared.topics:
                    self._adopt(kind, ids[kind.name])
            self.unknown.clear()
            self._look()

        self.request(ApiKey.METADATA, {"topics": None}, answered)

    def _adopt(self, kind: Kind, topic_id: bytes) -> None:
        is_compacted = "compact" in kind.configs.get("cleanup.policy", "")
        topic = Topic(
            kind.name, topic_id, kind.partitions, is_durable=kind.is_durable, is_compacted=is_compacted
        )
        self.shared.is_delicate = any(kind.name == before.name for before in self.shared.topics.values())
        if "retention.bytes" in kind.configs:
            for history in topic.partitions:
                history.start_max = _ANY_START
        self.shared.topics[topic_id] = topic
        self.world.log(f"admin: topic {kind.name} is {topic_id.hex()}")

    def _act(self) -> None:
        live = self.shared.live()
        if not self.shared.is_open:
            return
        if len(live) < _TOPICS_MAX and (not live or self.world.chance(0.6)):
            taken = {topic.name for topic in live}
            free = [kind for kind in self._kinds if kind.name not in taken]
            self._create(free[self.world.below(len(free))])
        elif len(self._log_dirs) > 1 and self.world.chance(0.8):
            self._move(live[self.world.below(len(live))])
        elif self.world.chance(0.5):
            self._delete(live[self.world.below(len(live))])
        else:
            self._delete_records(live[self.world.below(len(live))])

    def _create(self, kind: Kind) -> None:
        self.world.log(f"admin: create {kind.name}")
        self.unknown[kind.name] = kind

        def answered(response: Any) -> None:
            row = response.topics[0]
            if row.error_code == 0:
                del self.unknown[kind.name]
                self._adopt(kind, row.topic_id.bytes)
            elif row.error_code == ErrorCode.TOPIC_ALREADY_EXISTS:
                raise Anomaly("deletion-lost", f"{kind.name} was deleted, yet it exists")
            self._look()

        configs = [{"name": name, "value": value} for name, value in kind.configs.items()]
        topic = {
            "name": kind.name, "num_partitions": kind.partitions, "replication_factor": 1,
            "assignments": [], "configs": configs,
        }  # fmt: skip
        self.request(ApiKey.CREATE_TOPICS, {"topics": [topic]}, answered)

    def _delete(self, topic: Topic) -> None:
        self.world.log(f"admin: delete {topic.name} {topic.topic_id.hex()}")
        kind = next(kind for kind in self._kinds if kind.name == topic.name)
        self.unknown[topic.name] = kind
        topic.live = False

        def answered(response: Any) -> None:
            if response.responses[0].error_code == 0:
                self.world.log(f"admin: {topic.name} {topic.topic_id.hex()} is deleted")
                del self.unknown[topic.name]
                if self.shared.is_open and self.world.chance(0.5):
                    self._create(kind)
                    return
            self._look()

        self.request(
            ApiKey.DELETE_TOPICS,
            {"topics": [{"name": None, "topic_id": topic.topic_id}], "timeout": 1000},
            answered,
        )

    def _move(self, topic: Topic) -> None:
        at = self.world.below(len(topic.partitions))
        path = self._log_dirs[self.world.below(len(self._log_dirs))]
        self.world.log(f"admin: move {topic.name}-{at} to {path}")
        self.shared.is_delicate = True

        def answered(response: Any) -> None:
            code = response.results[0].partitions[0].error_code
            if code not in (0, ErrorCode.KAFKA_STORAGE_ERROR):
                raise Anomaly("move-refused", f"{topic.name}-{at} to {path}: {code}")
            self._look()

        topics = [{"name": topic.name, "partitions": [at]}]
        self.request(ApiKey.ALTER_REPLICA_LOG_DIRS, {"dirs": [{"path": path, "topics": topics}]}, answered)

    def _delete_records(self, topic: Topic) -> None:
        at = self.world.below(len(topic.partitions))
        history = topic.partitions[at]
        offset = self.world.below(history.end_offset_min + 1)
        history.start_max = max(history.start_max, offset)
        self.world.log(f"admin: delete records of {history.name} before {offset}")
        partitions = [{"partition_index": at, "offset": offset}]
        self.request(
            ApiKey.DELETE_RECORDS,
            {"topics": [{"name": topic.name, "partitions": partitions}], "timeout": 1000},
            lambda _: self._look(),
        )
