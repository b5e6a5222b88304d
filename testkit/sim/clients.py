"""A client connection in the simulation, and the topics that the clients of one run share.

Requests are real frames: bodies by the compiled encoders, framing by `wire/frames.py`. A client whose
connection breaks reconnects as soon as there is a node. Its open requests are reported as unanswered.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from ottla.model.api_key import ApiKey
from ottla.wire.decode import decode_response
from ottla.wire.encode import request_encoder
from ottla.wire.frames import ClientConnection
from testkit.checkers.partition import PartitionHistory
from testkit.sim.node import Link, SimNode
from testkit.sim.world import World

#: Request versions: with topic ids if possible, so that a recreated topic is another topic.
VERSIONS: dict[int, int] = {
    ApiKey.PRODUCE: 13, ApiKey.FETCH: 13, ApiKey.LIST_OFFSETS: 7, ApiKey.METADATA: 12,
    ApiKey.CREATE_TOPICS: 7, ApiKey.DELETE_TOPICS: 6, ApiKey.DELETE_RECORDS: 2, ApiKey.INIT_PRODUCER_ID: 4,
    ApiKey.ALTER_REPLICA_LOG_DIRS: 2,
}  # fmt: skip

_RECONNECT_MS = 40


class Topic:
    """A topic as its clients know it. `live` only while it certainly exists."""

    __slots__ = ("_label", "is_compacted", "is_durable", "live", "name", "partitions", "topic_id")

    def __init__(
        self, name: str, topic_id: bytes, count: int, *, is_durable: bool, is_compacted: bool
    ) -> None:
        self.name = name
        self.topic_id = topic_id
        self.live = True
        self.is_compacted = is_compacted
        self.is_durable = is_durable
        self._label = f"{name}/{topic_id.hex()[:4]}"
        self.partitions: list[PartitionHistory] = []
        self.grow(count)

    def grow(self, count: int) -> None:
        """The topic has at least this many partitions."""
        for at in range(len(self.partitions), count):
            name = f"{self._label}-{at}"
            self.partitions.append(
                PartitionHistory(name, is_durable=self.is_durable, is_compacted=self.is_compacted)
            )


class SentBatch(NamedTuple):
    """A batch that a producer has sent, and resends until it is answered."""

    topic: Topic
    partition: int
    values: tuple[bytes, ...]
    sequence: int
    timestamp_ms: int

    @property
    def key(self) -> tuple[bytes, int]:
        return self.topic.topic_id, self.partition


class Shared:
    """State that the clients of one run share: the current node, and the topics by id, in order of creation."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.node: SimNode | None = None
        self.topics: dict[bytes, Topic] = {}
        #: Whether clients begin new work.
        self.is_open = True
        self.producer_ids: dict[int, str] = {}
        #: Whether a crash soon would interrupt something.
        self.is_delicate = False

    def live(self, *, is_durable: bool | None = None) -> list[Topic]:
        return [
            topic
            for topic in self.topics.values()
            if topic.live and is_durable in (None, topic.partitions[0].is_durable)
        ]


class Client:
    """One connection at a time. Subclasses react when it is established and when it is lost."""

    def __init__(self, shared: Shared, name: str) -> None:
        self.shared = shared
        self.world = shared.world
        self.name = name
        self._link: Link | None = None
        self._framing = ClientConnection(name)
        self._waiting: deque[tuple[int, int, Callable[[Any], None]]] = deque()

    def connected(self) -> None:
        """Called when there is a new connection."""

    def disconnected(self) -> None:
        """Called when it is lost, with all unanswered requests."""

    @property
    def is_connected(self) -> bool:
        return self._link is not None

    def begin(self) -> None:
        node = self.shared.node
        if node is None or not node.alive:
            self.world.later(_RECONNECT_MS, self.begin)
            return
        self._framing = ClientConnection(self.name)
        self._link = node.connect(self._received, self._lost)
        self.connected()

    def request(self, api_key: int, body: dict[str, Any], answered: Callable[[Any], None]) -> None:
        assert self._link is not None
        version = VERSIONS[api_key]
        _, frame = self._framing.request(api_key, version, request_encoder(api_key, version)(body))
        self._waiting.append((api_key, version, answered))
        self._link.send(frame)

    def hang_up(self) -> None:
        """Close the connection, as a client does that gives up waiting."""
        if self._link is not None:
            self._link.close()
            self._lost()

    def _received(self, data: bytes) -> None:
        for _, body in self._framing.feed(data):
            api_key, version, answered = self._waiting.popleft()
            answered(decode_response(api_key, version, body, 0))

    def _lost(self) -> None:
        self._link = None
        self._waiting.clear()
        self.disconnected()
        self.world.later(_RECONNECT_MS + self.world.below(_RECONNECT_MS), self.begin)
