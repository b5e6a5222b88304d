import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress

import pytest
from crc32c import crc32c

from bench.raw import RawProducer, UnexpectedAnswer, one_message_batch, produce_frame

Answer = Callable[[int], tuple[int, int]]


def test_a_batch_is_well_formed() -> None:
    batch = one_message_batch(b"v" * 100, 1_700_000_000_000)
    base, length, _, magic, crc = struct.unpack_from(">qiibI", batch)
    assert (base, length, magic) == (0, len(batch) - 12, 2)
    assert crc == crc32c(batch[21:])


class Peer(threading.Thread):
    """Answers produce requests on a socket as `answer(correlation id)` says: (correlation id, error code)."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(daemon=True)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.answer = answer
        self.frames = 0

    def run(self) -> None:
        frame_bytes = len(produce_frame("topic", bytes(100)))
        # The client leaves in the middle when it refuses an answer.
        with suppress(ConnectionError), self.listener, self.listener.accept()[0] as connection:
            while frame := connection.recv(frame_bytes, socket.MSG_WAITALL):
                self.frames += 1
                correlation, error = self.answer(struct.unpack_from(">i", frame, 8)[0])
                body = (
                    struct.pack(">ib", correlation, 0)
                    + b"\x02\x06topic\x02"
                    + struct.pack(">ih", 0, error)
                    + bytes(30)
                )
                connection.sendall(struct.pack(">i", len(body)) + body)


def test_every_request_is_answered_once() -> None:
    peer = Peer(lambda correlation: (correlation, 0))
    peer.start()
    with RawProducer(peer.port, "topic", 100) as producer:
        producer.pipeline(23, in_flight=5)
        assert len(producer.round_trips_ns(3)) == 3
    peer.join(10)
    assert peer.frames == 26


@pytest.mark.parametrize(
    "answer", [lambda correlation: (correlation, 3), lambda correlation: (correlation + 1, 0)]
)
def test_errors_and_disorder_are_refused(answer: Answer) -> None:
    peer = Peer(answer)
    peer.start()
    with RawProducer(peer.port, "topic", 100) as producer, pytest.raises(UnexpectedAnswer):
        producer.pipeline(10, in_flight=5)
    peer.join(10)
