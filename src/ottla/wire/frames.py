"""The client side of one connection, without I/O: request frames out, response bodies in.

A frame is an int32 size, then that many bytes. The header of a request is: api key int16, version int16,
correlation id int32, client id (legacy nullable string) and, in flexible versions, a tagged section (always
empty here). The header of a response is its correlation id int32 and, in flexible versions, a tagged section,
which is skipped.

A broker answers the requests of a connection in order. A response out of order, an unknown correlation id or
a size above the limit raises MalformedMessage; the connection must then be closed. Used by `runtime/` for
other brokers and by `client/`.
"""

from collections import deque
from struct import Struct
from typing import Final

from ottla.wire.guard import MalformedMessage, read_uvarint
from ottla.wire.schema import request_header_is_flexible, response_header_is_flexible

RESPONSE_BYTES_MAX: Final = 128 * 1024 * 1024

_REQUEST_START: Final = Struct(">ihhi")
_INT32: Final = Struct(">i")
_SIZE_BYTES: Final = 4
_CORRELATION_ID_LIMIT: Final = 2**31
_HEADER_TAGS_MAX: Final = 10_000


class ClientConnection:
    """Correlation ids and framing of one connection. Create a new object for every connection."""

    def __init__(self, client_id: str | None, response_bytes_max: int = RESPONSE_BYTES_MAX) -> None:
        encoded = None if client_id is None else client_id.encode()
        length = -1 if encoded is None else len(encoded)
        self._client_id = length.to_bytes(2, "big", signed=True) + (encoded or b"")
        self._response_bytes_max = response_bytes_max
        self._next_correlation_id = 0
        self._expected: deque[tuple[int, bool]] = deque()
        # Chunks are joined when the frame is complete, so a large response is copied once.
        self._chunks: list[bytes | bytearray] = []
        self._bytes_buffered = 0
        self._bytes_wanted = _SIZE_BYTES

    @property
    def in_flight(self) -> int:
        """The number of outstanding responses."""
        return len(self._expected)

    @property
    def next_correlation_id(self) -> int:
        """The correlation id of the next request."""
        return self._next_correlation_id

    @property
    def missing_bytes(self) -> int:
        """Missing bytes of the incomplete frame."""
        return self._bytes_wanted - self._bytes_buffered

    def request(
        self, api_key: int, version: int, body: bytes, *, is_answered: bool = True
    ) -> tuple[int, bytes]:
        """The correlation id and the frame. A produce with acks=0 gets no response: `is_answered=False`."""
        correlation_id = self._next_correlation_id
        self._next_correlation_id = (correlation_id + 1) % _CORRELATION_ID_LIMIT
        header = self._client_id + b"\0" if request_header_is_flexible(api_key, version) else self._client_id
        size = _REQUEST_START.size - _SIZE_BYTES + len(header) + len(body)
        start = _REQUEST_START.pack(size, api_key, version, correlation_id)
        if is_answered:
            self._expected.append((correlation_id, response_header_is_flexible(api_key, version)))
        return correlation_id, b"".join((start, header, body))

    def feed(self, data: bytes | bytearray | memoryview) -> list[tuple[int, memoryview]]:
        """Add received bytes; returns the completed responses as (correlation id, body), in order.

        A bytearray is not copied and must not change afterwards; a view is copied. Bodies are read-only.
        """
        chunk = bytes(data) if isinstance(data, memoryview) else data
        if chunk:
            self._chunks.append(chunk)
            self._bytes_buffered += len(chunk)
        if self._bytes_buffered < self._bytes_wanted:
            return []
        first = self._chunks[0]
        buffered = first if len(self._chunks) == 1 and type(first) is bytes else b"".join(self._chunks)
        view, position, answers = memoryview(buffered), 0, []
        while True:
            self._bytes_wanted = self._frame_bytes(buffered, position)
            if len(buffered) - position < self._bytes_wanted:
                break
            end = position + self._bytes_wanted
            answers.append(self._answer(view[position + _SIZE_BYTES : end]))
            position = end
        rest = buffered[position:]
        self._chunks = [rest] if rest else []
        self._bytes_buffered = len(rest)
        return answers

    def _frame_bytes(self, buffered: bytes, position: int) -> int:
        """The size of the frame at `position` with its size field, or of that field if it is incomplete."""
        if len(buffered) - position < _SIZE_BYTES:
            return _SIZE_BYTES
        size: int = _INT32.unpack_from(buffered, position)[0]
        if not _INT32.size <= size <= self._response_bytes_max:
            raise MalformedMessage(
                f"a response of {size} bytes, at most {self._response_bytes_max} are taken"
            )
        return _SIZE_BYTES + size

    def _answer(self, frame: memoryview) -> tuple[int, memoryview]:
        correlation_id: int = _INT32.unpack_from(frame)[0]
        if not self._expected:
            raise MalformedMessage(f"a response to request {correlation_id}, but none is expected")
        expected, header_is_flexible = self._expected.popleft()
        if correlation_id != expected:
            raise MalformedMessage(f"a response to request {correlation_id}, but {expected} is next")
        start = _INT32.size
        if header_is_flexible:
            try:
                start = after_tags(frame, start)
            except IndexError:
                start = len(frame) + 1
            if start > len(frame):
                raise MalformedMessage("a response header that does not end")
        return correlation_id, frame[start:]


def after_tags(frame: memoryview, offset: int) -> int:
    """The offset after the tagged section at `offset`."""
    count, offset = read_uvarint(frame, offset)
    if count > _HEADER_TAGS_MAX:
        raise MalformedMessage(f"{count} tagged fields in a header, at most {_HEADER_TAGS_MAX} are read")
    for _ in range(count):
        _, offset = read_uvarint(frame, offset)
        size, offset = read_uvarint(frame, offset)
        offset += size
    return offset
