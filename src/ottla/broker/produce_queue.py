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
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ottla.broker.api.table import SILENT, WAIT, Response
from ottla.log.validation import INLINE_COST_MAX, Validated, validate, validation_cost
from ottla.model.errors import ErrorCode, Refusal
from ottla.model.limits import PRODUCE_QUEUE_BYTES_MAX
from ottla.model.steps import Steps

if TYPE_CHECKING:
    from ottla.broker.connection import Call
    from ottla.broker.core import Broker
    from ottla.replication.replica import Replica

#: Rows of a request that is appended at once.
_ROWS_AT_ONCE_MAX: Final = 100
#: Rows that are appended between two looks at what the slice has cost, and the cost of one: an append that rolls a segment
#: makes four files.
_ROWS_IN_A_STEP: Final = 16
_ROW_COST: Final = 25
#: What a waiting request takes besides its records.
_REQUEST_BYTES: Final = 1024


class QueuedProduce:
    """One request in the queue; what was answered so far while it is appended in parts."""

    __slots__ = (
        "append",
        "call",
        "held_bytes",
        "is_validated",
        "record_errors",
        "replicas",
        "request",
        "response",
        "seen",
        "validated",
        "waiting",
    )

    def __init__(self, call: Call, request: Any, append: Callable[..., Response], held_bytes: int) -> None:
        self.call = call
        self.request = request
        self.append = append
        self.held_bytes = held_bytes
        self.replicas: list[Replica] = []
        self.is_validated = False
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
            hosted = self._broker.hosting.of_topic(topic, version)
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
        return rows > _ROWS_AT_ONCE_MAX or cost > INLINE_COST_MAX

    def add(self, call: Call, request: Any, append: Callable[..., Response]) -> Response:
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
        return WAIT if request.acks else SILENT

    def _rows(self, queued: QueuedProduce) -> Iterator[tuple[Any, Replica]]:
        """The rows for partitions that this broker has."""
        for topic in queued.request.topic_data:
            hosted = self._broker.hosting.of_topic(topic, queued.call.version)
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
        response = WAIT
        if request.transactional_id is not None:
            # At once: what the coordinator says holds for this moment.
            response = queued.append(broker, call, request, broker.now_ms, queued=queued)
            yield _ROW_COST
        else:
            for part, is_last in _parts(request):
                response = queued.append(
                    broker, call, request, broker.now_ms, queued=queued, part=part, is_last=is_last
                )
                yield _ROW_COST * _ROWS_IN_A_STEP
                _join_topics(queued.response["responses"])
            if queued.waiting is not None:
                queued.waiting.release()
        if response is not WAIT and response is not SILENT:
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


def _parts(request: Any) -> Iterator[tuple[list[Any], bool]]:
    """The topics of a request in parts of a few rows, and whether a part is the last."""
    parts: list[list[Any]] = [[]]
    room = _ROWS_IN_A_STEP
    for topic in request.topic_data:
        rows = topic.partition_data
        for start in range(0, max(len(rows), 1), _ROWS_IN_A_STEP):
            piece = rows[start : start + _ROWS_IN_A_STEP]
            if len(piece) > room:
                parts.append([])
                room = _ROWS_IN_A_STEP
            parts[-1].append(topic._replace(partition_data=piece))
            room -= len(piece)
    last = parts.pop()
    for part in parts:
        yield part, False
    yield last, True
