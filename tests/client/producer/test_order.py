"""Order and exactly-once of records with several batches in flight, against a model of a broker and its
network.

The model broker keeps a producer's last epoch and its last five batches, like a real one. Requests arrive in
order, as on one connection. The broker may refuse a request for a while, or write it and answer with an
error; or the connection breaks, with some requests written and all responses lost. A batch with a bad record
is always refused, a batch that is too large always as too large.
"""

import itertools
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.client.errors import ConnectionLost, DeliveryTimedOut, InvalidRequest, KafkaError, refused
from ottla.client.metadata import TopicPartition
from ottla.client.producer.accumulator import Accumulator, Limits
from ottla.client.producer.batches import ProducerBatch, ProducerId, SendFuture, record_of
from ottla.model.errors import ErrorCode

TP = TopicPartition("t", 0)
RECORD_BYTES = 36 + 8
RECORDS_MAX = 3
REMEMBERED = 5


class Request(NamedTuple):
    batch: ProducerBatch
    producer: ProducerId | None
    sequence: int
    values: list[bytes]


class Answer(NamedTuple):
    batch: ProducerBatch
    code: ErrorCode
    offset: int


class Partition:
    """A broker's side."""

    def __init__(self) -> None:
        self.log: list[bytes] = []
        self.epoch = -1
        self.batches: list[tuple[int, int, int]] = []

    def produce(self, request: Request) -> tuple[ErrorCode, int]:
        if len(request.values) > RECORDS_MAX:
            return ErrorCode.MESSAGE_TOO_LARGE, -1
        if any(value.startswith(b"bad") for value in request.values):
            return ErrorCode.INVALID_RECORD, -1
        offset = len(self.log)
        if request.producer is not None:
            _, epoch = request.producer
            first, last = request.sequence, request.sequence + len(request.values) - 1
            if epoch < self.epoch:
                return ErrorCode.INVALID_PRODUCER_EPOCH, -1
            if epoch > self.epoch:
                if self.batches and first:
                    return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
                self.epoch, self.batches = epoch, []
            for known_first, known_last, known_offset in self.batches:
                if (known_first, known_last) == (first, last):
                    return ErrorCode.NONE, known_offset
            if self.batches and first != self.batches[-1][1] + 1:
                return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
            self.batches = [*self.batches, (first, last, offset)][-REMEMBERED:]
        self.log += request.values
        return ErrorCode.NONE, offset


class World:
    def __init__(self, *, in_flight_max: int, idempotent: bool, batch_records: int = 4) -> None:
        self.producer: ProducerId | None = (7, 0) if idempotent else None
        self.queue = Accumulator(
            Limits(
                batch_bytes=61 + batch_records * RECORD_BYTES,
                buffer_bytes=1 << 20,
                request_bytes=1 << 20,
                delivery_timeout_ms=1000,
                in_flight_max=in_flight_max,
            )
        )
        self.broker = Partition()
        self.futures: dict[bytes, SendFuture] = {}
        self.requests: list[Request] = []
        self.answers: list[Answer] = []
        self.now_ms = 0.0
        self.numbers = itertools.count()

    def send(self, *, bad: bool = False) -> None:
        value = b"%s%04d" % (b"bad " if bad else b"good", next(self.numbers))
        record, size_bytes = record_of(value, None, (), 1)
        assert size_bytes == RECORD_BYTES
        appended = self.queue.append(TP, record, size_bytes, self.now_ms)
        assert appended is not None
        self.futures[value] = appended[0]

    def drain(self) -> None:
        for batch in self.queue.drain(self.now_ms, lambda _: 1, producer=self.producer).ready.get(1, []):
            values = [record.value or b"" for record in batch.records]
            self.requests.append(Request(batch, batch.producer, batch.sequence, values))

    def serve(self, refusal: ErrorCode | None = None, *, taken: bool = False) -> None:
        if not self.requests:
            return
        request = self.requests.pop(0)
        code, offset = ErrorCode.NONE, -1
        if refusal is None or taken:
            code, offset = self.broker.produce(request)
        self.answers.append(Answer(request.batch, code or refusal or ErrorCode.NONE, offset))

    def answer(self) -> None:
        if self.answers:
            batch, code, offset = self.answers.pop(0)
            if code:
                self.queue.fail(batch, refused(code, "producing"), self.now_ms, 10)
            else:
                self.queue.finish(batch, None, offset)

    def disconnect(self, carried_out: int) -> None:
        for _ in range(carried_out):
            self.serve()
        lost = [each.batch for each in self.answers] + [each.batch for each in self.requests]
        self.answers.clear()
        self.requests.clear()
        for batch in lost:
            self.queue.fail(batch, ConnectionLost("broke"), self.now_ms, 10)

    def wait(self, duration_ms: float) -> None:
        self.now_ms += duration_ms
        self.queue.expired(self.now_ms)

    def in_flight(self) -> list[ProducerBatch]:
        """Batches that were sent and have no outcome. One that has timed out does not hold back the next epoch's."""
        sent = [each.batch for each in (*self.requests, *self.answers)]
        return [batch for batch in sent if not batch.done]

    def finish(self) -> None:
        """All goes well from now on: a batch needs a few rounds, and not its whole time."""
        rounds = 10 + 8 * len(self.queue.outstanding())
        while not self.queue.empty:
            rounds -= 1
            assert rounds, "it goes round in circles"
            self.drain()
            self.serve()
            self.answer()
            self.wait(0.1 if self.requests else 11)


def act(world: World, step: str, number: int) -> None:
    match step:
        case "send":
            for _ in range(number + 1):
                world.send()
        case "send bad":
            world.send(bad=True)
        case "drain":
            for _ in range(number + 1):
                world.drain()
        case "serve":
            world.serve()
        case "refuse":
            world.serve(ErrorCode.NOT_ENOUGH_REPLICAS)
        case "take and refuse":
            world.serve(ErrorCode.REQUEST_TIMED_OUT, taken=True)
        case "answer":
            world.answer()
        case "disconnect":
            world.disconnect(number)
        case "wait":
            world.wait(20)
        case "wait long":
            world.wait(1000)


STEPS = (
    "send", "send", "drain", "drain", "serve", "serve", "answer", "answer", "refuse", "take and refuse", "disconnect", "wait",
    "wait long", "send bad",
)  # fmt: skip
plans = st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 4)), max_size=60)


def number_of(value: bytes) -> int:
    return int(value[4:])


def told(world: World) -> tuple[list[bytes], list[KafkaError]]:
    """The records that are acknowledged, and the errors of the others."""
    good, errors = [], []
    for value, future in world.futures.items():
        error = future.exception(0)
        if error is None:
            good.append(value)
        else:
            errors.append(error)
    return good, errors


@given(plans, st.integers(1, 5))
def test_with_idempotence_each_record_is_there_once_and_in_order(
    plan: list[tuple[str, int]], in_flight_max: int
) -> None:
    world = World(in_flight_max=in_flight_max, idempotent=True)
    for step, number in plan:
        act(world, step, number)
        assert len(world.in_flight()) <= in_flight_max
    world.finish()
    numbers = [number_of(value) for value in world.broker.log]
    assert numbers == sorted(set(numbers))
    good, errors = told(world)
    assert set(good) <= set(world.broker.log)
    for value in good:
        assert world.broker.log[world.futures[value].result(0).offset] == value
    # What is not acknowledged failed for its own sake: not for the numbers, which the producer mends itself.
    assert {type(error) for error in errors} <= {InvalidRequest, DeliveryTimedOut}
    assert world.queue.buffered_bytes == 0


@given(plans)
def test_without_it_one_request_at_a_time_keeps_order_and_may_repeat(plan: list[tuple[str, int]]) -> None:
    world = World(in_flight_max=1, idempotent=False)
    for step, number in plan:
        act(world, step, number)
    world.finish()
    firsts = [number_of(value) for value in dict.fromkeys(world.broker.log)]
    assert firsts == sorted(firsts)
    good, _ = told(world)
    assert set(good) <= set(world.broker.log)


def test_without_it_several_requests_reorder_at_a_retry() -> None:
    """C6, and what the two ways out of it cost: one request at a time, or numbers."""

    def log(in_flight_max: int, *, idempotent: bool) -> list[int]:
        world = World(in_flight_max=in_flight_max, idempotent=idempotent, batch_records=2)
        world.send()
        world.drain()
        world.serve()
        world.answer()
        for _ in range(4):
            world.send()
        for _ in range(2):
            world.drain()
        world.serve(ErrorCode.NOT_ENOUGH_REPLICAS)
        world.finish()
        return [number_of(value) for value in world.broker.log]

    assert log(5, idempotent=True) == log(1, idempotent=False) == list(range(5))
    assert log(5, idempotent=False) == [0, 3, 4, 1, 2]


def test_epochs_that_are_used_up_ask_for_another_id() -> None:
    world = World(in_flight_max=5, idempotent=True)
    world.producer = (7, 0x7FFF)
    world.broker.epoch = -1
    world.send(bad=True)
    world.drain()
    world.serve()
    world.answer()
    assert world.queue.exhausted
    world.producer = (8, 0)
    world.broker = Partition()
    world.send()
    world.finish()
    assert world.broker.log == [b"good0001"]


@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_PRODUCER_ID, ErrorCode.INVALID_PRODUCER_EPOCH])
def test_a_broker_that_forgot_the_producer_gets_the_batch_under_the_next_epoch(code: ErrorCode) -> None:
    world = World(in_flight_max=5, idempotent=True)
    world.send()
    world.drain()
    world.serve(code)
    world.answer()
    world.wait(20)
    world.drain()
    assert [(each.producer, each.sequence) for each in world.requests] == [((7, 1), 0)]
    world.serve()
    world.answer()
    assert told(world) == ([b"good0000"], [])


def test_a_broker_that_lost_records_is_told_of() -> None:
    world = World(in_flight_max=5, idempotent=True)
    world.send()
    world.drain()
    world.serve(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    world.answer()
    _, (error,) = told(world)
    assert error.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    world.send()
    world.finish()
    assert world.broker.log == [b"good0001"]
