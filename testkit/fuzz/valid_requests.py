"""Valid requests of every API and version, built from the schemas and the existing state.

No API is listed: the name of a field determines useful values (an existing topic, a live session). Any other
field gets a value of its type. So a new API is fuzzed without further work.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from random import Random
from struct import Struct
from typing import Any, Final

from ottla.broker import api as _served  # noqa: F401  (fills the table)
from ottla.broker.api.shared.api_table import APIS
from ottla.model.api_key import ApiKey
from ottla.wire.encode import request_encoder
from ottla.wire.layout import FieldLayout, layout
from ottla.wire.schema import request_class, request_header_is_flexible
from testkit.fuzz.batches import make_batch

HEAD: Final = Struct(">hhih")
_CLIENT_ID: Final = b"fuzz"
#: Fields that are null more often than not: most produces are not transactional, most members are not static.
_NULLS: Final[dict[tuple[int, str], float]] = {
    (ApiKey.PRODUCE, "transactional_id"): 0.6,
    (ApiKey.TXN_OFFSET_COMMIT, "group_instance_id"): 0.8,
}
#: APIs of the data path and those that create groups and transactions: chosen more often.
_OFTEN: Final = (0, 0, 0, 0, 1, 1, 2, 3, 8, 11, 14, 22, 24, 24, 26, 26, 28, 68, 68)


@dataclass
class Known:
    """State that requests refer to. Sessions come from responses, members and transactional ids from the
    coordinators.
    """

    topics: dict[str, bytes]
    partitions: int = 3
    sessions: list[tuple[int, int]] = field(default_factory=list)
    #: Group, member id and generation (or epoch) of some members.
    members: list[tuple[str, str, int]] = field(default_factory=list)
    #: Transactional id, producer id and epoch of some that a coordinator knows.
    transactors: list[tuple[str, int, int]] = field(default_factory=list)
    producer_id: int = 1
    now_ms: int = 1_700_000_000_000


@cache
def served_versions() -> list[tuple[int, int]]:
    """(key, version) of everything that ApiVersions advertises."""
    return [
        (api.key, version)
        for api in sorted(APIS.values(), key=lambda api: api.key)
        for version in range(api.oldest, api.newest + 1)
    ]


def frame_of(key: int, version: int, correlation_id: int, body: bytes) -> bytes:
    """A request without its size."""
    tags = b"\0" if request_header_is_flexible(key, version) else b""
    return HEAD.pack(key, version, correlation_id, len(_CLIENT_ID)) + _CLIENT_ID + tags + body


class Maker:
    def __init__(self, random: Random, known: Known) -> None:
        self.random = random
        self.known = known
        #: Probability of a value that is valid for its type but not for its meaning.
        self._wild = 0.0
        self._key = -1
        #: The transaction of this request, so that its fields are consistent; None: no known one.
        self._transactor: tuple[str, int, int] | None = None

    def frame(self, correlation_id: int) -> bytes:
        """A request of a random API and version; a third of them have boundary values."""
        key, version = self.choose()
        self._wild = self.random.choice((0.0, 0.0, 0.15))
        return frame_of(key, version, correlation_id, self.body(key, version))

    def choose(self) -> tuple[int, int]:
        random = self.random
        if random.random() < 0.4:
            api = APIS[random.choice(_OFTEN)]
            # Half of them in the newest version: the protocol of transactions depends on it.
            return api.key, random.choice((api.newest, random.randint(api.oldest, api.newest)))
        return random.choice(served_versions())

    def body(self, key: int, version: int) -> bytes:
        self._begin(key)
        return request_encoder(key, version)(self.message(request_class(key, version), key))

    def valid_message(self, cls: Any, key: int) -> dict[str, Any]:
        """The fields of a message or struct, with ordinary values."""
        self._wild = 0.0
        self._begin(key)
        return self.message(cls, key)

    def _begin(self, key: int) -> None:
        self._key = key
        known = self.known.transactors
        self._transactor = self.random.choice(known) if known and self.random.random() < 0.8 else None

    def message(self, cls: Any, key: int) -> dict[str, Any]:
        """The fields of an instance as the encoder takes them."""
        made: dict[str, Any] = {}
        for each in layout(cls):
            if each.tag is not None and self.random.random() < 0.7:
                continue
            made[each.name] = self._field(each, key)
        return made

    def _field(self, each: FieldLayout, key: int) -> Any:
        if each.is_nullable and each.tag is None:
            if self.random.random() < _NULLS.get((key, each.name), 0.1):
                if each.name == "transactional_id":
                    self._transactor = None
                return None
        if not each.is_array:
            return self._value(each, key)
        wild = self.random.random() < self._wild
        counts = _EMPTY.get((key, each.name)) if not wild else None
        count = self.random.choice(counts or (1, 1, 1, 2, 3, 0))
        items = [self._value(each, key) for _ in range(count)]
        # Repeated twice, or very often; but not very often inside very often.
        return items * self.random.choice((2, 2, 3, 3 if each.struct else 300)) if wild else items

    def _value(self, each: FieldLayout, key: int) -> Any:
        if each.struct is not None:
            return self.message(each.struct, key)
        if self.random.random() < self._wild:
            return self._edge(each.kind)
        chooser = _BY_NAME.get(each.name)
        if chooser is not None:
            value = chooser(self)
            if value.__class__ in _TYPES[each.kind]:
                return value
        return self._any(each.kind)

    def _any(self, kind: str) -> Any:
        random = self.random
        if kind == "bool":
            return random.random() < 0.5
        if kind == "float64":
            return random.choice((0.0, 1.0, -1.5))
        if kind == "string":
            return (
                self.topic() if random.random() < 0.5 else random.choice(("", "a", "x" * 300, "é", "..", "1"))
            )
        if kind == "uuid":
            return random.choice((*self.known.topics.values(), random.randbytes(16), None))
        if kind in ("bytes", "records"):
            return random.randbytes(random.choice((0, 1, 40)))
        small = random.choice((0, 0, 1, 2, 5))
        return small if kind.startswith("u") or random.random() < 0.8 else -1

    def _edge(self, kind: str) -> Any:
        """A boundary value of the type."""
        random = self.random
        if kind == "string":
            return random.choice(_STRANGE)
        if kind == "uuid":
            return random.choice((None, b"\xff" * 16, bytes(15) + b"\1"))
        bits = _BITS.get(kind)
        if bits is None:
            return self._any(kind)
        if kind.startswith("u"):
            return random.choice((0, (1 << bits) - 1, 1 << bits - 1))
        return (
            random.choice((-(1 << bits - 1), (1 << bits - 1) - 1, -2, 10_000, 100))
            if bits > 8
            else random.choice((-128, 127, -2))
        )

    def topic(self) -> str:
        topics = tuple(self.known.topics)
        # Sometimes the fields of a transaction are consistent.
        return topics[0] if self._transactor and self.random.random() < 0.5 else self.random.choice(topics)

    def session(self, part: int) -> int:
        """The id or epoch of a live session, or of none."""
        sessions = self.known.sessions
        if not sessions or self.random.random() < 0.4:
            return self.random.choice((0, 0, -1)) if part else 0
        return sessions[-1][part]

    def member(self, part: int) -> Any:
        """Group, id or generation of a member: mostly of the latest one, so that they are consistent."""
        members = self.known.members
        if not members or self.random.random() < (0.7 if self._key == ApiKey.TXN_OFFSET_COMMIT else 0.3):
            return (
                self.random.choice(GROUPS), self.random.choice(("", "", "somebody")), self.random.choice((-1, -1, 0, 0, -2)),
            )[part]  # fmt: skip
        return (members[-1] if self.random.random() < 0.8 else self.random.choice(members))[part]

    def transactor(self, part: int) -> Any:
        """Transactional id, producer id or epoch: mostly of this request's transaction."""
        if self._transactor is None or self.random.random() < 0.1:
            return (
                self.random.choice(TRANSACTIONAL_IDS), self.random.choice((-1, 0, 1, 1000)), self.random.choice((-1, 0, 1)),
            )[part]  # fmt: skip
        return self._transactor[part]

    def batch(self) -> bytes:
        if self._transactor is not None and self.random.random() < 0.9:
            _name, producer_id, epoch = self._transactor
            return make_batch(self.random, self.known.now_ms, producer_id, epoch)
        return make_batch(self.random, self.known.now_ms, self.known.producer_id)


def _of(*values: Any) -> Callable[[Maker], Any]:
    return lambda maker: maker.random.choice(values)


def _partition(maker: Maker) -> int:
    if maker.random.random() < 0.3:
        return 0
    return maker.random.randrange(maker.known.partitions + 1)


def _name(maker: Maker) -> str:
    # Also the name of a setting, or of a topic to create or delete: mostly of one that is not needed.
    return maker.topic() if maker.random.random() < 0.6 else maker.random.choice(_NAMES)


GROUPS: Final = ("group", "another", "third", "")
TRANSACTIONAL_IDS: Final = ("tx", "tx", "another", "third", "")
_SETTINGS: Final = {
    "cleanup.policy": ("compact", "delete", "compact,delete"),
    "compression.type": ("gzip", "snappy", "lz4", "zstd", "producer", "uncompressed"),
    "retention.ms": ("-1", "1", "3600000"),
    "segment.bytes": ("1048576", "100000"),
    "message.timestamp.type": ("LogAppendTime", "CreateTime"),
    "max.message.bytes": ("1000", "1048588"),
    "flush.messages": ("1", "100"),
}
_NAMES: Final = (*_SETTINGS, "new", "newer", "gone", "", "__x", "a b")
_VALUES: Final = tuple(value for values in _SETTINGS.values() for value in values)

#: Useful values by the name of the field.
_BY_NAME: Final[dict[str, Callable[[Maker], Any]]] = {
    "topic": Maker.topic,
    "name": _name,
    "topic_name": Maker.topic,
    "topic_names": _of("new", "newer", "gone", "nothing"),
    "resource_name": lambda maker: maker.topic() if maker.random.random() < 0.9 else "1",
    "resource_type": _of(2, 2, 2, 4, 0),
    "value": _of(*_VALUES),
    "topic_id": lambda maker: maker.known.topics[maker.topic()],
    "partition": _partition,
    "partitions": _partition,
    "partition_index": _partition,
    "partition_indexes": _partition,
    "index": _partition,
    "records": Maker.batch,
    "acks": _of(-1, -1, 1, 0, 2),
    "fetch_offset": _of(0, 0, 1, 2, 10, -1, 1 << 40),
    "offset": _of(0, 1, 2, -1, 1 << 40),
    "timestamp": _of(-1, -2, -3, -4, -5, -6, 0, 1_600_000_000_000, 1 << 62),
    "session_id": lambda maker: maker.session(0),
    "session_epoch": lambda maker: maker.session(1),
    "replica_id": _of(-1, -1, -1, 1),
    "current_leader_epoch": _of(-1, -1, 0, 1),
    "last_fetched_epoch": _of(-1, -1, 0, 1),
    "leader_epoch": _of(0, -1, 1, 5),
    "max_wait": _of(0, 0, 0, 10, 500),
    "min_bytes": _of(0, 1, 1, 1000),
    "max_bytes": _of(1 << 20, 1, 0, 1 << 24),
    "partition_max_bytes": _of(1 << 20, 1, 0, 100),
    "timeout": _of(0, 100, 30_000),
    "transaction_timeout": _of(0, 1000, 60_000),
    # Transactions. Null: none.
    "transactional_id": lambda maker: maker.transactor(0),
    "transactional_ids": lambda maker: maker.transactor(0),
    "v3_and_below_transactional_id": lambda maker: maker.transactor(0),
    "producer_id": lambda maker: maker.transactor(1),
    "producer_id_filters": lambda maker: maker.transactor(1),
    "v3_and_below_producer_id": lambda maker: maker.transactor(1),
    "producer_epoch": lambda maker: maker.transactor(2),
    "v3_and_below_producer_epoch": lambda maker: maker.transactor(2),
    "coordinator_epoch": _of(0, 0, 0, 1, -1),
    "transaction_version": _of(0, 2, 2),
    "state_filters": _of("Ongoing", "Empty", "nothing"),
    "transactional_id_pattern": _of("t.*", "", "("),
    "num_partitions": _of(1, 2, 3, -1, 0),
    "replication_factor": _of(1, 1, -1, 2),
    "count": _of(3, 4, 5, 1),
    "metrics": lambda maker: maker.random.randbytes(maker.random.choice((0, 10, 1000))),
    "config_operation": _of(0, 1, 2, 3, 4),
    "broker_id": _of(1, 1, 1, 2),
    "broker_epoch": _of(1, 1, 1, 0),
    "partition_epoch": _of(0, 0, 0, 1),
    "new_isr": _of(1, 1, 2),
    "replicas": _of(1, 1, 2),
    "election_type": _of(0, 0, 1, 2),
    # Groups. The names of protocols do not matter, as long as members agree now and then.
    "group_id": lambda maker: maker.member(0),
    "group_ids": lambda maker: maker.member(0),
    "groups": lambda maker: maker.member(0),
    "groups_names": _of(*GROUPS),
    "key": _of(*GROUPS),
    "coordinator_keys": _of(*GROUPS, *TRANSACTIONAL_IDS),
    "key_type": _of(0, 0, 1, 1),
    "member_id": lambda maker: maker.member(1),
    "generation_id": lambda maker: maker.member(2),
    "generation_id_or_member_epoch": lambda maker: maker.member(2),
    "member_epoch": lambda maker: maker.member(2),
    "group_instance_id": _of("one", "two"),
    "instance_id": _of("one", "two"),
    "session_timeout": _of(6000, 10_000, 1),
    "rebalance_timeout": _of(0, 10, 1000, -1),
    "protocol_type": _of("consumer", "consumer", "connect"),
    "protocol_name": Maker.topic,
    "metadata": lambda maker: maker.random.choice(
        (b"", b"\0\0\0\0\0\1\0\5plain\xff\xff\xff\xff", b"\0\1\x7f")
    ),
    "subscribed_topic_names": Maker.topic,
    "subscribed_topic_regex": _of(".*", "p.*", "", "(", "((a{100}){100}){100}"),
    "server_assignor": _of("uniform", "range", "mine"),
    "committed_offset": _of(0, 1, 5, -1, 1 << 40),
    "committed_metadata": _of("", "text", "x" * 5000),
    "states_filter": _of("Stable", "empty", "nothing"),
    "types_filter": _of("classic", "Consumer", "nothing"),
}

#: Length of arrays that are mostly empty: replicas in CreateTopics, owned partitions in a join.
_EMPTY: Final[dict[tuple[int, str], tuple[int, ...]]] = {
    (19, "assignments"): (0,),
    (37, "assignments"): (0,),
    (68, "topic_partitions"): (0, 0, 1),
}
_STRANGE: Final = (
    "", ".", "..", "a/b", "a\0b", "x" * 249, "x" * 250, "x" * 30_000, "\U0001f701", "a b", "__consumer_offsets", "a.b", "a_b",
    "-1", "9" * 400, "1e9", "plain,plain", "\n",
)  # fmt: skip
_BITS: Final = {
    "int8": 8, "int16": 16, "int32": 32, "int64": 64, "uint8": 8, "uint16": 16, "uint32": 32, "uint64": 64,
    "timedelta_i32": 32, "timedelta_i64": 64, "datetime_i64": 64,
}  # fmt: skip
_NUMBER: Final = (int,)
_TYPES: Final[dict[str, tuple[type, ...]]] = {
    "string": (str,),
    "bytes": (bytes,),
    "records": (bytes,),
    "uuid": (bytes,),
    "bool": (bool,),
    "float64": (float,),
    **dict.fromkeys(
        (
            "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
            "error_code", "timedelta_i32", "timedelta_i64", "datetime_i64",
        ),
        _NUMBER,
    ),
}  # fmt: skip
