"""Responses on their way out: encoded, and sent in the order of the requests of their connection.

A connection keeps its unanswered calls and the calls that were answered behind them (`Connection.waiting`). A response
leaves when it is the first of that line. Two limits stop the reading of a connection: the number of calls in its line, and
the bytes of responses that wait in it.

`Broker` binds `answer`, `reply` and `close` under its own name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ottla.broker.requests.connection import Call, Connection, EnclosedConnection
from ottla.broker.requests.headers import FLEXIBLE_RESPONSE_HEADER, RESPONSE_HEADER
from ottla.model.limits import QUEUED_ANSWER_BYTES_PER_CONNECTION, REQUESTS_WAITING_PER_CONNECTION_MAX
from ottla.ports.effects import CLOSE, PAUSE, RESUME, SEND

if TYPE_CHECKING:
    from ottla.broker.api.shared.api_table import Response
    from ottla.broker.core import Broker

#: After a response of this size the connection's next request waits until the response has left, or its client does not read.
_LARGE_ANSWER_BYTES: Final = 64 * 1024


class Answers:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._isolation = broker.isolation
        #: Bytes of responses that wait behind others of their connections, or are being encoded in slices.
        self.held_bytes = 0

    def answer(self, call: Call, response: Response) -> None:
        """Encode the response to a call and send it when the calls before it are answered.

        Raises nothing: if the response cannot be encoded, its connection is closed, and the caller can go on.
        """
        try:
            body = call.entry.encode(response)
            if call.entry.flexible_response:
                head = FLEXIBLE_RESPONSE_HEADER.pack(len(body) + 5, call.correlation_id, 0)
            else:
                head = RESPONSE_HEADER.pack(len(body) + 4, call.correlation_id)
        except Exception as error:
            what = (
                f"the answer of API {call.entry.key} version {call.entry.version} to {call.connection.peer}"
            )
            self._isolation.contain(what, error, call=call, reloads=False)
            return
        if len(body) > _LARGE_ANSWER_BYTES:
            call.connection.has_large_answer = True
        self.reply(call, [head + body])

    def answer_encoded(self, call: Call, parts: list[bytes]) -> None:
        """Send a response whose body is encoded already, in parts."""
        size = sum(map(len, parts))
        if size > _LARGE_ANSWER_BYTES:
            call.connection.has_large_answer = True
        if call.entry.flexible_response:
            head = FLEXIBLE_RESPONSE_HEADER.pack(size + 5, call.correlation_id, 0)
        else:
            head = RESPONSE_HEADER.pack(size + 4, call.correlation_id)
        self.reply(call, [head, *parts])

    def reply(self, call: Call, parts: list[Any]) -> None:
        """Send a whole frame, header included. Parts may be slices of files."""
        connection = call.connection
        waiting = connection.waiting
        if not waiting:
            if not connection.closed:
                self._broker.outbox.append((SEND, connection, parts))
            return
        if isinstance(connection, EnclosedConnection):
            self._isolation.run("a forwarded answer", connection.answered, parts)
            return
        call.parts = parts
        call.abandon = None
        if connection.closed:
            # The runtime closes it in this turn: nothing more is sent.
            return
        if waiting[0] is call:
            outbox = self._broker.outbox
            while waiting and waiting[0].parts is not None:
                outbox.append((SEND, connection, waiting.pop(0).parts))
            if connection.held_bytes:
                self._hold(connection, -connection.held_bytes)
                for held in waiting:
                    if held.parts is not None:
                        self._hold(connection, _memory_bytes(held.parts))
            if (
                connection.paused
                and connection.held_bytes <= QUEUED_ANSWER_BYTES_PER_CONNECTION
                and len(waiting) < REQUESTS_WAITING_PER_CONNECTION_MAX // 2
            ):
                connection.paused = False
                outbox.append((RESUME, connection))
        else:
            if not call.queued:
                self.queue(call)
            self._hold(connection, _memory_bytes(parts))

    def _hold(self, connection: Connection, size: int) -> None:
        """Count bytes of responses that wait behind another; too many of them stop the reading."""
        connection.held_bytes += size
        self.held_bytes += size
        if connection.held_bytes > QUEUED_ANSWER_BYTES_PER_CONNECTION and not connection.paused:
            connection.paused = True
            self._broker.outbox.append((PAUSE, connection))

    def queue(self, call: Call) -> None:
        """Append a call to the line of its connection; a line that grows too long stops the reading."""
        connection = call.connection
        call.queued = True
        connection.waiting.append(call)
        if len(connection.waiting) >= REQUESTS_WAITING_PER_CONNECTION_MAX and not connection.paused:
            connection.paused = True
            self._broker.outbox.append((PAUSE, connection))

    def close(self, connection: Connection, reason: str) -> None:
        """Close a connection: what is still to be answered on it is dropped."""
        if isinstance(connection, EnclosedConnection):
            self._isolation.run("a forwarded answer", connection.failed, reason)
            return
        if connection.closed:
            # It was closed while one of its calls waited.
            return
        connection.closed = True
        self._broker.outbox.append((CLOSE, connection, reason))

    def disconnected(self, connection: Connection) -> None:
        """A connection is gone: its calls stop waiting."""
        connection.closed = True
        for call in connection.waiting:
            abandon, call.abandon = call.abandon, None
            if abandon is not None:
                self._isolation.run("the end of a connection", abandon)
        connection.waiting.clear()
        self.held_bytes -= connection.held_bytes
        connection.held_bytes = 0


def _memory_bytes(parts: list[Any]) -> int:
    """The bytes of a response that are in memory: slices of files are not."""
    return sum(len(part) for part in parts if not isinstance(part, tuple))
