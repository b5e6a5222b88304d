"""A client's connection as the core sees it, and one request on it.

Answers leave in the order in which the requests came (the protocol's rule), although a request may have to wait for
data, for a sync or for a proposal. A connection keeps the calls that are not answered yet, plus those answered behind
them; the head of that line decides when anything leaves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from ottla.broker.api.shared.api_table import Entry
    from ottla.broker.requests.fetch_session import FetchSession
    from ottla.security.broker_handshake import HandshakeAcceptor


class Connection:
    __slots__ = (
        "broker_id", "closed", "fetch_sessions", "handshake", "has_large_answer", "held_bytes", "paused", "peer", "transport",
        "waiting",
    )  # fmt: skip

    def __init__(self, peer: str) -> None:
        #: Where it comes from, for people.
        self.peer = peer
        #: The shell's own object for it; opaque here.
        self.transport: Any = None
        #: The unanswered calls and those behind them. A list: it is short, and an empty deque takes ten times its memory.
        self.waiting: list[Call] = []
        #: Gone, or to be closed: nothing more that came on it is looked at.
        self.closed = False
        #: Its fetch sessions, which end with it.
        self.fetch_sessions: dict[FetchSession, None] = {}
        #: Whether the shell was asked to stop reading.
        self.paused = False
        #: Whether an answer was large since the shell looked last. Its next request waits until it has left, or is known not
        #: to be read.
        self.has_large_answer = False
        #: Bytes of answers behind one that is not there yet.
        self.held_bytes = 0
        #: The broker that has proven to be at the other end; None for everybody else.
        self.broker_id: int | None = None
        #: The proof that is under way.
        self.handshake: HandshakeAcceptor | None = None


class Call:
    """One request: where its answer goes and how it is encoded. `parts` is set once the answer is there."""

    __slots__ = ("abandon", "client_id", "connection", "correlation_id", "entry", "parts", "queued")

    def __init__(self, connection: Connection, entry: Entry, correlation_id: int) -> None:
        self.connection = connection
        self.entry = entry
        self.correlation_id = correlation_id
        self.parts: list[Any] | None = None
        #: What the client calls itself; only there for APIs that ask for it.
        self.client_id: str
        #: Whether it stands in the connection's line.
        self.queued = False
        #: Called if the connection goes before the answer: whoever waits stops waiting.
        self.abandon: Callable[[], None] | None = None

    @property
    def version(self) -> int:
        return self.entry.version


class EnclosedConnection(Connection):
    """The connection of one request that no client of ours sent: it came in an envelope, or is this broker's own.

    Its answer is not sent but handed to `done`, with its header and without its size. Its line is never empty, so that the
    core needs to look for such a connection only where an answer would have to wait.
    """

    __slots__ = ("_done",)

    def __init__(
        self, peer: str, done: Callable[[bytes | None, str | None], None], broker_id: int | None = None
    ) -> None:
        super().__init__(peer)
        self.broker_id = broker_id
        self._done: Callable[[bytes | None, str | None], None] | None = done
        self.waiting.append(Call(self, cast(Any, None), -1))

    def answered(self, parts: list[Any]) -> None:
        self._end(b"".join(parts)[4:], None)

    def failed(self, reason: str) -> None:
        """It would have been closed."""
        self._end(None, reason)

    def _end(self, answer: bytes | None, error: str | None) -> None:
        done, self._done = self._done, None
        if done is not None and not self.closed:
            self.closed = True
            done(answer, error)
