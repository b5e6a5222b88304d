"""Produce (0): append one batch to each partition named.

acks 0: written, no answer. acks 1: answered when it is in the log (durable policy: when it is synced). acks -1: answered
when the high watermark has passed it. A repeated batch of an idempotent producer answers with its first offset (R14). Before the
first batch of a transaction the coordinator is asked whether it is one (R17, `api/producing.py`).

Errors by partition: UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID, INVALID_TOPIC_EXCEPTION (an internal one),
NOT_LEADER_OR_FOLLOWER (from version 10 on with the leader and where it is, KIP-951), INVALID_REQUIRED_ACKS, REQUEST_TIMED_OUT,
NOT_ENOUGH_REPLICAS and NOT_ENOUGH_REPLICAS_AFTER_APPEND (R8), and those of `PartitionLog.append`. Of transactions:
TRANSACTIONAL_ID_AUTHORIZATION_FAILED (a batch of one in a request that names none), INVALID_PRODUCER_ID_MAPPING, INVALID_TXN_STATE,
INVALID_PRODUCER_EPOCH, TRANSACTION_ABORTABLE (from version 11 on); NOT_ENOUGH_REPLICAS if the coordinator cannot tell now.
INVALID_REQUEST for a partition that the request has named before: its first batch is appended, others are not.

Records are decoded only if the topic's settings ask for it; what that finds is named record by record (KIP-467). Where it
takes long, and for requests with many rows, it goes in slices (`produce_queue.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from ottla.broker.api.shared.api_table import NoResponse, Response, Result, serves
from ottla.broker.api.shared.transactional_produce import (
    ADDS_SINCE,
    TransactionalProduce,
    has_transactional,
    refused_all,
)
from ottla.broker.requests.delayed_produce import DelayedProduce, hint_leader
from ottla.log.partition_log import PartitionLog
from ottla.model.errors import ErrorCode, Refusal
from ottla.model.limits import RECORD_ERRORS_PER_ANSWER_MAX, ROWS_PER_PRODUCE_MAX
from ottla.ports.disk import DiskError
from ottla.records.batch import ATTRIBUTES_LOW, CODEC_MASK, MAGIC, MAGIC_START, TRANSACTIONAL_BIT
from ottla.records.compression import ZSTD

if TYPE_CHECKING:
    from ottla.broker.core import Broker
    from ottla.broker.requests.connection import Call
    from ottla.broker.requests.produce_queue import QueuedProduce
    from ottla.broker.storage.partitions import LocalTopic
    from ottla.log.validation import Validated
    from ottla.transactions.formats import Place

# Members of the enum as globals: on the produce and fetch paths an enum look-up would be one more.
_LATER: Final = NoResponse.LATER
_DONE: Final = NoResponse.DONE

#: Errors without a log start offset in their answers, as in Kafka.
_WITHOUT_LOG_START: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.INVALID_REQUIRED_ACKS,
        ErrorCode.INVALID_REQUEST,
    }
)


@serves(0, request_bytes_max=None, rows_max=ROWS_PER_PRODUCE_MAX)
def produce(
    broker: Broker,
    call: Call,
    request: Any,
    now_ms: int,
    refused: Mapping[Place, Refusal] | None = None,
    queued: QueuedProduce | None = None,
    part: list[Any] | None = None,
    is_last: bool = True,
) -> Result:
    """`refused` are the partitions whose batches belong to no transaction; None while that has not been looked at.

    `queued` is a request that comes out of the queue, perhaps in parts: `part` has some of its topics, with some of their rows.
    """
    transactional = request.transactional_id is not None
    topic_data = request.topic_data
    single = len(topic_data) == 1 and len(topic_data[0].partition_data) == 1 and queued is None
    version = call.entry.version
    waiting: DelayedProduce | None = None
    topics: list[dict[str, Any]] = []
    response: Response = {"responses": topics}
    seen: set[tuple[int, int]] | None = None
    if transactional or not single:
        if queued is None and refused is None:
            if not transactional and has_transactional(request):
                return refused_all(broker, call, request, _nameless())
            if broker.produce_queue.must_wait(request, version):
                return _enqueue(broker, call, request)
        if transactional and refused is None:
            append: Callable[..., Result] = produce
            return TransactionalProduce(
                broker, call, request, partial(append, queued=queued, is_last=is_last)
            ).begin()
        seen = set()
        if queued is not None:
            response, waiting, seen = queued.response, queued.waiting, queued.seen
            topics = response["responses"]
            if part is not None:
                topic_data = part
    acks = request.acks
    by_id = version >= 13
    validated: Validated | None = None
    # One batch is what most produces are: its answer is packed without a dict on the way.
    frame: bytes | None = None
    date_ms = now_ms + broker.wall_clock.ahead_ms
    for topic in topic_data:
        hosted: LocalTopic | None
        if by_id:
            hosted = broker.partitions.by_id.get(topic.topic_id.int) if topic.topic_id else None
        else:
            hosted = broker.partitions.by_name.get(topic.name)
        rows = []
        for partition in topic.partition_data:
            index = partition.index
            try:
                if hosted is None:
                    raise _unknown_topic(by_id)
                if hosted.is_internal:
                    raise Refusal(
                        ErrorCode.INVALID_TOPIC_EXCEPTION, f"{hosted.name} is written by the broker alone"
                    )
                replica = hosted.replicas.get(index)
                if replica is None or (leading := replica.leading) is None:
                    raise _not_led(broker, hosted, index)
                if acks == -1 and len(leading.isr) < leading.isr_min:
                    raise Refusal(
                        ErrorCode.NOT_ENOUGH_REPLICAS,
                        f"{hosted.name}-{index} has {len(leading.isr)} replicas in sync, min.insync.replicas is {leading.isr_min}",
                    )
                if seen is None:
                    if (
                        replica.produces is not None or not replica.config.plain
                    ) and broker.produce_queue.must_wait(request, version):
                        return _enqueue(broker, call, request)
                else:
                    if refused and (hosted.name, index) in refused:
                        raise refused[hosted.name, index]
                    if (id(hosted), index) in seen:
                        raise _repeated(hosted, index)
                    seen.add((id(hosted), index))
                    validated = queued.validated.get(id(partition.records)) if queued is not None else None
                log = replica.log
                appended = _append(
                    log,
                    partition.records,
                    replica.leader_epoch,
                    version,
                    acks,
                    date_ms,
                    transactional,
                    validated,
                )
            except Refusal as refusal:
                row = _refused_row(index, refusal, hosted, queued)
                if refusal.code is ErrorCode.NOT_LEADER_OR_FOLLOWER and hosted is not None:
                    hint_leader(broker, hosted, row, response)
                rows.append(row)
                continue
            except DiskError as error:
                rows.append({
                    "index": index, "error_code": ErrorCode.KAFKA_STORAGE_ERROR, "base_offset": -1,
                    "error_message": str(error),
                })  # fmt: skip
                continue
            base_offset, last_offset, append_time, duplicate = appended
            if not duplicate:
                broker.appended(replica, log, now_ms)
            if single and acks:
                acknowledge = hosted.acknowledgement(version)
                frame = acknowledge(
                    call.correlation_id, index, base_offset, append_time, log.log_start_offset
                )
                if last_offset < replica.high_watermark or (acks == 1 and last_offset < replica.own_end):
                    broker.reply(call, [frame])
                    return _DONE
            row = {
                "index": index, "error_code": 0, "base_offset": base_offset,
                "log_append_time": append_time, "log_start_offset": log.log_start_offset,
            }  # fmt: skip
            rows.append(row)
            if acks and last_offset >= replica.high_watermark:
                line = replica.waiting
                if acks == 1:
                    if last_offset < replica.own_end:
                        continue
                    line = replica.waiting_here
                if waiting is None:
                    waiting = DelayedProduce(broker, call, response, frame)
                    if queued is not None:
                        queued.waiting = waiting.hold()
                waiting.open_rows[id(row)] = row
                line.append((last_offset + 1, waiting, row))
        if by_id:
            topics.append(
                {
                    "topic_id": hosted.topic_id if hosted else _bytes(topic.topic_id),
                    "partition_responses": rows,
                }
            )
        else:
            topics.append({"name": topic.name, "partition_responses": rows})
    if not is_last:
        if transactional and queued is not None:
            broker.produce_queue.part_appended(queued)
        return _LATER
    if acks == 0:
        if any(row["error_code"] for topic in topics for row in topic["partition_responses"]):
            # Without an answer this is the only way to tell: the client reconnects and looks at its metadata again.
            broker.close(call.connection, "a produce with acks=0 failed")
        return _DONE
    if waiting is None:
        return response
    call.abandon = waiting.abandon
    broker.timers.add(waiting, now_ms + max(0, int(request.timeout.total_seconds() * 1000)))
    if queued is not None and part is None:
        waiting.release()
    return _LATER


def _enqueue(broker: Broker, call: Call, request: Any) -> Result:
    try:
        return broker.produce_queue.add(call, request, produce)
    except Refusal as refusal:
        return refused_all(broker, call, request, refusal)


def _repeated(hosted: LocalTopic, index: int) -> Refusal:
    return Refusal(
        ErrorCode.INVALID_REQUEST,
        f"the request names {hosted.name}-{index} more than once: its first batch is taken, this one is not",
    )


def _refused_row(
    index: int, refusal: Refusal, hosted: LocalTopic | None, queued: QueuedProduce | None
) -> dict[str, Any]:
    row: dict[str, Any] = {
        "index": index,
        "error_code": refusal.code,
        "base_offset": -1,
        "error_message": refusal.message,
    }
    record_errors = refusal.record_errors
    if queued is not None and record_errors:
        record_errors = record_errors[: RECORD_ERRORS_PER_ANSWER_MAX - queued.record_errors]
        queued.record_errors += len(record_errors)
    if record_errors:
        row["record_errors"] = [
            {"batch_index": at, "batch_index_error_message": message} for at, message in record_errors
        ]
    if hosted is not None and refusal.code not in _WITHOUT_LOG_START:
        replica = hosted.replicas.get(index)
        if replica is not None and replica.opened:
            row["log_start_offset"] = replica.log.log_start_offset
    return row


def _append(
    log: PartitionLog,
    records: bytes | None,
    leader_epoch: int,
    version: int,
    acks: int,
    date_ms: int,
    transactional: bool,
    validated: Validated | None,
) -> Any:
    if acks not in (-1, 0, 1):
        raise Refusal(ErrorCode.INVALID_REQUIRED_ACKS, f"acks must be 0, 1 or -1 (all), not {acks}")
    if not records:
        raise Refusal(ErrorCode.INVALID_RECORD, "the request holds no batch for this partition")
    if len(records) > ATTRIBUTES_LOW:
        if records[MAGIC_START] != MAGIC:
            raise Refusal(
                ErrorCode.INVALID_RECORD,
                f"Produce version {version} takes batches of magic {MAGIC}, not {records[MAGIC_START]}",
            )
        attributes = records[ATTRIBUTES_LOW]
        if attributes & TRANSACTIONAL_BIT and not transactional:
            raise _nameless()
        codec = attributes & CODEC_MASK
        if codec > ZSTD or (codec == ZSTD and version < 7):
            raise Refusal(
                ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
                f"codec {codec} is not known to Produce version {version}",
            )
        if attributes & TRANSACTIONAL_BIT and version >= ADDS_SINCE:
            return log.append(records, leader_epoch, date_ms, has_new_epoch=True, validated=validated)
    if validated is None:
        return log.append(records, leader_epoch, date_ms)
    return log.append(records, leader_epoch, date_ms, validated=validated)


def _nameless() -> Refusal:
    return Refusal(
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        "a batch of a transaction needs a transactional id in its request",
    )


def _not_led(broker: Broker, hosted: LocalTopic, index: int) -> Refusal:
    if broker.not_here(hosted.topic_id, None, index) is None:
        return Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{hosted.name} has no partition {index} here")
    return Refusal(
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        f"broker {broker.config.node_id} does not lead {hosted.name}-{index}",
    )


def _unknown_topic(by_id: bool) -> Refusal:
    return Refusal(
        ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        "this broker has no such topic",
    )


def _bytes(topic_id: Any) -> bytes | None:
    return topic_id.bytes if topic_id is not None else None
