"""Members of groups as real clients are ones, against a shard alone: of the consumer protocol, and of the classic one."""

import struct
from collections.abc import Iterable, Mapping
from typing import Any

from ottla.groups.classic import Join, Sync
from ottla.groups.consumer import Heartbeat
from ottla.model.errors import ErrorCode
from ottla.records.consumer_protocol import read_assignment, read_subscription, write_assignment
from tests.groups.conftest import Heard, World

REBALANCE_MS = 10_000
SESSION_MS = 45_000
CLASSIC_SESSION_MS = 6_000

Place = tuple[bytes, int]
NamedPlace = tuple[str, int]


class Client:
    """A member of the consumer protocol: it owns what it is told, and gives up what it is not told any more."""

    def __init__(self, world: World, name: str, *topics: str, **said: Any) -> None:
        self.world = world
        self.name = name
        self.epoch = 0
        self.owned: frozenset[Place] = frozenset()
        self.subscription = {"names": frozenset(topics), "rebalance_timeout_ms": REBALANCE_MS, **said}
        self.answer: Mapping[str, Any] = {}

    def beat(self, **other: Any) -> "Client":
        """A heartbeat; a join has everything, later ones only what is owned, unless a test says otherwise."""
        fields: dict[str, Any] = {"instance_id": self.subscription.get("instance_id"), "owned": self.owned}
        if not self.epoch:
            fields |= self.subscription | {"owned": frozenset()}
        request = Heartbeat(
            **{"group_id": "g", "member_id": self.name, "member_epoch": self.epoch, **fields, **other}
        )
        heard = Heard()
        self.world.shard.consumer.heartbeat(request, heard, self.world.now_ms)
        assert heard.response is not None
        self.answer = heard.response
        self.epoch = self.answer["member_epoch"]
        told = self.answer["assignment"]
        if told is not None:
            self.owned = frozenset(
                (row["topic_id"], number) for row in told["topic_partitions"] for number in row["partitions"]
            )
        return self

    @property
    def numbers(self) -> list[int]:
        return sorted(number for _topic, number in self.owned)

    def go_on(self) -> None:
        self.beat()


def subscription(
    topics: Iterable[str], owned: Iterable[NamedPlace] = (), version: int = 3, rack: str | None = None
) -> bytes:
    """What a consumer writes into its join."""

    def text(value: str | None) -> bytes:
        return b"\xff\xff" if value is None else struct.pack(">h", len(value)) + value.encode()

    topics, owned = list(topics), sorted(owned)
    data = struct.pack(">hi", version, len(topics)) + b"".join(map(text, topics)) + b"\xff\xff\xff\xff"
    if version >= 1:
        data += struct.pack(">i", len(owned))
        data += b"".join(text(topic) + struct.pack(">ii", 1, number) for topic, number in owned)
    if version >= 2:
        data += struct.pack(">i", -1)
    return data + text(rack) if version >= 3 else data


class ClassicClient:
    """A member of the classic protocol. An eager one gives up everything before it joins; a cooperative one says in its join what
    it owns, gives up what the sync does not tell any more, and joins again if that was something. `go_on` is a turn: it reads an
    answer that has come, or says what is to be said next."""

    def __init__(
        self, world: World, *topics: str, cooperative: bool = False, instance: str | None = None, version: int = 3,
        protocols: tuple[str, ...] = ("range",), session_ms: int = CLASSIC_SESSION_MS, client_id: str = "c",
    ) -> None:  # fmt: skip
        self.world, self.topics, self.instance, self.version = world, topics, instance, version
        self.cooperative, self.protocols, self.session_ms = cooperative, protocols, session_ms
        self.client_id = client_id
        self.member_id = ""
        self.generation = -1
        self.parts: frozenset[NamedPlace] = frozenset()
        self.joining: Heard | None = None
        self.syncing: Heard | None = None
        self.must_join = True
        self.is_fenced = False
        self.seen: dict[str, int] = {}
        #: The topics that it named in its last join.
        self.named: tuple[str, ...] = ()
        self.joins = 0
        self.answer: Mapping[str, Any] = {}

    @property
    def numbers(self) -> list[int]:
        return sorted(number for _topic, number in self.parts)

    @property
    def owned(self) -> frozenset[Place]:
        topics = self.world.topics
        return frozenset((topics[topic].topic_id, number) for topic, number in self.parts if topic in topics)

    @property
    def is_settled(self) -> bool:
        return not (self.must_join or self.joining or self.syncing)

    # --- what it says -------------------------------------------------------------------------------------------

    def go_on(self) -> None:
        if self.joining is not None:
            self._read_join()
        elif self.syncing is not None:
            self._read_sync()
        elif self.must_join or self.seen != self._topics() or self.named != self.topics:
            self.join()
        else:
            self.heartbeat()

    def _topics(self) -> dict[str, int]:
        """What it knows of the topics; when that changes, a client joins again. A leader looks at those of others as well."""
        return {topic: len(view.racks) for topic, view in self.world.topics.items()}

    def join(self, **other: Any) -> "ClassicClient":
        if not self.cooperative:
            self.parts = frozenset()
        metadata = subscription(self.topics, self.parts, self.version)
        fields: dict[str, Any] = {
            "group_id": "g", "member_id": self.member_id, "instance_id": self.instance, "client_id": self.client_id,
            "client_host": "/h", "session_timeout_ms": self.session_ms, "rebalance_timeout_ms": REBALANCE_MS,
            "protocol_type": "consumer", "protocols": tuple((name, metadata) for name in self.protocols),
            "needs_known_id": True, "can_skip_assignment": True,
        }  # fmt: skip
        self.joins += 1
        self.seen, self.named = self._topics(), self.topics
        self.must_join, self.joining = False, Heard()
        self.world.shard.classic.join(Join(**{**fields, **other}), self.joining, self.world.now_ms)
        self._read_join()
        return self

    def sync(self, **other: Any) -> "ClassicClient":
        leads = self.answer.get("leader") == self.member_id and not self.answer.get("skip_assignment")
        fields: dict[str, Any] = {
            "group_id": "g", "generation": self.generation, "member_id": self.member_id, "instance_id": self.instance,
            "protocol_type": "consumer", "protocol_name": self.answer.get("protocol_name"),
            "assignments": self._assigned(self.answer["members"]) if leads else {},
        }  # fmt: skip
        self.syncing = Heard()
        self.world.shard.classic.sync(Sync(**{**fields, **other}), self.syncing, self.world.now_ms)
        self._read_sync()
        return self

    def heartbeat(self, **other: Any) -> ErrorCode:
        fields = {"generation": self.generation, "member_id": self.member_id, "instance_id": self.instance}
        code = self.world.shard.heartbeat("g", **{**fields, **other}, now_ms=self.world.now_ms)  # type: ignore[arg-type]
        self._failed(code)
        return code

    def leave(self) -> ErrorCode:
        [code] = self.world.shard.classic.leave("g", [(self.member_id, self.instance)], self.world.now_ms)
        self.parts = frozenset()
        return code

    # --- what it hears ------------------------------------------------------------------------------------------

    def _read_join(self) -> None:
        heard = self.joining
        if heard is None or not heard.is_answered:
            return
        self.joining = None
        if heard.error == ErrorCode.MEMBER_ID_REQUIRED:
            assert heard.response is not None
            self.member_id = heard.response["member_id"]
            self.join()
        elif heard.error:
            self._failed(ErrorCode(heard.error))
        else:
            assert heard.response is not None
            self.answer = heard.response
            self.member_id, self.generation = self.answer["member_id"], self.answer["generation_id"]
            self.sync()

    def _read_sync(self) -> None:
        heard = self.syncing
        if heard is None or not heard.is_answered:
            return
        self.syncing = None
        if heard.error:
            self._failed(ErrorCode(heard.error))
            return
        assert heard.response is not None
        told = read_assignment(heard.response["assignment"])[0]
        self.must_join = self.cooperative and not self.parts <= told
        self.parts = told

    def _failed(self, code: ErrorCode) -> None:
        if code is ErrorCode.NONE:
            return
        self.must_join = True
        if code is ErrorCode.FENCED_INSTANCE_ID:
            self.is_fenced, self.must_join, self.parts = True, False, frozenset()
        elif code not in (ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.NOT_COORDINATOR):
            assert code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION), code
            self.parts, self.generation = frozenset(), -1
            if code is ErrorCode.UNKNOWN_MEMBER_ID:
                self.member_id = ""

    def _assigned(self, members: Iterable[Mapping[str, Any]]) -> dict[str, bytes]:
        """What a leader assigns: everything in turn, except what others of a cooperative group still have."""
        wanted = {row["member_id"]: read_subscription(row["metadata"]) for row in members}
        owner = {place: name for name, each in wanted.items() for place in each.owned}
        shares: dict[str, list[NamedPlace]] = {name: [] for name in wanted}
        for topic, view in sorted(self.world.topics.items()):
            readers = sorted(name for name, each in wanted.items() if topic in each.topics)
            for number in range(len(view.racks) if readers else 0):
                name = readers[number % len(readers)]
                if owner.get((topic, number), name) == name:
                    shares[name].append((topic, number))
        return {name: write_assignment(0, share) for name, share in shares.items()}


def settle(world: World, *clients: Client | ClassicClient, turns: int = 24) -> None:
    """Everybody goes on for a while."""
    for _ in range(turns):
        world.advance(200)
        for client in clients:
            client.go_on()
