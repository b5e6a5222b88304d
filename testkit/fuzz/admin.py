"""Sequences of admin requests that keep state on the broker: topics, partitions, configs, groups,
transactions, records.

Names come from small pools, so that a later request meets what an earlier one created, changed or deleted.
Every request is formally valid; earlier requests decide whether the broker accepts it.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, Final

from ottla.broker.api.shared.api_table import APIS
from ottla.wire.layout import layout
from ottla.wire.schema import request_class
from testkit.fuzz.valid_requests import GROUPS, Maker

_TOPICS: Final = tuple(f"admin-{number}" for number in range(12))
_TRANSACTIONAL_IDS: Final = tuple(f"admin-tx-{number}" for number in range(6))
_GROUPS: Final = tuple(f"admin-group-{number}" for number in range(8))
_PARTITIONS: Final = (1, 1, 2, 3, 3, 12, 100)
_TOPIC_CONFIGS: Final = (
    ("retention.ms", "1"), ("retention.ms", "-1"), ("retention.bytes", "1000"), ("segment.bytes", "1048576"),
    ("cleanup.policy", "compact"), ("cleanup.policy", "delete"), ("cleanup.policy", "compact,delete"),
    ("max.message.bytes", "1000"), ("compression.type", "zstd"), ("flush.policy", "durable"),
    ("message.timestamp.type", "LogAppendTime"), ("min.insync.replicas", "1"), ("min.insync.replicas", "2"),
    ("no.such.config", "1"), ("retention.ms", "text"),
)  # fmt: skip
#: Only broker settings that do not affect the witness.
_BROKER_CONFIGS: Final = (
    ("num.io.threads", "4"), ("background.threads", "2"), ("log.cleaner.threads", "1"), ("num.replica.fetchers", "2"),
    ("log.retention.bytes", "1000000"), ("no.such.config", "1"),
)  # fmt: skip
_GROUP_CONFIGS: Final = (("consumer.session.timeout.ms", "50000"), ("consumer.heartbeat.interval.ms", "6000"))
_TOPIC_TYPE, _BROKER_TYPE, _GROUP_TYPE = 2, 4, 32


def _fitted(cls: Any, message: dict[str, Any]) -> dict[str, Any]:
    """The fields of this version. A field that cannot be null is omitted and gets its default."""
    made: dict[str, Any] = {}
    for field in layout(cls):
        value = message.get(field.name)
        if value is None and not field.is_nullable and field.kind != "uuid":
            continue
        if field.struct is not None and value is not None:
            value = (
                [_fitted(field.struct, each) for each in value]
                if field.is_array
                else _fitted(field.struct, value)
            )
        made[field.name] = value
    return made


class AdminCalls:
    def __init__(self, random: Random, maker: Maker) -> None:
        self._random = random
        self._maker = maker
        self._steps: tuple[tuple[int, Callable[[], dict[str, Any]]], ...] = (
            (19, self._create), (19, self._create), (20, self._delete), (37, self._grow), (44, self._alter), (33, self._alter),
            (32, self._described), (0, self._produce), (0, self._produce), (21, self._delete_records), (8, self._commit),
            (42, self._delete_groups), (47, self._delete_offsets), (3, self._metadata), (9, self._fetch_offsets),
            (22, self._init), (24, self._add), (26, dict), (43, self._elect), (45, self._reassign), (75, self._metadata), (61, self._on_topic),
            *((key, dict) for key in (15, 16, 35, 46, 48, 50, 57, 60, 65, 66, 69, 74)),
        )  # fmt: skip

    def next(self) -> tuple[int, int, dict[str, Any]]:
        """The next request: API, version and fields."""
        key, step = self._random.choice(self._steps)
        api = APIS[key]
        version = self._random.choice((api.newest, self._random.randint(api.oldest, api.newest)))
        cls = request_class(key, version)
        return key, version, _fitted(cls, self._maker.valid_message(cls, key) | step())

    # --- topics ---------------------------------------------------------------------------------------------------

    def _topic(self) -> str:
        return self._random.choice(_TOPICS)

    def _some_topics(self) -> list[str]:
        return self._random.sample(_TOPICS, self._random.choice((1, 1, 2, 6)))

    def _configs(self, pairs: tuple[tuple[str, str], ...]) -> list[dict[str, Any]]:
        return [
            {"name": name, "value": value, "config_operation": self._random.choice((0, 0, 0, 1, 2, 3))}
            for name, value in self._random.sample(pairs, self._random.choice((0, 1, 2)))
        ]

    def _create(self) -> dict[str, Any]:
        return {
            "topics": [
                {
                    "name": name, "num_partitions": self._random.choice(_PARTITIONS), "replication_factor": 1,
                    "assignments": [], "configs": self._configs(_TOPIC_CONFIGS),
                }
                for name in self._some_topics()
            ],
            "validate_only": self._random.random() < 0.1,
        }  # fmt: skip

    def _delete(self) -> dict[str, Any]:
        names = self._some_topics()
        return {"topic_names": names, "topics": [{"name": name, "topic_id": None} for name in names]}

    def _grow(self) -> dict[str, Any]:
        return {
            "topics": [
                {"name": name, "count": self._random.choice((*_PARTITIONS, 0, -1)), "assignments": None}
                for name in self._some_topics()
            ],
            "validate_only": self._random.random() < 0.1,
        }

    def _alter(self) -> dict[str, Any]:
        kind, name, pairs = self._random.choice(
            (
                (_TOPIC_TYPE, self._topic(), _TOPIC_CONFIGS), (_BROKER_TYPE, "1", _BROKER_CONFIGS),
                (_BROKER_TYPE, "", _BROKER_CONFIGS), (_GROUP_TYPE, self._group(), _GROUP_CONFIGS),
            )
        )  # fmt: skip
        resource = {"resource_type": kind, "resource_name": name, "configs": self._configs(pairs)}
        return {"resources": [resource], "validate_only": self._random.random() < 0.1}

    def _described(self) -> dict[str, Any]:
        named = [
            (_TOPIC_TYPE, self._topic()),
            (_BROKER_TYPE, "1"),
            (_BROKER_TYPE, ""),
            (_GROUP_TYPE, self._group()),
        ]
        chosen = self._random.sample(named, self._random.choice((1, 2, 4)))
        return {
            "resources": [
                {"resource_type": kind, "resource_name": name, "configuration_keys": None}
                for kind, name in chosen
            ]
        }

    def _metadata(self) -> dict[str, Any]:
        return {"topics": [{"name": name, "topic_id": None} for name in self._some_topics()], "cursor": None}

    def _on_topic(self) -> dict[str, Any]:
        return {"topics": [{"name": self._topic(), "partition_indexes": [0, 1]}]}

    def _elect(self) -> dict[str, Any]:
        return {"topic_partitions": [{"topic": self._topic(), "partitions": [0]}], "election_type": 0}

    def _reassign(self) -> dict[str, Any]:
        rows = [{"partition_index": 0, "replicas": self._random.choice(([1], [], None, [2]))}]
        return {"topics": [{"name": self._topic(), "partitions": rows}]}

    # --- records --------------------------------------------------------------------------------------------------

    def _produce(self) -> dict[str, Any]:
        # By name: the ids of these topics are unknown here.
        rows = [{"index": self._random.choice((0, 0, 1, 5)), "records": self._maker.batch()}]
        return {
            "acks": -1,
            "transactional_id": None,
            "topic_data": [{"name": self._topic(), "topic_id": None, "partition_data": rows}],
        }

    def _delete_records(self) -> dict[str, Any]:
        rows = [{"partition_index": 0, "offset": self._random.choice((-1, 0, 1, 5))}]
        return {"topics": [{"name": self._topic(), "partitions": rows}]}

    # --- groups and transactions ----------------------------------------------------------------------------------

    def _group(self) -> str:
        return self._random.choice((*_GROUPS, *GROUPS[:2]))

    def _commit(self) -> dict[str, Any]:
        rows = [
            {
                "partition_index": number, "committed_offset": self._random.randrange(1000), "committed_leader_epoch": -1,
                "committed_metadata": self._random.choice((None, "", "text")),
            }
            for number in range(self._random.choice((1, 3, 50)))
        ]  # fmt: skip
        name = self._random.choice((self._topic(), self._maker.topic()))
        return {
            "group_id": self._group(), "generation_id_or_member_epoch": -1, "member_id": "", "group_instance_id": None,
            "topics": [{"name": name, "topic_id": self._maker.known.topics.get(name), "partitions": rows}],
        }  # fmt: skip

    def _fetch_offsets(self) -> dict[str, Any]:
        return {
            "group_id": self._group(), "topics": None,
            "groups": [{"group_id": self._group(), "member_id": None, "member_epoch": -1, "topics": None}],
        }  # fmt: skip

    def _delete_groups(self) -> dict[str, Any]:
        return {"groups_names": self._random.sample(_GROUPS, self._random.choice((1, 3)))}

    def _delete_offsets(self) -> dict[str, Any]:
        return {
            "group_id": self._group(),
            "topics": [{"name": self._topic(), "partitions": [{"partition_index": 0}]}],
        }

    def _init(self) -> dict[str, Any]:
        return {
            "transactional_id": self._random.choice(_TRANSACTIONAL_IDS), "transaction_timeout": 60_000,
            "producer_id": -1, "producer_epoch": -1,
        }  # fmt: skip

    def _add(self) -> dict[str, Any]:
        """Add partitions to the transaction of the maker's request, if it has one."""
        topics = [{"name": name, "partitions": [0]} for name in self._some_topics()]
        return {"v3_and_below_topics": topics}
