"""A bare client on a blocking socket: whole requests, pieces of them, or garbage."""

import socket
import time
from typing import Any, Self

from ottla.records.record import Record, decode_batches, encode_batch
from ottla.wire.decode import decode_response
from ottla.wire.encode import request_encoder
from ottla.wire.frames import ClientConnection
from ottla.wire.schema import version_range

#: Longer than anything healthy takes.
PATIENCE_S = 30

PRODUCE, FETCH, METADATA, API_VERSIONS, CREATE_TOPICS, DELETE_TOPICS = 0, 1, 3, 18, 19, 20


class Peer:
    def __init__(self, address: str, *, receive_buffer_bytes: int | None = None) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.socket()
        if receive_buffer_bytes is not None:
            # Set before connecting: it is what the other side may send without being read.
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        self.socket.settimeout(PATIENCE_S)
        self.socket.connect((host, int(port)))
        self._wire = ClientConnection("peer")
        self._asked: list[tuple[int, int]] = []
        self._came: list[Any] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.socket.close()

    def frame(self, key: int, version: int | None = None, /, **fields: Any) -> bytes:
        """A request whose answer will be read by `receive`."""
        versions = version_range(key)
        assert versions is not None
        version = versions[1] if version is None else version
        _id, frame = self._wire.request(key, version, request_encoder(key, version)(fields))
        self._asked.append((key, version))
        return frame

    def send(self, key: int, version: int | None = None, /, **fields: Any) -> None:
        self.socket.sendall(self.frame(key, version, **fields))

    def receive(self) -> Any:
        """The next answer."""
        while not self._came:
            data = self.socket.recv(1 << 20)
            if not data:
                raise ConnectionResetError("closed by the broker")
            self._came += self._wire.feed(data)
        _id, body = self._came.pop(0)
        return decode_response(*self._asked.pop(0), body, 0)

    def ask(self, key: int, version: int | None = None, /, **fields: Any) -> Any:
        self.send(key, version, **fields)
        return self.receive()

    def is_closed(self) -> bool:
        """Wait until the broker closes this connection; False if an answer comes instead."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True

    # --- what nearly every test asks for ------------------------------------------------------------------------

    def create(self, name: str, partitions: int = 1, **configs: str) -> None:
        rows = [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()]
        new = {"name": name, "num_partitions": partitions, "replication_factor": 1, "configs": rows}
        [row] = self.ask(CREATE_TOPICS, topics=[new]).topics
        assert row.error_code.value == 0, row.error_message

    def produce(self, topic: str, *values: bytes, partition: int = 0) -> int:
        """Produce one batch; its first offset."""
        now_ms = time.time_ns() // 1_000_000
        batch = encode_batch([Record(number, now_ms, b"k", value) for number, value in enumerate(values)])
        rows = [{"index": partition, "records": batch}]
        topics = [{"name": topic, "partition_data": rows}]
        row = (
            self.ask(PRODUCE, 12, acks=-1, timeout=30_000, topic_data=topics)
            .responses[0]
            .partition_responses[0]
        )
        assert row.error_code.value == 0, row.error_message
        offset: int = row.base_offset
        return offset

    def fetch(self, topic: str, offset: int, **fields: Any) -> list[bytes | None]:
        """The values of the batches from the one that holds `offset` on."""
        row = self.ask(FETCH, 12, **fetch_fields(topic, offset, **fields)).responses[0].partitions[0]
        assert row.error_code.value == 0
        return [record.value for record in decode_batches(row.records or b"")]


def fetch_fields(
    topic: str, offset: int, *, partition: int = 0, max_wait: int = 0, **fields: Any
) -> dict[str, Any]:
    row = {"partition": partition, "fetch_offset": offset, "partition_max_bytes": 1 << 26}
    return {
        "replica_id": -1, "max_wait": max_wait, "min_bytes": 1, "max_bytes": 1 << 26,
        "topics": [{"topic": topic, "partitions": [row]}], **fields,
    }  # fmt: skip


def is_closed(sock: socket.socket) -> bool:
    """Whether the broker has closed it, now."""
    sock.setblocking(False)
    try:
        return sock.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True
    finally:
        sock.settimeout(PATIENCE_S)
