"""CreateTopics (19): new topics, with partitions and replicas by number or by hand, and settings (A2, A3).

-1 partitions or replicas: the broker's default. The answer leaves once the topics are in the image; with validate_only
nothing is changed. Errors by topic: TOPIC_ALREADY_EXISTS, INVALID_TOPIC_EXCEPTION, INVALID_PARTITIONS,
INVALID_REPLICATION_FACTOR, INVALID_REPLICA_ASSIGNMENT, INVALID_CONFIG, INVALID_REQUEST (named twice),
POLICY_VIOLATION (too many partitions in one request, too many replicas per broker or topics, or a topic too large for the
metadata log), REQUEST_TIMED_OUT.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from ottla.broker.api.shared.api_table import Result, serves
from ottla.broker.api.shared.proposals import Change, Proposals, refused
from ottla.config.describe import describe_topic
from ottla.controller.topics import TOPIC_COST, Drafts, partitions_of
from ottla.metadata import records as r
from ottla.model.errors import ErrorCode, Refusal

if TYPE_CHECKING:
    from ottla.broker.core import Broker
    from ottla.broker.requests.connection import Call
    from ottla.broker.requests.slices import Work


@serves(19, by_controller=True)
def create_topics(broker: Broker, call: Call, request: Any, now_ms: int) -> Result:
    return broker.slices.answer(call, _created(broker, call, request))


def _created(broker: Broker, call: Call, request: Any) -> Work:
    times = Counter(topic.name for topic in request.topics)
    proposals = Proposals(broker, call, request)
    drafts = Drafts(broker.proposed, broker.config, broker.entropy)
    rows: dict[str, dict[str, Any]] = {}
    # Described once for all topics; what a topic has of its own is put in its place.
    defaults = _described(broker, {}, None)
    for topic in request.topics:
        if topic.name in rows:
            continue
        made: list[r.Record] = []
        try:
            if times[topic.name] > 1:
                raise Refusal(
                    ErrorCode.INVALID_REQUEST, f"topic '{topic.name}' is named {times[topic.name]} times"
                )
            configs = _configs(topic)
            made = drafts.create(
                topic.name, partitions=topic.num_partitions, replication_factor=topic.replication_factor,
                assignments=_assignments(topic), configs=configs,
            )  # fmt: skip
        except Refusal as refusal:
            rows[topic.name] = {"name": topic.name, **refused(refusal)}
        else:
            own = _described(broker, configs, configs) if configs else {}
            rows[topic.name] = _row(made, list((defaults | own).values()))
            if not request.validate_only:
                proposals.add(Change(made, rows[topic.name]))
        if proposals.is_slice_full(TOPIC_COST + partitions_of(made)):
            yield from proposals.end_slice()
            drafts.rebase(broker.proposed, with_drafts=request.validate_only)
    return proposals.answer({"topics": list(rows.values())})


def _configs(topic: Any) -> dict[str, str]:
    configs: dict[str, str] = {}
    for config in topic.configs:
        if config.value is None:
            raise Refusal(ErrorCode.INVALID_CONFIG, f"config {config.name} has no value")
        if config.name in configs:
            raise Refusal(ErrorCode.INVALID_CONFIG, f"config {config.name} is given twice")
        configs[config.name] = config.value
    return configs


def _assignments(topic: Any) -> dict[int, tuple[int, ...]]:
    given = {assignment.partition_index: assignment.broker_ids for assignment in topic.assignments}
    if len(given) != len(topic.assignments):
        raise Refusal(ErrorCode.INVALID_REPLICA_ASSIGNMENT, "a partition is assigned twice")
    return given


def _described(
    broker: Broker, configs: dict[str, str], names: Collection[str] | None
) -> dict[str, dict[str, Any]]:
    return {
        entry.name: {
            "name": entry.name, "value": entry.value, "read_only": entry.read_only,
            "config_source": entry.source, "is_sensitive": entry.sensitive,
        }
        for entry in describe_topic(configs, broker.config, names)
    }  # fmt: skip


def _row(made: list[r.Record], configs: list[dict[str, Any]]) -> dict[str, Any]:
    topic = made[0]
    assert isinstance(topic, r.Topic)
    partitions = made[-1]
    assert isinstance(partitions, r.NewPartitions)
    return {
        "name": topic.name,
        "topic_id": topic.topic_id,
        "error_code": 0,
        "num_partitions": len(partitions.replicas),
        "replication_factor": len(partitions.replicas[0]),
        "configs": configs,
    }
