"""Produce requests that take too long for one turn of the event loop: validated, then appended, in slices.

A request comes here if the records of one of its batches must be decoded or recompressed and there are many, if it has many
rows, or if another request waits here for one of its partitions: batches for a partition are appended in the order in
which they came. A request stands in the line of each of its partitions (`Replica.produces`) and is appended once it is the
first in all of them and its batches are validated. Its records are copied, because the frame is valid for one call only.

A batch of a transaction is validated before the coordinator is asked about it: nothing may come between the coordinator's
answer and the append (R17).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ottla.broker.api.shared.api_table import NoResponse, Response, Result
from ottla.log.validation import INLINE_COST_MAX, Validated, validate, validation_cost
from ottla.model.errors import ErrorCode, Refusal
from ottla.model.limits import PRODUCE_QUEUE_BYTES_MAX
from ottla.model.steps import Steps
from ottla.ports.disk import DiskError

if TYPE_CHECKING:
    from ottla.broker.core import Broker
    from ottla.broker.requests.connection import Call
    from ottla.replication.replica import Replica

#: Rows of a request that is appended at once.
_ROWS_AT_ONCE_MAX: Final = 100
#: Rows that are appended between two looks at what the slice has cost, and the cost of one: an append that rolls a segment
#: makes four files.
_ROWS_IN_A_STEP: Final = 16
_ROW_COST: Final = 25
#: The same for a request of a transaction, whose coordinator is asked for each part, and perhaps writes a record.
_ROWS_IN_A_TRANSACTIONS_PART: Final = 100
#: What a waiting request takes besides its records.
_REQUEST_BYTES: Final = 1024


class QueuedProduce:
    """One request in the queue; what was answered so far while it is appended in parts."""

    __slots__ = (
        "append",
        "call",
        "held_bytes",
        "is_validated",
        "parts",
        "record_errors",
        "replicas",
        "request",
        "response",
        "seen",
        "validated",
        "waiting",
    )

    def __init__(self, call: Call, request: Any, append: Callable[..., Result], held_bytes: int) -> None:
        self.call = call
        self.request = request
        self.append = append
        self.held_bytes = held_bytes
        self.replicas: list[Replica] = []
        self.is_validated = False
        #: Those that are left of a transaction's request that is appended in parts.
        self.parts: deque[list[Any]] = deque()
        #: By the identity of the batch.
        self.validated: dict[int, Validated] = {}
        self.response: Response = {"responses": []}
        #: How many rejected records the answer names so far.
        self.record_errors = 0
        #: The rows that were appended, in order to refuse repeated ones.
        self.seen: set[tuple[int, int]] = set()
        #: The produce that waits for the high watermark, once there is one (`api/produce.py`).
        self.waiting: Any = None


class ProduceQueue:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        #: Bytes of the requests that are in the queue.
        self.held_bytes = 0
        #: Those whose turn it is.
        self._ready: deque[QueuedProduce] = deque()
        self._is_appending = False

    def must_wait(self, request: Any, version: int) -> bool:
        """Whether a request of several rows, or of a transaction, belongs in the queue."""
        rows = cost = 0
        for topic in request.topic_data:
            rows += len(topic.partition_data)
            if rows > _ROWS_AT_ONCE_MAX:
                return True
            hosted = self._broker.partitions.of_topic(topic, version)
            if hosted is None:
                continue
            for partition in topic.partition_data:
                replica = hosted.replicas.get(partition.index)
                if replica is None or not partition.records:
                    continue
                if replica.produces is not None:
                    return True
                if not replica.config.plain:
                    cost += validation_cost(partition.records, replica.config)
                    if cost > INLINE_COST_MAX:
                        # The others are not looked at: that may mean unpacking them.
                        return True
        return False

    def add(self, call: Call, request: Any, append: Callable[..., Result]) -> Result:
        """What the handler returns. `append(broker, call, request, now_ms, queued=…, part=…)` is called later."""
        if self.held_bytes > PRODUCE_QUEUE_BYTES_MAX:
            raise Refusal(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"{self.held_bytes} bytes of other requests wait to be validated: try again later",
            )
        request, held_bytes = kept(request)
        held_bytes += _REQUEST_BYTES
        self.held_bytes += held_bytes
        queued = QueuedProduce(call, request, append, held_bytes)
        for _partition, replica in self._rows(queued):
            line = replica.produces
            if line is None:
                line = replica.produces = deque()
            if not line or line[-1] is not queued:
                # A partition that the request names twice has one place in line.
                line.append(queued)
                queued.replicas.append(replica)

        def done(_result: None, error: Exception | None) -> None:
            if error is not None:
                self._leave(queued)
                self._broker.slices.failed(call, error)

        self._broker.slices.begin(self._validate(queued), done)
        return NoResponse.LATER if request.acks else NoResponse.DONE

    def _rows(self, queued: QueuedProduce) -> Iterator[tuple[Any, Replica]]:
        """The rows for partitions that this broker has."""
        for topic in queued.request.topic_data:
            hosted = self._broker.partitions.of_topic(topic, queued.call.version)
            if hosted is None or hosted.is_internal:
                continue
            for partition in topic.partition_data:
                replica = hosted.replicas.get(partition.index)
                if replica is not None:
                    yield partition, replica

    def _validate(self, queued: QueuedProduce) -> Steps[None]:
        for partition, replica in self._rows(queued):
            config = replica.config
            if not config.plain and partition.records:
                where = f"{replica.topic}-{replica.number}"
                batch = partition.records
                queued.validated[id(batch)] = yield from validate(batch, config, where)
            yield 1
        queued.is_validated = True
        self._look(queued)

    def _look(self, queued: QueuedProduce) -> None:
        """Append it if its turn has come."""
        if queued.is_validated and all(
            replica.produces is not None and replica.produces[0] is queued for replica in queued.replicas
        ):
            # Once: who is ready is the first in all its lines until it leaves them.
            queued.is_validated = False
            self._ready.append(queued)
            if not self._is_appending:
                self._is_appending = True
                self._broker.slices.begin(self._append_ready(), self._appended)

    def _append_ready(self) -> Steps[None]:
        while self._ready:
            queued = self._ready.popleft()
            try:
                yield from self._append(queued)
            except Exception as error:
                self._broker.slices.failed(queued.call, error)
            self._leave(queued)

    def _appended(self, _result: None, error: Exception | None) -> None:
        self._is_appending = False
        assert error is None, error

    def _append(self, queued: QueuedProduce) -> Steps[None]:
        broker, call, request = self._broker, queued.call, queued.request
        response: Result = NoResponse.LATER
        if request.transactional_id is not None:
            if sum(len(topic.partition_data) for topic in request.topic_data) > _ROWS_AT_ONCE_MAX:
                yield from self._append_in_parts(queued)
                return
            # At once: what the coordinator says holds for this moment.
            response = queued.append(broker, call, request, broker.now_ms, queued=queued)
            yield _ROW_COST
        else:
            for part, is_last in _parts(request):
                began = len(broker.outbox)
                response = queued.append(
                    broker, call, request, broker.now_ms, queued=queued, part=part, is_last=is_last
                )
                broker.let_others_sync_first(began)
                yield _ROW_COST * _ROWS_IN_A_STEP
                _join_topics(queued.response["responses"])
            if queued.waiting is not None:
                queued.waiting.release()
        if not isinstance(response, NoResponse):
            broker.answer(call, response)

    def _append_in_parts(self, queued: QueuedProduce) -> Steps[None]:
        """A request of a transaction with many rows: the coordinator is asked for each part by itself, right before it is appended."""
        broker, call, request = self._broker, queued.call, queued.request
        from ottla.broker.api.shared.transactional_produce import named_producers, refused_all, too_many

        for _partition, replica in self._rows(queued):
            yield 1
            if not replica.opened and not replica.gone and replica.offline is None:
                # The append itself tells what is wrong with it.
                with suppress(DiskError):
                    replica.log  # noqa: B018  (opens it)
        if len(named_producers(request)) > 1:
            response = refused_all(broker, call, request, too_many())
            if not isinstance(response, NoResponse):
                broker.answer(call, response)
            return
        queued.parts = deque(part for part, _is_last in _parts(request, _ROWS_IN_A_TRANSACTIONS_PART))
        yield from self._append_part(queued)

    def _append_part(self, queued: QueuedProduce) -> Steps[None]:
        yield _ROW_COST * _ROWS_IN_A_TRANSACTIONS_PART
        broker = self._broker
        some = replace(queued.request, topic_data=tuple(queued.parts.popleft()))
        began = len(broker.outbox)
        queued.append(broker, queued.call, some, broker.now_ms, queued=queued, is_last=False)
        broker.let_others_sync_first(began)

    def part_appended(self, queued: QueuedProduce) -> None:
        """A part of a transaction's request was appended, or refused. The next one has another turn; after the last comes the answer."""
        broker, call = self._broker, queued.call
        _join_topics(queued.response["responses"])
        if queued.parts:

            def done(_result: None, error: Exception | None) -> None:
                if error is not None:
                    broker.slices.failed(call, error)

            broker.slices.begin(self._append_part(queued), done)
            return
        response = queued.append(
            broker, call, queued.request, broker.now_ms, refused={}, queued=queued, part=[]
        )
        if queued.waiting is not None:
            queued.waiting.release()
        if not isinstance(response, NoResponse):
            broker.answer(call, response)

    def _leave(self, queued: QueuedProduce) -> None:
        self.held_bytes -= queued.held_bytes
        behind: dict[QueuedProduce, None] = {}
        for replica in queued.replicas:
            line = replica.produces
            assert line is not None
            line.remove(queued)
            if line:
                behind[line[0]] = None
            else:
                replica.produces = None
        queued.replicas.clear()
        for each in behind:
            self._look(each)


@dataclass(slots=True)
class _Row:
    index: int
    records: bytes | None


class _Topic(NamedTuple):
    #: By version one of the two is there.
    name: str | None
    topic_id: Any
    partition_data: tuple[_Row, ...]


def kept(request: Any) -> tuple[Any, int]:
    """The request with copies of its records, whose frame is valid no longer than the call; and how many bytes they take."""
    kept_bytes = 0
    topics = []
    for topic in request.topic_data:
        rows = []
        for partition in topic.partition_data:
            records = partition.records
            if records:
                records = bytes(records)
                kept_bytes += len(records)
            rows.append(_Row(partition.index, records))
        topics.append(_Topic(getattr(topic, "name", None), getattr(topic, "topic_id", None), tuple(rows)))
    return replace(request, topic_data=tuple(topics)), kept_bytes


def _join_topics(topics: list[dict[str, Any]]) -> None:
    """Rows of one topic that were appended in several parts become one topic of the answer again."""
    at = len(topics) - 1
    while at > 0:
        last, before = topics[at], topics[at - 1]
        if any(last.get(key) != before.get(key) for key in ("name", "topic_id")):
            return
        before["partition_responses"] += last["partition_responses"]
        del topics[at]
        at -= 1


def _parts(request: Any, size: int = _ROWS_IN_A_STEP) -> Iterator[tuple[list[Any], bool]]:
    """The topics of a request in parts of a few rows, and whether a part is the last."""
    parts: list[list[Any]] = [[]]
    room = size
    for topic in request.topic_data:
        rows = topic.partition_data
        for start in range(0, max(len(rows), 1), size):
            piece = rows[start : start + size]
            if len(piece) > room:
                parts.append([])
                room = size
            parts[-1].append(topic._replace(partition_data=piece))
            room -= len(piece)
    last = parts.pop()
    for part in parts:
        yield part, False
    yield last, True
