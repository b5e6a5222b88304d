"""Fetch (1): records of partitions from given offsets on, by zero copy; with incremental sessions (A4, B7, KIP-227).

Waits until `min_bytes` are there or `max_wait` is over. A consumer sees records below the high watermark only; with
isolation level 1 (read committed) below the last stable offset, and with them the list of those that were aborted. The answer
holds whole batches as they lie in the log, beginning with the one that holds the offset asked for; the last may be cut.

From version 11 on a consumer that tells its rack is sent to a replica there, if `replica.selector.class` is rack-aware (KIP-392), and
followers serve consumers below their own high watermark (R9). Whoever asks the wrong broker hears who leads (KIP-951).

Errors by partition: UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID, OFFSET_OUT_OF_RANGE, OFFSET_NOT_AVAILABLE (at a follower that
has not come so far), NOT_LEADER_OR_FOLLOWER, FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH, KAFKA_STORAGE_ERROR, CORRUPT_MESSAGE; of the request: FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH, and
CLUSTER_AUTHORIZATION_FAILED (before version 7 of each partition) for a fetch as a replica that is not on that broker's own connection.

This is the one answer that is not made by a compiled encoder, because its records are slices of files:

    throttle i32 | error i16 | session i32 (7+) | topics: name (-12) or id (13+), partitions:
        number i32 | error i16 | high watermark i64 | last stable offset i64 | log start i64 (5+) |
        aborted transactions (null unless read committed): producer id i64, first offset i64 | preferred replica i32 (11+) | records | tags: 0 diverging epoch,
        1 current leader (12+)
    tags: 0 endpoints of leaders (16+)
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ottla.broker.api.shared.api_table import NoResponse, Result, serves
from ottla.broker.api.shared.cluster_action import is_broker
from ottla.broker.requests.fetch_session import FetchPartition, FetchSession, find_topic
from ottla.broker.requests.headers import FLEXIBLE_RESPONSE_HEADER, RESPONSE_HEADER
from ottla.broker.requests.partition_read import Collected, PartitionData
from ottla.config.replication_table import RACK_AWARE
from ottla.log.transactions import Ended
from ottla.model.errors import ErrorCode
from ottla.model.limits import ROWS_PER_WRITE_MAX
from ottla.model.steps import STEP_COST
from ottla.ports.disk import DiskError
from ottla.wire.encode import uvarint

if TYPE_CHECKING:
    from ottla.broker.core import Broker
    from ottla.broker.requests.connection import Call
    from ottla.broker.requests.slices import Work
    from ottla.replication.replica import Replica

# Members of the enum as globals: on the produce and fetch paths an enum look-up would be one more.
_LATER: Final = NoResponse.LATER
_DONE: Final = NoResponse.DONE
_MS: Final = 1000
_NO_ID: Final = bytes(16)

#: Throttle, and from version 7 on error and session.
_TOP_4 = struct.Struct(">i")
_TOP_7 = struct.Struct(">ihi")
#: A partition up to its records, without and with log start and preferred replica; the aborted list is null or empty.
_ROW_4 = struct.Struct(">ihqqii")
_ROW_5 = struct.Struct(">ihqqqii")
_ROW_11 = struct.Struct(">ihqqqiii")
_ROW_12 = struct.Struct(">ihqqqBi")
#: The same in pieces, where the list is not empty.
_FIRST = struct.Struct(">ihqq")
_FIRST_12 = struct.Struct(">ihqqq")
_ABORTED = struct.Struct(">qq")
_ABORTED_12 = struct.Struct(">qqB")
_DIVERGING = struct.Struct(">iqB")
_LEADER = struct.Struct(">iiB")
_READ_COMMITTED: Final = 1
#: Errors of somebody who should ask another broker, or has old news of this one.
_ASKS_WRONG: Final = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)
#: Logs that one fetch opens in its own turn; more are opened in slices first.
_OPENED_AT_ONCE_MAX: Final = 20
#: Partitions of a full fetch that is answered in one turn: more are looked at in slices.
_ROWS_AT_ONCE_MAX: Final = 2_000
#: From this version on the answer has an error of the whole request.
_WITH_ERROR: Final = 7
#: From this version on a consumer can be sent to a follower, and read from one.
_ANY_REPLICA: Final = 11


@serves(1, rows_max=ROWS_PER_WRITE_MAX)
def fetch(
    broker: Broker,
    call: Call,
    request: Any,
    now_ms: int,
    *,
    are_logs_open: bool = False,
    large: FetchSession | None = None,
) -> Result:
    """`large` is a full fetch of very many partitions, which are added to it already: it is not answered here."""
    by_id = call.entry.version >= 13
    sessions = broker.fetch_sessions
    epoch = request.session_epoch
    if (broker.partitions.to_create or broker.partitions.unopened) and not are_logs_open:
        unopened = _unopened(broker, request, by_id)
        if len(unopened) > _OPENED_AT_ONCE_MAX:
            return broker.slices.answer(call, _in_slices(broker, call, request, unopened))
    if epoch <= 0:
        if large is None and _is_large(request):
            return broker.slices.answer(call, _in_slices(broker, call, request, []))
        follower = max(request.replica_state.replica_id, request.replica_id)
        if follower >= 0 and not is_broker(broker, call, follower):
            return _refuse_follower(broker, call, request, by_id)
        if request.session_id and (old := sessions.by_id.get(request.session_id)) is not None:
            if old.follower >= 0 and not is_broker(broker, call, old.follower):
                return _refuse(broker, call, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
            sessions.remove(old)
        session = FetchSession(sessions) if large is None else large
        session.follower = follower
        session.follower_epoch = request.replica_state.replica_epoch
        session.leader_only = call.entry.version < _ANY_REPLICA
        if session.follower >= 0:
            session.is_prompt = broker.config.replica_selector_class in RACK_AWARE
        if large is None:
            _add(broker, session, request.topics, by_id)
        if epoch == 0 and call.entry.version >= 7:
            session.used_ms = now_ms
            if sessions.create(session, now_ms):
                _belongs(call, session)
    else:
        known = sessions.by_id.get(request.session_id)
        if known is None:
            return _refuse(broker, call, ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if (
            known.follower >= 0
            and known.follower != call.connection.broker_id
            and not is_broker(broker, call, known.follower)
        ):
            return _refuse(broker, call, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        if (
            epoch == known.epoch % 0x7FFFFFFF + 1
            and known.call is not None
            and known.connection is call.connection
        ):
            # The next request of one who does not wait for this answer: so it gets it now.
            broker.delayed_fetches.answer(known)
        if epoch != known.epoch:
            return _refuse(broker, call, ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        session = known
        # A broker that registered anew keeps its session (R5).
        session.follower_epoch = request.replica_state.replica_epoch
        sessions.touch(session, now_ms)
        _belongs(call, session)
        if request.topics:
            _add(broker, session, request.topics, by_id)
        for topic in request.forgotten_topics_data:
            key = (topic.topic_id.int if topic.topic_id else 0) if by_id else topic.topic
            for number in topic.partitions:
                session.forget((key, number))
        if len(session.partitions) != session.counted:
            sessions.count(session)
    if session.call is not None:
        # A client that gave up on its last fetch and came back on another connection.
        stale = session.call
        broker.delayed_fetches.abandon(session)
        broker.reply(stale, _encode(stale, session, []))
    committed = request.isolation_level == _READ_COMMITTED
    if committed is not session.committed:
        session.committed = committed
        # What a session has nothing more to say about at one level it may at the other.
        session.dirty.update(dict.fromkeys(session.partitions.values()))
    if request.rack_id and session.follower < 0:
        session.rack = request.rack_id if broker.config.replica_selector_class in RACK_AWARE else ""
    session.bytes_max = min(request.max_bytes, broker.config.fetch_max_bytes)
    # More than it may get nobody can wait for.
    session.bytes_min = min(request.min_bytes, session.bytes_max)
    if large is not None:
        return _LATER
    return _answer_or_wait(broker, call, request, session, session.collect())


def _answer_or_wait(
    broker: Broker, call: Call, request: Any, session: FetchSession, collected: Collected
) -> Result:
    """Answer, or wait for more."""
    rows, total, failed = collected
    sessions = broker.fetch_sessions
    wait_ms = int(request.max_wait.total_seconds() * _MS)
    enough = total >= session.bytes_min or failed or wait_ms <= 0 or not session.partitions
    if enough or not (session.id or sessions.may_wait(session, call)):
        reply(broker, call, session, rows)
    else:
        broker.delayed_fetches.wait(session, call, broker.now_ms + wait_ms)
        return _LATER
    return _DONE


def _unopened(broker: Broker, request: Any, by_id: bool) -> list[Replica]:
    """Partitions whose logs would be created or opened for this request, after a start or when topics are new; none if the request
    has too few partitions for it to matter."""
    if sum([len(topic.partitions) for topic in request.topics]) <= _OPENED_AT_ONCE_MAX:
        return []
    return [
        replica
        for topic in request.topics
        if (hosted := find_topic(broker, topic.topic_id if by_id else topic.topic, by_id=by_id)) is not None
        for partition in topic.partitions
        if (replica := hosted.replicas.get(partition.partition)) is not None and not replica.opened
    ]


def _in_slices(broker: Broker, call: Call, request: Any, unopened: list[Replica]) -> Work:
    """A fetch whose logs have to be opened first, or a full one of very many partitions."""
    for replica in unopened:
        yield 1
        if not replica.gone and not replica.opened and replica.offline is None:
            # The fetch itself tells what is wrong with it.
            with suppress(DiskError):
                replica.log  # noqa: B018  (opens it)
    # The table knows handlers by the four arguments that all have.
    handler: Any = fetch
    if request.session_epoch > 0 or not _is_large(request):
        response: Result = handler(broker, call, request, broker.now_ms, are_logs_open=True)
        return response
    session = FetchSession(broker.fetch_sessions)
    by_id = call.entry.version >= 13
    for topic in request.topics:
        for at in range(0, len(topic.partitions), STEP_COST):
            piece = _Piece(
                topic.topic_id if by_id else None,
                topic.topic if not by_id else None,
                topic.partitions[at : at + STEP_COST],
            )
            _add(broker, session, (piece,), by_id)
            yield len(piece.partitions)
    response = handler(broker, call, request, broker.now_ms, are_logs_open=True, large=session)
    if response is not _LATER:
        return response
    collected = yield from session.collect_in_steps()
    response = _answer_or_wait(broker, call, request, session, collected)
    if response is _LATER:
        broker.delayed_fetches.recheck(session, collected[0])
    return response


class _Piece(NamedTuple):
    """Some partitions of one topic of a request."""

    topic_id: Any
    topic: Any
    partitions: Sequence[Any]


def _is_large(request: Any) -> bool:
    return sum([len(topic.partitions) for topic in request.topics]) > _ROWS_AT_ONCE_MAX


def _add(broker: Broker, session: FetchSession, topics: Any, by_id: bool) -> None:
    partitions, dirty = session.partitions, session.dirty
    for topic in topics:
        asked = topic.topic_id if by_id else topic.topic
        hosted = find_topic(broker, asked, by_id=by_id)
        key = (asked.int if asked else 0) if by_id else asked
        name = hosted.name if hosted is not None else ("" if by_id else asked)
        topic_id = hosted.topic_id if hosted is not None else (asked.bytes if by_id and asked else _NO_ID)
        for wanted in topic.partitions:
            number = wanted.partition
            partition = partitions.get((key, number))
            replica = hosted.replicas.get(number) if hosted is not None else None
            if partition is None:
                partition = partitions[key, number] = FetchPartition(
                    session, key, name, topic_id, number, replica
                )
                if session.watching:
                    partition.watch()
            elif partition.replica is not replica:
                partition.unwatch()
                partition.replica, partition.name = replica, name
                if session.watching:
                    partition.watch()
            epoch = wanted.current_leader_epoch
            if partition.leader_epoch != epoch or partition.offset == wanted.fetch_offset:
                # It comes again for the same: a follower that left out what it was told, of an epoch before or while it rested.
                partition.sent_watermark = -1
            partition.leader_epoch = epoch
            partition.offset = wanted.fetch_offset
            partition.bytes_max = wanted.partition_max_bytes
            partition.last_fetched_epoch = wanted.last_fetched_epoch
            partition.is_recorded = False
            # Last in line: partitions that were served come after those still waiting for their turn.
            dirty.pop(partition, None)
            dirty[partition] = None


def _belongs(call: Call, session: FetchSession) -> None:
    """A session lives as long as the connection that used it last: nobody watches for a client that is gone."""
    if session.connection is not call.connection:
        if session.connection is not None:
            session.connection.fetch_sessions.pop(session, None)
        session.connection = call.connection
        call.connection.fetch_sessions[session] = None


def _refuse(broker: Broker, call: Call, error: ErrorCode) -> Result:
    broker.reply(call, _encode(call, None, [], error))
    return _DONE


def _refuse_follower(broker: Broker, call: Call, request: Any, by_id: bool) -> Result:
    code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    if call.entry.version >= _WITH_ERROR:
        return _refuse(broker, call, code)
    session = FetchSession(broker.fetch_sessions)
    _add(broker, session, request.topics, by_id)
    rows = [PartitionData(partition, code, -1, -1, None) for partition in session.partitions.values()]
    broker.reply(call, _encode(call, session, rows))
    return _DONE


def reply(broker: Broker, call: Call, session: FetchSession, rows: list[PartitionData]) -> None:
    parts = _encode(call, session, rows)
    if session.id:
        # From now on the session counts, and remembers what it told.
        session.epoch = session.epoch % 0x7FFFFFFF + 1
        session.watch()
        for row in rows:
            row.partition.sent_watermark = row.high_watermark
            row.partition.sent_start = row.log_start_offset
    broker.reply(call, parts)


def _with_aborted(
    version: int,
    first: tuple[int, int, int, int],
    start: int,
    aborted: list[Ended],
    preferred: int,
    length: int,
) -> bytes:
    """A partition up to its records, with aborted transactions."""
    if version >= 12:
        return b"".join(
            (
                _FIRST_12.pack(*first, start),
                uvarint(len(aborted) + 1),
                *[_ABORTED_12.pack(ended[0], ended[1], 0) for ended in aborted],
                preferred.to_bytes(4, "big", signed=True),
                uvarint(length + 1),
            )
        )
    text = _FIRST.pack(*first)
    if version >= 5:
        text += start.to_bytes(8, "big", signed=True)
    text += len(aborted).to_bytes(4, "big")
    for ended in aborted:
        text += _ABORTED.pack(ended.producer_id, ended.first_offset)
    if version >= 11:
        text += preferred.to_bytes(4, "big", signed=True)
    return text + length.to_bytes(4, "big")


def _tags(
    partition: FetchPartition, code: int, diverging: tuple[int, int] | None, endpoints: dict[int, bytes]
) -> bytes:
    """What else is said of a partition: where the histories part (R1); or who leads it, whose address goes into `endpoints`."""
    if diverging is not None:
        return b"\x01\x00\x0d" + _DIVERGING.pack(*diverging, 0)
    sessions = partition.session.sessions
    known = sessions.leader_of(partition.topic_id, partition.number) if code in _ASKS_WRONG else None
    if known is None:
        return b"\x00"
    node, epoch = known
    if code == ErrorCode.NOT_LEADER_OR_FOLLOWER and node.node_id == sessions.node_id:
        # It is about to lead, and does not yet.
        return b"\x00"
    if node.node_id not in endpoints:
        endpoints[node.node_id] = _endpoint(node.node_id, node.host, node.port, node.rack)
    return b"\x01\x01\x09" + _LEADER.pack(node.node_id, epoch, 0)


def _endpoint(node_id: int, host: str, port: int, rack: str | None) -> bytes:
    name, where = host.encode(), (rack or "").encode()
    text = node_id.to_bytes(4, "big") + uvarint(len(name) + 1) + name + port.to_bytes(4, "big")
    return text + (b"\x00" if rack is None else uvarint(len(where) + 1) + where) + b"\x00"


def _endpoints(known: dict[int, bytes]) -> bytes:
    """The tags of the whole answer."""
    array = uvarint(len(known) + 1) + b"".join(known.values())
    return b"\x01\x00" + uvarint(len(array)) + array


def _encode(call: Call, session: FetchSession | None, rows: list[PartitionData], error: int = 0) -> list[Any]:
    version = call.entry.version
    flexible = version >= 12
    topics: dict[Any, list[PartitionData]] = {}
    if version >= 13:
        for row in rows:
            topics.setdefault(row.partition.topic_id, []).append(row)
    else:
        for row in rows:
            topics.setdefault(row.partition.name, []).append(row)
    parts: list[Any] = []
    text = bytearray()
    session_id = session.id if session is not None else 0
    text += _TOP_7.pack(0, error, session_id) if version >= 7 else _TOP_4.pack(0)
    text += uvarint(len(topics) + 1) if flexible else len(topics).to_bytes(4, "big")
    size = 0
    endpoints: dict[int, bytes] = {}
    for topic, of_topic in topics.items():
        if version >= 13:
            text += topic
        else:
            name = topic.encode()
            text += (uvarint(len(name) + 1) if flexible else len(name).to_bytes(2, "big")) + name
        text += uvarint(len(of_topic) + 1) if flexible else len(of_topic).to_bytes(4, "big")
        for partition, code, watermark, start, data, diverging, stable, aborted, preferred in of_topic:
            length = data.size if data is not None else 0
            number = partition.number
            if aborted:
                text += _with_aborted(
                    version, (number, code, watermark, stable), start, aborted, preferred, length
                )
            elif flexible:
                none = 0 if aborted is None else 1
                text += _ROW_12.pack(number, code, watermark, stable, start, none, preferred)
                text += uvarint(length + 1)
            else:
                none = -1 if aborted is None else 0
                if version >= 11:
                    text += _ROW_11.pack(number, code, watermark, stable, start, none, preferred, length)
                elif version >= 5:
                    text += _ROW_5.pack(number, code, watermark, stable, start, none, length)
                else:
                    text += _ROW_4.pack(number, code, watermark, stable, none, length)
            if data is not None:
                size += len(text) + length
                parts.append(text)
                parts.append(data)
                text = bytearray()
            if flexible:
                plain = diverging is None and not code
                text += b"\x00" if plain else _tags(partition, code, diverging, endpoints)
        if flexible:
            text += b"\x00"
    if flexible:
        text += _endpoints(endpoints) if endpoints and version >= 16 else b"\x00"
        head: bytes = FLEXIBLE_RESPONSE_HEADER.pack(size + len(text) + 5, call.correlation_id, 0)
    else:
        head = RESPONSE_HEADER.pack(size + len(text) + 4, call.correlation_id)
    if parts:
        parts[0] = head + parts[0]
        parts.append(text)
        return parts
    return [head + text]
