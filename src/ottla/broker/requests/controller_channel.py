"""Requests for the controller: those that clients send to any broker, and this broker's own.

A client's request that only the controller can serve (`@serves(key, by_controller=True)`) is put whole, with its header, into
an Envelope (KIP-590) and asked of the controller, whose answer goes back to the client as it is, in the order of its
connection. While no controller is known, or the one that was known does not answer or is none any more, it is asked again
until the request's own time-out; the same while the controller cannot reach the cluster store. Only then the client hears an error, in the form of the API that it called. So a request can
reach two controllers, as a client's own retry can: the second then answers what a second request is answered.

The answer is held until this broker's own image has what the controller's had (`api/envelope.py`), so that whoever creates a
topic here also finds it here.

On the controller, and for its own requests, the same handlers run on an `EnclosedConnection` connection: one request, no network.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from ottla.broker.api import envelope
from ottla.broker.api.shared.api_table import NoResponse, Response, Result
from ottla.broker.api.shared.proposals import limit_ms as commit_limit_ms
from ottla.broker.requests.connection import EnclosedConnection
from ottla.broker.requests.headers import REQUEST_HEADER
from ottla.model.api_key import ApiKey
from ottla.model.errors import ErrorCode
from ottla.model.limits import COMMIT_WAIT_MS
from ottla.model.timer_wheel import Later
from ottla.ports.effects import ASK
from ottla.wire.decode import MalformedMessage, decode_response
from ottla.wire.encode import request_encoder
from ottla.wire.frames import after_tags
from ottla.wire.schema import request_header_is_flexible, response_header_is_flexible

if TYPE_CHECKING:
    from ottla.broker.core import Broker
    from ottla.broker.requests.connection import Call


#: The lanes of ASK: this broker's own requests do not stand in line behind those of its clients.
OWN_LANE: Final = 0
CLIENTS_LANE: Final = -1

#: A controller is elected within a second; asking a few times until then costs nothing.
RETRY_MS: Final = 50
#: The same while this broker controls and the store cannot be reached: `store_back` asks at once.
SUSPENDED_RETRY_MS: Final = 1_000
#: How long a request with a time-out of its own is kept at most.
FORWARD_MS_MAX: Final = 60_000
#: How long an answer is held for this broker to catch up. It is milliseconds behind, unless the store is out of reach.
CATCH_UP_MS: Final = 5_000

STORE_AWAY: Final = "the cluster store (ZooKeeper) cannot be reached, so nothing in the cluster can change: start it, then try again"

#: `done(answer, error)`: one of them is None. May be called before the asking returns.
Done: TypeAlias = Callable[[Any, str | None], None]

_SIZE: Final = struct.Struct(">i")

#: Of APIs whose answers have an error a row and none for all: the rows of answer and request, and what a row is known by.
_ROWS: Final[dict[int, tuple[str, str, tuple[str, ...]]]] = {
    19: ("topics", "topics", ("name",)),
    20: ("responses", "topics", ("name", "topic_id")),
    33: ("responses", "resources", ("resource_type", "resource_name")),
    37: ("results", "topics", ("name",)),
    44: ("responses", "resources", ("resource_type", "resource_name")),
}


class Attempts:
    """One thing that is asked of the controller until it answers, or the time is over, or nobody wants it any more."""

    __slots__ = ("_ask", "_broker", "_done", "_error", "_retry", "_round", "bucket", "was_sent")

    is_retried: Final = True

    def __init__(self, broker: Broker, ask: Callable[[Done], bool], done: Done, limit_ms: int) -> None:
        self._broker = broker
        self._ask = ask
        self._done: Done | None = done
        self._error: str | None = None
        self._round = 0
        self._retry = Later(self.again)
        #: Whether a controller may have had it.
        self.was_sent = False
        self.bucket = -1
        broker.timers.add(self, broker.now_ms + limit_ms)

    def again(self) -> None:
        """Ask, for the first time or because there is reason to hope for another answer."""
        if self._done is None:
            return
        self._broker.timers.cancel(self._retry)
        self._round += 1
        asked = self._round
        if self._ask(lambda answer, error: self._answered(asked, answer, error)):
            self.was_sent = True

    def _answered(self, asked: int, answer: Any, error: str | None) -> None:
        if self._done is None or asked != self._round:
            # Too late, or it has been asked again meanwhile.
            return
        if error is None:
            self._end(answer, None)
            return
        self._error = error
        delay_ms = SUSPENDED_RETRY_MS if self._broker.lifecycle.suspended else RETRY_MS
        self._broker.timers.add(self._retry, self._broker.now_ms + delay_ms)

    def expire(self, now_ms: int) -> None:
        if self._done is not None:
            self._end(None, self._error or "the controller did not answer in time")

    def stop(self) -> None:
        self._done = None
        self._broker.timers.cancel(self)
        self._broker.timers.cancel(self._retry)
        self._broker.controller_channel.attempts.pop(self, None)

    def _end(self, answer: Any, error: str | None) -> None:
        done = self._done
        assert done is not None
        self.stop()
        done(answer, error)


class ControllerRequest:
    """A request on its way to the controller; answered once, whatever comes first."""

    __slots__ = ("_done", "_under_way")

    def __init__(
        self, under_way: dict[ControllerRequest, None], done: Callable[[memoryview | None, str | None], None]
    ) -> None:
        self._under_way = under_way
        self._done = done
        under_way[self] = None

    def answered(self, answer: memoryview | None, error: str | None) -> None:
        # A late answer to what was given up says nothing that the next one does not.
        if self._under_way.pop(self, self) is None:
            self._done(answer, error)


class HeldRequest:
    """Something that waits for the image to have caught up, but not for ever."""

    __slots__ = ("bucket", "channel", "condition", "then")

    is_retried: Final = True

    def __init__(
        self, channel: ControllerChannel, condition: Callable[[], bool], then: Callable[[], None]
    ) -> None:
        self.channel = channel
        self.condition = condition
        self.then = then
        self.bucket = -1

    def expire(self, now_ms: int) -> None:
        if self.channel.held.pop(self, self) is None:
            self.then()


class ControllerChannel:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.attempts: dict[Attempts, None] = {}
        self.held: dict[HeldRequest, None] = {}
        #: What a controller was asked and has not answered: who hears of it.
        self._under_way: dict[ControllerRequest, None] = {}

    # --- clients' requests ------------------------------------------------------------------------------------

    def forward(self, call: Call, frame: memoryview, request: Any) -> Result:
        """Have the controller answer a client's request; its frame is copied here."""
        kept = bytes(frame)
        client = _address_bytes(call.connection.peer)
        limit_ms = max(RETRY_MS, min(commit_limit_ms(request), FORWARD_MS_MAX))
        deadline_ms = self._broker.now_ms + limit_ms

        def ask(done: Done) -> bool:
            return self._ask_enclosed(kept, client, done)

        def done(answer: envelope.Answer | None, error: str | None) -> None:
            call.abandon = None
            if answer is None or answer.data is None:
                code: int = ErrorCode.REQUEST_TIMED_OUT if attempts.was_sent else ErrorCode.NOT_CONTROLLER
                if answer is not None:
                    code, error = answer.error_code, "the controller refused the request"
                self._broker.answer(call, failure(call, request, code, error or ""))
                return
            parts = [_SIZE.pack(len(answer.data)) + answer.data]
            left_ms = max(0, min(CATCH_UP_MS, deadline_ms - self._broker.now_ms))
            self.when(lambda: self._has(answer.end), lambda: self._broker.reply(call, parts), left_ms)

        attempts = self._begin(ask, done, limit_ms)
        call.abandon = attempts.stop
        return NoResponse.LATER

    def _ask_enclosed(self, frame: bytes, client: bytes, done: Done) -> bool:
        """One attempt; whether anything was sent."""
        if self._broker.controller_driver.is_active:
            if not self._broker.controller_driver.may_decide:
                done(None, STORE_AWAY)
                return False
            # It has come to us meanwhile.
            self.serve(
                "a client", frame, lambda data, error: done(data and envelope.Answer(data, 0, 0), error)
            )
            return True

        def answered(body: memoryview | None, error: str | None) -> None:
            if body is None:
                done(None, error)
                return
            try:
                answer = envelope.read_answer(body)
            except MalformedMessage as damage:
                done(None, str(damage))
                return
            if answer.error_code == ErrorCode.NOT_CONTROLLER:
                done(None, "the broker that was asked is not the controller")
            else:
                done(answer, None)

        body = request_encoder(envelope.KEY, 0)(
            {"request_data": frame, "request_principal": None, "client_host_address": client}
        )
        return self._ask_controller(CLIENTS_LANE, envelope.KEY, 0, body, answered)

    # --- this broker's own ------------------------------------------------------------------------------------

    def ask(self, key: int, version: int, request: Mapping[str, Any], done: Done) -> bool:
        """One request of this broker to the controller, once; `done(answer entity, error)`. Whether anything was sent."""
        if self._broker.controller_driver.is_active:
            self._ask_here(key, version, request, done)
            return True
        body = request_encoder(key, version)(request)
        return self._ask_controller(OWN_LANE, key, version, body, _decoded(key, version, done))

    def ask_broker(
        self, node_id: int, lane: int, key: int, version: int, request: Mapping[str, Any], done: Done
    ) -> None:
        """The same to any broker, this one too."""
        if node_id == self._broker.lifecycle.node_id:
            return self._ask_here(key, version, request, done)
        node = self._broker.image.brokers.get(node_id)
        if node is None or node.fenced:
            return done(None, f"broker {node_id} is not there")
        body = request_encoder(key, version)(request)
        peer = (node_id, node.host, node.port)
        self._broker.outbox.append((ASK, peer, lane, key, version, body, _decoded(key, version, done)))
        return None

    def _ask_here(self, key: int, version: int, request: Mapping[str, Any], done: Done) -> None:
        head = REQUEST_HEADER.pack(key, version, 0, -1)
        if request_header_is_flexible(key, version):
            head += b"\0"

        def served(data: bytes | None, error: str | None) -> None:
            if data is None:
                done(None, error)
                return
            at = after_tags(memoryview(data), 4) if response_header_is_flexible(key, version) else 4
            done(decode_response(key, version, data, at), None)

        body = request_encoder(key, version)(request)
        self.serve("this broker", head + body, served, broker_id=self._broker.lifecycle.node_id)

    def insist(
        self,
        key: int,
        version: int,
        request: Mapping[str, Any],
        moved: Callable[[Any], bool],
        done: Done,
        limit_ms: int,
    ) -> Attempts:
        """The same until a controller has answered: `moved(answer)` tells that it was none."""

        def ask(done: Done) -> bool:
            def answered(answer: Any, error: str | None) -> None:
                if answer is not None and moved(answer):
                    answer, error = None, "the broker that was asked is not the controller"
                done(answer, error)

            return self.ask(key, version, request, answered)

        return self._begin(ask, done, limit_ms)

    def ask_producer_ids(self, done: Callable[[int, int, str | None], None]) -> None:
        """A block of producer ids from the controller: `done(first, count, error)`."""
        lifecycle = self._broker.lifecycle

        def answered(answer: Any, error: str | None) -> None:
            if answer is None:
                done(0, 0, error)
            elif answer.error_code:
                done(0, 0, f"the controller refused producer ids with error {int(answer.error_code)}")
            else:
                done(int(answer.producer_id_start), int(answer.producer_id_len), None)

        self.insist(
            ApiKey.ALLOCATE_PRODUCER_IDS,
            0,
            {"broker_id": lifecycle.node_id, "broker_epoch": lifecycle.broker_epoch},
            # A broker epoch that is stale was told before the controller, or this broker, knew of its new life.
            lambda answer: int(answer.error_code) in (ErrorCode.NOT_CONTROLLER, ErrorCode.STALE_BROKER_EPOCH),
            answered,
            COMMIT_WAIT_MS,
        )

    def _begin(self, ask: Callable[[Done], bool], done: Done, limit_ms: int) -> Attempts:
        attempts = Attempts(self._broker, ask, done, limit_ms)
        self.attempts[attempts] = None
        attempts.again()
        return attempts

    def _ask_controller(
        self,
        lane: int,
        key: int,
        version: int,
        body: bytes,
        done: Callable[[memoryview | None, str | None], None],
    ) -> bool:
        lifecycle = self._broker.lifecycle
        controller = lifecycle.controller_id
        known = lifecycle.live.get(controller) or self._broker.image.brokers.get(controller)
        if known is None or controller == lifecycle.node_id:
            # This broker too, while it is elected but has not taken over.
            done(None, "there is no controller")
            return False
        peer = (controller, known.host, known.port)
        asked = ControllerRequest(self._under_way, done)
        self._broker.outbox.append((ASK, peer, lane, key, version, body, asked.answered))
        return True

    # --- on the controller ------------------------------------------------------------------------------------

    def serve(
        self,
        peer: str,
        frame: bytes,
        done: Callable[[bytes | None, str | None], None],
        broker_id: int | None = None,
    ) -> EnclosedConnection:
        """Serve a request here, whoever brought it; `done` with its answer (header and body), or why there is none.

        With `broker_id` it is a request of that broker itself, not of a client.
        """
        connection = EnclosedConnection(peer, done, broker_id)
        self._broker.receive(connection, memoryview(frame), self._broker.now_ms)
        return connection

    # --- what happens meanwhile -------------------------------------------------------------------------------

    def controller_changed(self) -> None:
        """What was asked of the controller before is asked of this one: that one may stand still for long."""
        run = self._broker.isolation.run
        for asked in list(self._under_way):
            run("a request to the controller", asked.answered, None, "another broker controls now")
        self.ask_again()

    def ask_again(self) -> None:
        """There is reason to hope for an answer: another controller, or the store can be reached again."""
        run = self._broker.isolation.run
        for attempts in list(self.attempts):
            run("a request to the controller", attempts.again)

    def committed(self) -> None:
        """The image has moved."""
        for held in list(self.held):
            try:
                if held in self.held and held.condition():
                    del self.held[held]
                    self._broker.timers.cancel(held)
                    held.then()
            except Exception as error:
                self._broker.isolation.contain("a request that waits for metadata", error)

    def when(
        self, condition: Callable[[], bool], then: Callable[[], None], limit_ms: int = CATCH_UP_MS
    ) -> None:
        """Do this once the image is so far, at the latest when the time is over."""
        if condition():
            then()
            return
        held = HeldRequest(self, condition, then)
        self.held[held] = None
        self._broker.timers.add(held, self._broker.now_ms + limit_ms)

    def _has(self, end: int) -> bool:
        return self._broker.image.end >= end


def _decoded(key: int, version: int, done: Done) -> Callable[[memoryview | None, str | None], None]:
    """Hand over the body of an answer as an entity."""

    def answered(answer: memoryview | None, error: str | None) -> None:
        if answer is None:
            done(None, error)
            return
        try:
            decoded = decode_response(key, version, answer, 0)
        except MalformedMessage as damage:
            done(None, str(damage))
            return
        done(decoded, None)

    return answered


def failure(call: Call, request: Any, code: int, message: str) -> Response:
    """The answer of any API that goes by the controller, if there was none to be had."""
    error = {"error_code": code, "error_message": message}
    rows = _ROWS.get(call.entry.key)
    if call.entry.key == 43 and call.version == 0:
        # ElectLeaders has an error above its rows only from version 1 on.
        return {
            "replica_election_results": [
                {
                    "topic": topic.topic,
                    "partition_result": [{"partition_id": number, **error} for number in topic.partitions],
                }
                for topic in request.topic_partitions or ()
            ]
        }
    if rows is None:
        # Its rows may be left out: the error above them counts.
        return error
    answered, asked, names = rows
    if call.entry.key == 20 and call.version < 6:
        return {answered: [{"name": name, **error} for name in request.topic_names]}
    return {
        answered: [
            {**{name: _plain(getattr(row, name)) for name in names}, **error}
            for row in getattr(request, asked)
        ]
    }


def _plain(value: Any) -> Any:
    """Ids as the encoder takes them."""
    return getattr(value, "bytes", value)


def _address_bytes(peer: str) -> bytes:
    """The address of HOST:PORT in the bytes that the Envelope has for it."""
    try:
        return ip_address(peer.rpartition(":")[0].strip("[]")).packed
    except ValueError:
        return b""
