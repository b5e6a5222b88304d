"""Group members on raw sockets, thousands in one process: the client for coordinator measurements.

A real consumer needs more CPU than its coordinator, and a thousand of them overload a machine. Here a member
is a socket and a few fields. It does only what the protocol requires: join, sync, heartbeat, rejoin. Repeated
requests are encoded once. One epoll serves all sockets. A member has one request in flight, so readable bytes
are complete responses. Every error code is checked. The workloads are in `bench.group_loads`.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

from ottla.wire.decode import decode_response
from ottla.wire.encode import request_encoder

#: (key, version): the newest versions that identify topics by name; all have flexible headers.
OFFSET_COMMIT, FIND_COORDINATOR, JOIN, HEARTBEAT, SYNC = (8, 9), (10, 4), (11, 9), (12, 4), (14, 5)
CONSUMER_HEARTBEAT, CONSUMER_DESCRIBE = (68, 1), (69, 0)
LOADING, NOT_AVAILABLE, NOT_COORDINATOR = 14, 15, 16
REBALANCING, MEMBER_ID_REQUIRED = 27, 79

CLIENT_ID: Final = b"bench"
SESSION_MS: Final = 300_000
#: Heartbeat interval of a classic group while it settles: the delay until members notice a rebalance.
HEARTBEAT_S: Final = 1.0
#: The same for groups that are measured later.
HASTY_S: Final = 0.1
#: A timeout that is reached only on errors.
LIMIT_S: Final = 120.0
TICK_S: Final = 0.01
#: Groups that are created at the same time.
GROUPS_AT_ONCE: Final = 100


class NotAnswered(RuntimeError):
    """A request was rejected, or not answered."""


def frame(api: tuple[int, int], fields: dict[str, Any]) -> bytes:
    key, version = api
    body = request_encoder(key, version)(fields)
    head = struct.pack(">hhih", key, version, 1, len(CLIENT_ID)) + CLIENT_ID + b"\0"
    return struct.pack(">i", len(head) + len(body)) + head + body


class Line:
    """One connection. `hear(body)` is called for each response, without its header."""

    __slots__ = ("hear", "received", "sock")

    def __init__(self, port: int) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=30)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.received = b""
        self.hear: Callable[[bytes], None] = lambda _body: None

    def send(self, request: bytes) -> None:
        self.sock.sendall(request)

    def readable(self) -> None:
        data = self.sock.recv(1 << 18)
        if not data:
            raise NotAnswered("the broker closed a connection")
        data = self.received + data
        while len(data) >= 4 and len(data) >= (end := 4 + int.from_bytes(data[:4], "big")):
            body, data = data[9:end], data[end:]
            self.hear(body)
        self.received = data


class Lines:
    """All connections and the clock: `every_tick` is called a few hundred times per second."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._epoll = select.epoll()
        self.poll = self._epoll.poll
        self._lines: dict[int, Line] = {}

    def connect(self) -> Line:
        line = Line(self._port)
        self._lines[line.sock.fileno()] = line
        self._epoll.register(line.sock.fileno(), select.EPOLLIN)
        return line

    def serve(self, is_over: Callable[[], bool], every_tick: Callable[[float], None], limit_s: float) -> None:
        """Run until done. Raises NotAnswered after the time limit."""
        lines, poll, clock = self._lines, self.poll, time.perf_counter
        begin = next_tick = clock()
        while not is_over():
            for number, _event in poll(TICK_S, 256):
                lines[number].readable()
            now = clock()
            if now >= next_tick:
                next_tick = now + TICK_S
                every_tick(now)
                if now - begin > limit_s:
                    raise NotAnswered(f"it did not finish within {limit_s:.0f} s")

    def ask(self, api: tuple[int, int], fields: dict[str, Any]) -> Any:
        """Send one request on its own connection."""
        line = self.connect()
        found: list[Any] = []
        line.hear = lambda body: found.append(decode_response(*api, body, 0))
        line.send(frame(api, fields))
        self.serve(lambda: bool(found), lambda _now: None, 30)
        self._lines.pop(line.sock.fileno()).sock.close()
        return found[0]

    def find_coordinator(self, group_id: str) -> None:
        """Wait for a coordinator: the first request creates the topic of offsets."""
        deadline = time.monotonic() + 60
        while True:
            [row] = self.ask(FIND_COORDINATOR, {"key_type": 0, "coordinator_keys": [group_id]}).coordinators
            if not row.error_code.value:
                return
            if time.monotonic() > deadline:
                raise NotAnswered(f"no coordinator: error code {row.error_code.value}")
            time.sleep(0.1)


# --- the classic protocol ---------------------------------------------------------------------------------------------


class ClassicGroup:
    """The shared state of the members: how many have settled in which generation."""

    def __init__(self, group_id: str, size: int, topic: str) -> None:
        self.group_id = group_id
        self.size = size
        topics = struct.pack(">hih", 0, 1, len(topic)) + topic.encode()
        self.metadata = topics + struct.pack(">i", -1)
        self.assignment = topics + struct.pack(">iii", 1, 0, -1)
        self.settled: Counter[int] = Counter()
        self.is_settled = False

    def joins(self, generation: int) -> None:
        self.settled[generation] += 1
        self.is_settled = self.settled[generation] == self.size


class ClassicMember:
    """A classic member: joins when it is created, rejoins on a rebalance, and heartbeats in `tick`."""

    __slots__ = (
        "_due", "_interval_s", "_is_waiting", "generation", "group", "is_stable", "line", "member_id",
    )  # fmt: skip

    def __init__(self, line: Line, group: ClassicGroup, interval_s: float) -> None:
        self.line = line
        self.group = group
        self._interval_s = interval_s
        self.member_id = ""
        self.generation = -1
        self.is_stable = False
        self._is_waiting = False
        self._due = 0.0
        self._join()

    def tick(self, now: float) -> None:
        """Send a heartbeat if it is due and no request is in flight."""
        if self.is_stable and now >= self._due and not self._is_waiting:
            self._due = now + self._interval_s
            self._send(HEARTBEAT, self.heartbeat(), self._heartbeaten)

    def heartbeat(self) -> dict[str, Any]:
        return {
            "group_id": self.group.group_id, "generation_id": self.generation, "member_id": self.member_id,
            "group_instance_id": None,
        }  # fmt: skip

    def _send(
        self, api: tuple[int, int], fields: dict[str, Any], hear: Callable[[Any, int], None]
    ) -> None:  # fmt: skip
        request = frame(api, fields)

        def heard(body: bytes) -> None:
            response = decode_response(*api, body, 0)
            code = response.error_code.value
            if code in (LOADING, NOT_AVAILABLE, NOT_COORDINATOR):
                time.sleep(0.01)
                self.line.send(request)
            else:
                self._is_waiting = False
                hear(response, code)

        self._is_waiting = True
        self.line.hear = heard
        self.line.send(request)

    def _join(self) -> None:
        if self.is_stable:
            self.is_stable = False
            self.group.settled[self.generation] -= 1
        self._send(
            JOIN,
            {
                "group_id": self.group.group_id, "session_timeout": SESSION_MS, "rebalance_timeout": SESSION_MS,
                "member_id": self.member_id, "group_instance_id": None, "protocol_type": "consumer",
                "protocols": [{"name": "range", "metadata": self.group.metadata}], "reason": None,
            },
            self._joined,
        )  # fmt: skip

    def _joined(self, response: Any, code: int) -> None:
        self.member_id = response.member_id or self.member_id
        if code in (MEMBER_ID_REQUIRED, REBALANCING):
            return self._join()
        if code:
            raise NotAnswered(f"a join was refused with error code {code}")
        self.generation = response.generation_id
        assignments = [
            {"member_id": each.member_id, "assignment": self.group.assignment} for each in response.members
        ]
        return self._send(
            SYNC,
            {
                "group_id": self.group.group_id, "generation_id": self.generation, "member_id": self.member_id,
                "group_instance_id": None, "protocol_type": "consumer", "protocol_name": "range",
                "assignments": assignments,
            },
            self._synced,
        )  # fmt: skip

    def _synced(self, _response: Any, code: int) -> None:
        if code == REBALANCING:
            return self._join()
        if code:
            raise NotAnswered(f"a sync was refused with error code {code}")
        self.is_stable = True
        self._due = time.perf_counter() + self._interval_s
        return self.group.joins(self.generation)

    def _heartbeaten(self, _response: Any, code: int) -> None:
        if code == REBALANCING:
            self._join()
        elif code:
            raise NotAnswered(f"a heartbeat was refused with error code {code}")


def make_groups(lines: Lines, sizes: Sequence[tuple[str, int]], topic: str) -> list[ClassicMember]:
    """Create groups of a few members each, a hundred at a time, until all have settled."""
    members: list[ClassicMember] = []
    under_way: dict[ClassicGroup, list[ClassicMember]] = {}
    waiting = list(reversed(sizes))

    def go_on(now: float) -> None:
        for group in [group for group in under_way if group.is_settled]:
            members.extend(under_way.pop(group))
        while waiting and len(under_way) < GROUPS_AT_ONCE:
            group = ClassicGroup(*waiting.pop(), topic)
            under_way[group] = [ClassicMember(lines.connect(), group, HASTY_S) for _ in range(group.size)]
        for some in under_way.values():
            for member in some:
                member.tick(now)

    lines.serve(lambda: not waiting and not under_way, go_on, LIMIT_S)
    return members


# --- the consumer protocol (KIP-848) ----------------------------------------------------------------------------------


class ConsumerMember:
    """A KIP-848 member: joins when it is created, then heartbeats, at once after a new assignment."""

    def __init__(self, line: Line, group_id: str, member_id: str, topic: str) -> None:
        self.line = line
        self.group_id = group_id
        self.member_id = member_id
        self.epoch = 0
        self.owned: frozenset[tuple[bytes, int]] = frozenset()
        self.is_waiting = False
        self.due = 0.0
        line.hear = self._heard
        self._send(rebalance_timeout=SESSION_MS, names=[topic], owned=[])

    def tick(self, now: float) -> None:
        if not self.is_waiting and now >= self.due:
            self._send()

    def _send(
        self, rebalance_timeout: int = -1, names: list[str] | None = None, owned: list[Any] | None = None
    ) -> None:
        self.is_waiting = True
        fields = {
            "group_id": self.group_id, "member_id": self.member_id, "member_epoch": self.epoch, "instance_id": None,
            "rack_id": None, "rebalance_timeout": rebalance_timeout, "subscribed_topic_names": names,
            "subscribed_topic_regex": None, "server_assignor": None, "topic_partitions": owned,
        }  # fmt: skip
        self.line.send(frame(CONSUMER_HEARTBEAT, fields))

    def _heard(self, body: bytes) -> None:
        response = decode_response(*CONSUMER_HEARTBEAT, body, 0)
        code = response.error_code.value
        if code:
            raise NotAnswered(f"a heartbeat was refused with error code {code}: {response.error_message}")
        self.is_waiting = False
        self.epoch = response.member_epoch
        self.due = time.perf_counter() + response.heartbeat_interval.total_seconds()
        if response.assignment is None:
            return
        rows = response.assignment.topic_partitions
        owned = frozenset((row.topic_id.bytes, number) for row in rows for number in row.partitions)
        if owned != self.owned:
            # It revokes partitions at once and reports that, like a consumer.
            self.owned = owned
            told = [{"topic_id": row.topic_id.bytes, "partitions": list(row.partitions)} for row in rows]
            self._send(owned=told)


def is_settled(members: Sequence[ConsumerMember], partitions: int) -> bool:
    """Whether all members are in one epoch and every partition has one reader."""
    if any(member.is_waiting or member.epoch != members[0].epoch for member in members):
        return False
    held = [place for member in members for place in member.owned]
    return len(held) == len(set(held)) == partitions
