import os
import socket

import ottla
from ottla.client.receive_buffer import LOW_WATER_BYTES_MAX, PIECE_BYTES_MAX, SCRATCH_BYTES, ReceiveBuffer


def arrive(buffer: ReceiveBuffer, data: bytes) -> bytes | bytearray:
    room = buffer.room()
    room[: len(data)] = data
    return buffer.filled(len(data))


def test_small_answers_are_ready_at_once_and_stay_as_they_were() -> None:
    buffer = ReceiveBuffer()
    first = arrive(buffer, b"one")
    assert arrive(buffer, b"two") == b"two"
    assert first == b"one"


def test_the_rest_of_a_large_frame_is_one_piece() -> None:
    buffer = ReceiveBuffer()
    rest = os.urandom(SCRATCH_BYTES + 1)
    buffer.expect(len(rest))
    assert len(buffer.room()) == len(rest)
    assert arrive(buffer, rest[:10]) == b""
    # What is missing is told after every answer; a piece that has begun goes on.
    buffer.expect(len(rest) - 10)
    assert arrive(buffer, rest[10:]) == rest
    assert len(buffer.room()) == SCRATCH_BYTES


def test_a_size_that_a_frame_claims_is_not_believed_at_once() -> None:
    buffer = ReceiveBuffer()
    buffer.expect(1 << 30)
    assert len(buffer.room()) == PIECE_BYTES_MAX


def test_nobody_is_woken_before_a_large_answer_is_there() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        buffer = ReceiveBuffer()
        buffer.attach(ours)

        def low_water_bytes() -> int:
            return ours.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT)

        rest = bytes(SCRATCH_BYTES + 100)
        buffer.expect(len(rest))
        assert low_water_bytes() == len(rest)
        arrive(buffer, rest[:100])
        assert low_water_bytes() == SCRATCH_BYTES
        arrive(buffer, rest[100:])
        assert low_water_bytes() == 1
        buffer.expect(1 << 30)
        assert low_water_bytes() == LOW_WATER_BYTES_MAX


def test_frames_larger_than_a_piece_come_whole(ottla_address: str, topic_name: str) -> None:
    value, count = os.urandom(1_000_000), 12
    with ottla.Producer(ottla_address) as producer:
        for _ in range(count):
            producer.send(topic_name, value).result(30)
    with ottla.Consumer(
        ottla_address,
        auto_offset_reset="earliest",
        max_partition_fetch_bytes=16 << 20,
        fetch_min_bytes=PIECE_BYTES_MAX + (1 << 20),
    ) as consumer:
        consumer.assign([(topic_name, 0)])
        seen: list[bytes] = []
        for polled in consumer.batches():
            seen += [record.value for records in polled.values() for record in records]
            if len(seen) >= count:
                break
    assert seen == [value] * count
