"""OffsetCommit (8): a group notes how far it has read. The answer waits until that is written and counts.

A member commits in its generation; one of a consumer group may be behind its epoch, for partitions that it has had since (KIP-1251).
Who has none (generation -1) may commit while the group has no members. Errors by partition: UNKNOWN_TOPIC_OR_PARTITION,
UNKNOWN_TOPIC_ID (version 10 names topics by id), OFFSET_METADATA_TOO_LARGE; for all: UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID,
ILLEGAL_GENERATION, STALE_MEMBER_EPOCH, GROUP_ID_NOT_FOUND (version 9), REBALANCE_IN_PROGRESS, INVALID_GROUP_ID,
INVALID_COMMIT_OFFSET_SIZE (this broker holds as many offsets as it can) and those of a coordinator that is elsewhere or not ready. While the groups are loaded it waits for them, for some seconds: librdkafka asks twice more
within a third of a second, and then its application has the error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from ottla.broker.api.shared.api_table import NoResponse, Response, Result, serves
from ottla.broker.api.shared.group_requests import find_shard, milliseconds
from ottla.groups.formats import Encoded, encode
from ottla.groups.shard import Commit
from ottla.model.errors import ErrorCode, Refusal
from ottla.model.limits import ROWS_PER_WRITE_MAX, STRING_BYTES_MAX
from ottla.model.steps import STEP_COST, Steps, run
from ottla.model.strings import is_longer
from ottla.wire.acknowledgement import commit_acknowledgement

if TYPE_CHECKING:
    from ottla.broker.core import Broker
    from ottla.broker.requests.connection import Call
    from ottla.broker.requests.slices import Work
    from ottla.metadata.image import TopicImage

#: From this version on topics are named by their ids.
_BY_ID: Final = 10


class CommitReply:
    """The answer to one commit, once it counts: `frame` if it is packed already, else the rows of its partitions."""

    __slots__ = ("_broker", "_call", "_frame", "_request", "is_answered")

    def __init__(self, broker: Broker, call: Call, request: Any, frame: bytes | None) -> None:
        self._broker = broker
        self._call = call
        self._request = request
        self._frame = frame
        self.is_answered = False

    def answer(self, response: Mapping[str, Any]) -> None:
        self.is_answered = True
        if self._frame is not None:
            self._broker.reply(self._call, [self._frame])
        else:
            self.is_answered = self._broker.slices.answer_built(self._call, response)  # type: ignore[arg-type]  # an encoder only reads it

    def refuse(self, code: ErrorCode) -> None:
        self.is_answered = True
        self._broker.answer(self._call, _refusal(self._call, self._request, code))


@serves(8, rows_max=ROWS_PER_WRITE_MAX)
def offset_commit(broker: Broker, call: Call, request: Any, now_ms: int) -> Result:
    version = call.entry.version
    group_id = request.group_id
    try:
        shard = find_shard(broker, group_id, writes=True, may_be_empty=True)
    except Refusal as refused:
        if refused.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:

            def again() -> None:
                response = offset_commit(broker, call, request, broker.now_ms)
                if not isinstance(response, NoResponse):
                    broker.answer(call, response)

            if broker.groups.wait_for_load(group_id, again):
                return NoResponse.LATER
        return _refusal(call, request, refused.code)
    if is_long(request):
        return broker.slices.answer(call, _committed_in_slices(broker, call, request))
    only = _only(broker, version, request)
    good, response = ([only], {}) if only is not None else sorted_out(broker, version, request)
    code = shard.check_commit(
        group_id, request.generation_id_or_member_epoch, request.member_id,
        request.group_instance_id if version >= 7 else None, now_ms, version=version, commits=good,
    )  # fmt: skip
    if code:
        return _refusal(call, request, code)
    frame = None
    if only is not None:
        acknowledge = commit_acknowledgement(version, only.topic_id if version >= _BY_ID else only.topic)
        frame = acknowledge(call.correlation_id, only.partition)
    if not good:
        return response
    if not shard.reserve_offsets(group_id, good, now_ms):
        return _refusal(call, request, ErrorCode.INVALID_COMMIT_OFFSET_SIZE)
    retention_ms = milliseconds(request.retention_time) if 2 <= version <= 4 else -1
    reply = CommitReply(broker, call, request, frame)
    shard.commit(
        group_id, good, broker.wall_ms + retention_ms if retention_ms >= 0 else -1, (reply, response)
    )
    return NoResponse.DONE if reply.is_answered else NoResponse.LATER


def is_long(request: Any) -> bool:
    """Whether there are so many rows that they are looked at in slices."""
    return sum(len(topic.partitions) for topic in request.topics) > STEP_COST


def _committed_in_slices(broker: Broker, call: Call, request: Any) -> Work:
    """The same for very many offsets: they are checked and encoded in slices, and then committed in one go."""
    version, group_id = call.entry.version, request.group_id
    good, response = yield from sorted_out_in_steps(broker, version, request)
    retention_ms = milliseconds(request.retention_time) if 2 <= version <= 4 else -1
    expire_ms = broker.wall_ms + retention_ms if retention_ms >= 0 else -1
    try:
        shard = find_shard(broker, group_id, writes=True, may_be_empty=True)
        records = shard.offset_records(group_id, good, expire_ms)
        encoded: list[Encoded] = []
        for at in range(0, len(records), STEP_COST):
            encoded += [Encoded(*encode(record)) for record in records[at : at + STEP_COST]]
            yield STEP_COST
        # Others had their turns meanwhile.
        shard = find_shard(broker, group_id, writes=True, may_be_empty=True)
    except Refusal as refused:
        return _refusal(call, request, refused.code)
    code = shard.check_commit(
        group_id, request.generation_id_or_member_epoch, request.member_id,
        request.group_instance_id if version >= 7 else None, broker.now_ms, version=version, commits=good,
    )  # fmt: skip
    if not code and not shard.reserve_offsets(group_id, good, broker.now_ms):
        code = ErrorCode.INVALID_COMMIT_OFFSET_SIZE
    if code:
        return _refusal(call, request, code)
    if not good:
        return response
    reply = CommitReply(broker, call, request, None)
    shard.commit_encoded(group_id, records, encoded, (reply, response))
    return NoResponse.DONE if reply.is_answered else NoResponse.LATER


def _only(broker: Broker, version: int, request: Any) -> Commit | None:
    """The one offset that most commits are about, if that can be committed: its answer is packed, not encoded."""
    if len(request.topics) != 1 or len(request.topics[0].partitions) != 1:
        return None
    asked = request.topics[0]
    commit = _checked(_topic(broker, version, asked), asked.partitions[0], version, broker)
    return commit if isinstance(commit, Commit) else None


def sorted_out(broker: Broker, version: int, request: Any) -> tuple[list[Commit], dict[str, Any]]:
    """What can be committed, and the answer."""
    return run(sorted_out_in_steps(broker, version, request))


def sorted_out_in_steps(
    broker: Broker, version: int, request: Any
) -> Steps[tuple[list[Commit], dict[str, Any]]]:
    good: list[Commit] = []
    rows: list[dict[str, Any]] = []
    for asked in request.topics:
        topic = _topic(broker, version, asked)
        outcomes: list[dict[str, Any]] = []
        for at in range(0, len(asked.partitions), STEP_COST):
            for each in asked.partitions[at : at + STEP_COST]:
                commit = _checked(topic, each, version, broker)
                if isinstance(commit, Commit):
                    good.append(commit)
                    commit = ErrorCode.NONE
                outcomes.append({"partition_index": each.partition_index, "error_code": commit})
            yield len(outcomes) - at
        rows.append(_named(asked, version) | {"partitions": outcomes})
    return good, {"topics": rows}


def _topic(broker: Broker, version: int, asked: Any) -> TopicImage | None:
    if version < _BY_ID:
        return broker.image.topics.get(asked.name)
    return None if asked.topic_id is None else broker.image.topics_by_id.get(asked.topic_id.bytes)


def _checked(topic: TopicImage | None, asked: Any, version: int, broker: Broker) -> Commit | ErrorCode:
    """What one row commits, or why it cannot."""
    if topic is None:
        return ErrorCode.UNKNOWN_TOPIC_ID if version >= _BY_ID else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    number, text = asked.partition_index, asked.committed_metadata or ""
    if not 0 <= number < len(topic.partitions):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if text and (len(text) > broker.config.offset_metadata_max_bytes or is_longer(text, STRING_BYTES_MAX)):
        return ErrorCode.OFFSET_METADATA_TOO_LARGE
    epoch = asked.committed_leader_epoch if version >= 6 else -1
    return Commit(topic.name, number, asked.committed_offset, epoch, text, topic.topic_id)


def _named(asked: Any, version: int) -> dict[str, Any]:
    """A row of the answer names its topic as the request does."""
    if version < _BY_ID:
        return {"name": asked.name}
    return {"topic_id": bytes(16) if asked.topic_id is None else asked.topic_id.bytes}


def _refusal(call: Call, request: Any, code: ErrorCode) -> Response:
    return {
        "topics": [
            _named(topic, call.version)
            | {
                "partitions": [
                    {"partition_index": each.partition_index, "error_code": code} for each in topic.partitions
                ]
            }
            for topic in request.topics
        ]
    }
