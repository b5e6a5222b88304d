"""Checks responses: the right version, in order, and a valid message.

The request may be garbage, but its first eight bytes determine the response. Used in process and over
sockets.
"""

from __future__ import annotations

from collections import deque
from struct import Struct
from typing import Any, Final

from ottla.broker.api.shared.api_table import APIS
from ottla.model.api_key import ApiKey
from ottla.wire.decode import read_tolerant, response_reader
from ottla.wire.schema import response_class, response_header_is_flexible
from testkit.fuzz.outcome import Failed

_START: Final = Struct(">hhi")
#: Depth and width up to which a response is searched for errors.
_LOOK: Final = 3


class Expected:
    """The requests of one connection that may still be answered."""

    __slots__ = ("_asked",)

    def __init__(self) -> None:
        self._asked: deque[tuple[int, int, int]] = deque()

    def ask(self, frame: bytes) -> None:
        """A request was sent; one too short for a header is never answered."""
        if len(frame) >= _START.size:
            self._asked.append(_START.unpack_from(frame))

    def answer(self, frame: bytes | memoryview) -> tuple[int, int, Any]:
        """(key, version, message) of a response without its size. Raises Failed if it answers nothing, or is
        invalid.
        """
        if len(frame) < 4:
            raise Failed(f"an answer of {len(frame)} bytes")
        correlation_id = int.from_bytes(frame[:4], "big", signed=True)
        while self._asked:
            key, version, asked = self._asked.popleft()
            if asked == correlation_id:
                try:
                    return key, version, self._decode(key, version, frame)
                except Failed:
                    # A produce with acks=0 whose mutated bytes gave it the correlation id of a later request?
                    if key != ApiKey.PRODUCE or all(other[2] != correlation_id for other in self._asked):
                        raise
                    continue
            if key != ApiKey.PRODUCE:
                raise Failed(
                    f"API {key} version {version}, request {asked}, was passed over by {correlation_id}"
                )
        raise Failed(f"an answer to {correlation_id}, which nobody asked")

    def _decode(self, key: int, version: int, frame: bytes | memoryview) -> Any:
        api = APIS[key]
        if not api.oldest <= version <= api.newest:
            if key != ApiKey.API_VERSIONS:
                raise Failed(f"API {key} version {version} is not served and was answered")
            # The response to an unsupported version has version 0.
            version = 0
        data = bytes(frame)
        start = 4
        if response_header_is_flexible(key, version):
            if data[4:5] != b"\0":
                raise Failed(f"API {key} version {version}: a header with tagged fields")
            start = 5
        try:
            message, size = response_reader(key, version)(data, start)
        except Exception:
            try:
                message, size = read_tolerant(response_class(key, version), data, start)
            except Exception as error:
                raise Failed(
                    f"API {key} version {version}: the answer {data.hex()} is none: {error!r}"
                ) from error
        if start + size != len(data):
            raise Failed(f"API {key} version {version}: {len(data) - start - size} bytes after the answer")
        return message


def is_refusal(message: Any, depth: int = _LOOK) -> bool:
    """Whether a response has an error code anywhere that matters."""
    code = getattr(message, "error_code", None)
    if code is not None and code.value:
        return True
    if depth and hasattr(message, "__dataclass_fields__"):
        for name in message.__dataclass_fields__:
            value = getattr(message, name)
            if value.__class__ is tuple and any(is_refusal(item, depth - 1) for item in value[:_LOOK]):
                return True
    return False
