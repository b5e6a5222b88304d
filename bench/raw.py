"""Producers and a reader on blocking sockets that send prepared frames: clients with almost no CPU cost.

librdkafka needs more CPU for a one-message request than the broker, and on a small machine both share the
cores. Here a request is one `sendall` of prepared bytes, so the measured cost is the broker's. Every response
is checked: correlation id and error code.

    frame     size i32 | key i16 | version i16 | correlation id i32 | client id | tags | body
    answer    size i32 | correlation id i32 | tags | 1 topic | name | 1 partition | index i32 | error i16 | ...
"""

import io
import socket
import struct
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Self

from crc32c import crc32c
from kio.schema.produce.v11.request import PartitionProduceData, ProduceRequest, TopicProduceData
from kio.schema.request_header.v2.header import RequestHeader
from kio.schema.types import TopicName
from kio.serial import entity_writer
from kio.static.primitive import Records, i16, i32, i32Timedelta

from bench.members import frame

CORRELATION_POSITION = 8
# Positions in a batch: the start of the bytes that the CRC covers, and the sequence number.
COVERED_POSITION = 21
SEQUENCE_POSITION = 53
FETCH = 1, 12
BATCH_TAIL = struct.Struct(
    ">hiqqqhii"
)  # attributes ... record count: the bytes before the records that the CRC covers


def _varint(value: int) -> bytes:
    """A zigzag varint, as in record lengths."""
    value = value << 1 if value >= 0 else (-value << 1) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def one_message_batch(value: bytes, timestamp_ms: int, producer_id: int = -1) -> bytes:
    record = b"\0\0\0" + _varint(-1) + _varint(len(value)) + value + _varint(0)
    records = _varint(len(record)) + record
    epoch = sequence = -1 if producer_id < 0 else 0
    covered = BATCH_TAIL.pack(0, 0, timestamp_ms, timestamp_ms, producer_id, epoch, sequence, 1) + records
    # Partition leader epoch -1, magic 2, CRC: 9 bytes, included in the batch length.
    return struct.pack(">qiibI", 0, len(covered) + 9, -1, 2, crc32c(covered)) + covered


def produce_frame(topic: str, value: bytes, producer_id: int = -1) -> bytes:
    batch = one_message_batch(value, time.time_ns() // 1_000_000, producer_id)
    request = ProduceRequest(
        acks=i16(-1),
        timeout=i32Timedelta.parse(timedelta(seconds=30)),
        topic_data=(
            TopicProduceData(
                name=TopicName(topic),
                partition_data=(PartitionProduceData(index=i32(0), records=Records(batch)),),
            ),
        ),
    )
    header = RequestHeader(
        request_api_key=ProduceRequest.__api_key__,
        request_api_version=ProduceRequest.__version__,
        correlation_id=i32(0),
        client_id="bench",
    )
    buffer = io.BytesIO()
    entity_writer(RequestHeader)(buffer, header)
    entity_writer(ProduceRequest)(buffer, request)
    body = buffer.getvalue()
    return struct.pack(">i", len(body)) + body


def fetch_frame(topic: str, offset: int, size: int, *, committed: bool, wait_ms: int = 500) -> bytes:
    partition = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": size}
    fields = {
        "topics": [{"topic": topic, "partitions": [partition]}],
        "max_wait": wait_ms,
        "min_bytes": 1,
        "max_bytes": size,
        "isolation_level": int(committed),
        "session_epoch": -1,
    }
    return frame(FETCH, fields)


class UnexpectedAnswer(RuntimeError):
    """The broker returned an error, or a response out of order."""


class RawClient:
    """A connection that repeats one request with new correlation ids."""

    def __init__(self, port: int, request: bytes, error_position: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=30)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._frame = bytearray(request)
        self._error_position = error_position
        self._sent = self._answered = 0
        self._received = bytearray()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._socket.close()

    def _change(self) -> None:
        """Update what differs between requests, besides the correlation id."""

    def _send(self, count: int) -> None:
        frames = bytearray()
        for _ in range(count):
            struct.pack_into(">i", self._frame, CORRELATION_POSITION, self._sent)
            self._change()
            self._sent += 1
            frames += self._frame
        self._socket.sendall(frames)

    def _receive(self) -> int:
        """Wait for bytes. Returns the number of complete responses."""
        data = self._socket.recv(1 << 18)
        if not data:
            raise UnexpectedAnswer("the broker closed the connection")
        received = self._received
        received += data
        position = count = 0
        while len(received) - position >= 4:
            (size,) = struct.unpack_from(">i", received, position)
            if len(received) - position - 4 < size:
                break
            (correlation,) = struct.unpack_from(">i", received, position + 4)
            (error,) = struct.unpack_from(">h", received, position + 4 + self._error_position)
            if correlation != self._answered or error:
                raise UnexpectedAnswer(
                    f"answer {correlation} to request {self._answered} has error code {error}"
                )
            self._answered += 1
            count += 1
            position += 4 + size
        del received[:position]
        return count

    def round_trips_ns(self, count: int) -> list[int]:
        """Send one request at a time. Returns the duration of each."""
        times = []
        clock = time.perf_counter_ns
        for _ in range(count):
            begin = clock()
            self._send(1)
            while not self._receive():
                pass
            times.append(clock() - begin)
        return times

    def pipeline(self, count: int, in_flight: int) -> None:
        """Send `count` requests, with up to `in_flight` at a time."""
        end = self._answered + count
        self._send(in_flight)
        while self._answered < end:
            answered = self._receive()
            self._send(min(answered, end - self._sent))


class RawProducer(RawClient):
    """Produces one message per request to partition 0 of a topic.

    With a producer id (epoch 0) it is idempotent: each batch has the next sequence number and its own CRC.
    With -1 it does the same work without effect: a slower client would leave the broker fewer requests per
    wake-up, which cost more each.
    """

    def __init__(self, port: int, topic: str, message_bytes: int, producer_id: int | None = None) -> None:
        request = produce_frame(topic, bytes(message_bytes), -1 if producer_id is None else producer_id)
        super().__init__(port, request, error_position=4 + 1 + 1 + 1 + len(topic) + 1 + 4)
        self._producer_id = producer_id
        batch_bytes = len(one_message_batch(bytes(message_bytes), 0))
        # The batch is followed by the tags of the partition, the topic and the request, one byte each.
        self._batch = len(request) - 3 - batch_bytes

    def _change(self) -> None:
        if self._producer_id is None:
            return
        sequence = self._sent if self._producer_id >= 0 else -1
        struct.pack_into(">i", self._frame, self._batch + SEQUENCE_POSITION, sequence)
        covered = memoryview(self._frame)[self._batch + COVERED_POSITION : -3]
        struct.pack_into(">I", self._frame, self._batch + COVERED_POSITION - 4, crc32c(bytes(covered)))


class RawReader(RawClient):
    """Fetches from partition 0 of a topic, a few batches per request, repeatedly from the same offsets."""

    def __init__(
        self, port: int, topic: str, offsets: Sequence[int], fetch_bytes: int, *, committed: bool
    ) -> None:
        frames = [fetch_frame(topic, offset, fetch_bytes, committed=committed) for offset in offsets]
        super().__init__(port, frames[0], error_position=4 + 1 + 4)
        self._frames = frames

    def _change(self) -> None:
        self._frame = bytearray(self._frames[self._sent % len(self._frames)])
        struct.pack_into(">i", self._frame, CORRELATION_POSITION, self._sent)
