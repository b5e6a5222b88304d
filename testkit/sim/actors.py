"""Clients of a simulated cluster: connections, known leaders, and shared topics.

An actor asks any broker for metadata and the leaders for data. It uses the newest leader epoch it knows, as
Kafka's clients do, because any broker may lag behind. A request without a response is reported as None: its
outcome is unknown.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ottla.model.api_key import ApiKey
from ottla.model.errors import ErrorCode
from ottla.wire.decode import decode_response
from ottla.wire.encode import request_encoder
from testkit.sim.clients import VERSIONS, Topic
from testkit.sim.network import ASK_TIMEOUT_MS, Lane, Network, Place
from testkit.sim.world import World

if TYPE_CHECKING:
    from testkit.sim.ensemble import Ensemble

_VERSIONS: Final[dict[int, int]] = {
    **VERSIONS, ApiKey.ELECT_LEADERS: 2, ApiKey.ALTER_PARTITION_REASSIGNMENTS: 0, ApiKey.CREATE_PARTITIONS: 3,
    ApiKey.OFFSET_COMMIT: 10, ApiKey.OFFSET_FETCH: 10, ApiKey.FIND_COORDINATOR: 4, ApiKey.JOIN_GROUP: 9, ApiKey.HEARTBEAT: 4, ApiKey.LEAVE_GROUP: 5, ApiKey.SYNC_GROUP: 5,
    ApiKey.DELETE_GROUPS: 2, ApiKey.OFFSET_DELETE: 0, ApiKey.CONSUMER_GROUP_HEARTBEAT: 1,
}  # fmt: skip

#: Time between two Metadata requests.
_REFRESH_MS: Final = 150

#: Errors after which a client refreshes its metadata and retries.
RETRIABLE: Final = frozenset(
    (
        ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.LEADER_NOT_AVAILABLE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_CONTROLLER, ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.OFFSET_NOT_AVAILABLE, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    )
)  # fmt: skip


class Leader(NamedTuple):
    node_id: int
    epoch: int


class Common:
    """State that the actors of one run share."""

    def __init__(self, world: World, network: Network, brokers: list[int], ensemble: Ensemble) -> None:
        self.world = world
        self.ensemble = ensemble
        self.network = network
        self.brokers = brokers
        self.topics: dict[bytes, Topic] = {}
        #: Whether clients begin new work.
        self.is_open = True
        self.producer_ids: dict[int, str] = {}

    def live(self) -> list[Topic]:
        return [topic for topic in self.topics.values() if topic.live]


class Actor:
    def __init__(self, common: Common, name: str) -> None:
        self.common = common
        self.world = common.world
        self.name = name
        self.place = Place(name)
        #: By broker and purpose: requests of one purpose do not wait behind others.
        self._lanes: dict[tuple[int, str], Lane] = {}
        self.leaders: dict[tuple[bytes, int], Leader] = {}
        #: By name, as in the last metadata.
        self.ids: dict[str, bytes] = {}
        self._refreshing = False
        self._after_refresh: list[Callable[[], None]] = []

    def begin(self) -> None:
        """Start work."""

    def later(self, delay_ms: int, action: Callable[[], None]) -> None:
        """Call it later, unless this process is gone by then; while it is paused, the call waits."""
        self.world.later(delay_ms, lambda: self.place.take(0, action))

    def die(self) -> None:
        """The process ends, and its kernel closes its connections."""
        self.place.life += 1
        for lane in self._lanes.values():
            lane.close()

    def ask(
        self,
        node_id: int,
        key: int,
        body: dict[str, Any],
        answered: Callable[[Any | None], None],
        *,
        purpose: str = "",
        timeout_ms: int = ASK_TIMEOUT_MS,
        version: int | None = None,
        as_broker: int | None = None,
    ) -> None:
        """`answered(response)`, or None if no response will come. With `as_broker` it authenticates as that
        broker.
        """
        if self.place.life:
            return
        if as_broker is not None:
            purpose += f" as broker {as_broker}"
        lane = self._lanes.get((node_id, purpose))
        if lane is None:
            prove_to = None if as_broker is None else self.common.ensemble.prove_as(as_broker)
            lane = self._lanes[node_id, purpose] = Lane(
                self.common.network, self.place, node_id, lambda: None, timeout_ms, prove_to
            )
        spoken = _VERSIONS[key] if version is None else version

        def done(answer: Any, error: str | None) -> None:
            answered(decode_response(key, spoken, bytes(answer), 0) if error is None else None)

        lane.ask(key, spoken, request_encoder(key, spoken)(body), done)

    def any_broker(self) -> int:
        return self.common.brokers[self.world.below(len(self.common.brokers))]

    def refresh(self, then: Callable[[], None]) -> None:
        """Request metadata from some broker, a little later; concurrent callers share the response."""
        self._after_refresh.append(then)
        if not self._refreshing:
            self._refreshing = True
            self.later(_REFRESH_MS, self._ask_metadata)

    def _ask_metadata(self) -> None:
        self.ask(self.any_broker(), ApiKey.METADATA, {"topics": None}, self._know)

    def _know(self, response: Any | None) -> None:
        if response is None:
            self.later(_REFRESH_MS, self._ask_metadata)
            return
        self.ids = {}
        for topic in response.topics:
            topic_id = topic.topic_id.bytes
            self.ids[topic.name] = topic_id
            for row in topic.partitions:
                key = (topic_id, row.partition_index)
                known = self.leaders.get(key)
                if known is None or row.leader_epoch >= known.epoch:
                    self.leaders[key] = Leader(row.leader_id, row.leader_epoch)
        self._refreshing = False
        waiting, self._after_refresh = self._after_refresh, []
        for then in waiting:
            then()
