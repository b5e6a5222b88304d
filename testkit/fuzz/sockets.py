"""Mutated and shaped requests over sockets, against a broker in its own process, with a witness
(`witness.py`).

The witness uses its own topic and group and must not be affected: correct data, and no wait longer than
`WAIT_S_MAX`. Before the attack it measures the same without one. The process stays up, its descriptors stay
bounded, it logs little, its memory is released (`GROWTH_BYTES_MAX`), and in the end it is idle. Requests are
pipelined, cut at any position, and followed by valid ones, on many connections at once.
"""

from __future__ import annotations

import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from random import Random
from struct import Struct
from typing import Final, NamedTuple

from ottla.model.api_key import ApiKey
from ottla.wire.decode import MalformedMessage
from ottla.wire.schema import request_class
from testkit.fuzz.answers import Expected, is_refusal
from testkit.fuzz.core import PARTITIONS, TOPICS, WIDE, WIDE_PARTITIONS, WITNESS
from testkit.fuzz.mutations import framed, mutate
from testkit.fuzz.outcome import Failed, Tally, megabytes, resident_bytes, shortened
from testkit.fuzz.process import PATIENCE_S, Asker, Descriptors, Process
from testkit.fuzz.shapes import BYTES_MAX, Shaper
from testkit.fuzz.valid_requests import Known, Maker, served_versions
from testkit.fuzz.witness import Phase, Witness

__all__ = ["Asker", "Process", "Report", "run_sockets"]

#: How long the witness may wait because of the attack. If an idle broker is slow, a multiple of its time.
WAIT_S_MAX: Final = 0.3
_QUIET_TIMES: Final = 5
#: How much the broker may have grown in the end.
GROWTH_BYTES_MAX: Final = 100_000_000
#: The share of requests with a shape (`shapes.py`).
SHAPES: Final = 0.1
_QUIET_S: Final = 3.0
#: Share of the witness's commits that may fail: the attack may legitimately delete their topic.
_UNAVAILABLE_MAX: Final = 0.02

_LENGTH: Final = Struct(">i")
#: How long to wait for further responses on a connection; some fetches would wait for days.
_LISTEN_S: Final = 0.15
_CONNECTIONS: Final = 16
#: Requests per connection: those after the first that is refused have no effect.
_BURSTS: Final = (1, 1, 1, 2, 2, 3, 3, 8)


class Sent(NamedTuple):
    """A request that was sent, to find out what delayed the broker."""

    at: float
    label: str
    size: int
    #: Its first bytes.
    frame: bytes


class Requests:
    """Mutated and shaped requests, and the most recent of them."""

    def __init__(self, random: Random, maker: Maker, shapes: float, bytes_max: int) -> None:
        self._random = random
        self._maker = maker
        self._shaper = Shaper(random, maker, bytes_max)
        self._shapes = shapes
        self.sent: deque[Sent] = deque(maxlen=4000)

    def next(self, correlation_id: int) -> bytes:
        if self._random.random() < self._shapes:
            label, frame = (shaped := self._shaper.request(correlation_id)).label, shaped.frame
        else:
            label, frame = mutate(self._random, self._maker.frame(correlation_id), self._maker)
        self.sent.append(Sent(time.monotonic(), label, len(frame), frame[:200]))
        return frame

    def around(self, start: float, end: float) -> list[Sent]:
        """Requests sent shortly before a wait, the largest first."""
        found = [each for each in self.sent if start - 0.5 < each.at < end]
        return sorted(found, key=lambda each: -each.size)[:8]


class Attacker:
    """One connection: a burst of requests, in pieces, then the responses."""

    def __init__(self, address: str, random: Random, requests: Requests, tally: Tally, count: int) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=PATIENCE_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._tally = tally
        self.expected = Expected()
        self.frames: list[bytes] = []
        data = bytearray()
        readable = True
        for number in range(count):
            frame = requests.next(number + 100)
            whole = framed(random, frame)
            self.frames.append(whole)
            data += whole
            # After a wrong size everything is garbage.
            readable = readable and _LENGTH.unpack_from(whole)[0] == len(frame)
            if readable:
                self.expected.ask(frame)
        self.is_readable = readable
        self.pieces = _pieces(random, bytes(data))
        tally.add("requests", count)
        self.listen_until = time.monotonic() + PATIENCE_S
        self._buffer = bytearray()

    def step(self) -> bool:
        """Send a piece if there is one, read what arrived; False when this connection is done."""
        try:
            if self.pieces:
                self.socket.setblocking(False)
                piece = self.pieces[0]
                sent = self.socket.send(piece)
                if sent == len(piece):
                    self.pieces.pop(0)
                else:
                    self.pieces[0] = piece[sent:]
                if not self.pieces:
                    self.listen_until = time.monotonic() + _LISTEN_S
        except BlockingIOError:
            pass
        except OSError:
            self.pieces.clear()
        try:
            self.socket.setblocking(False)
            data = self.socket.recv(1 << 18)
        except BlockingIOError:
            return time.monotonic() < self.listen_until
        except OSError:
            data = b""
        if not data:
            self._tally.add("closed")
            return False
        self._take(data)
        return True

    def _take(self, data: bytes) -> None:
        buffer = self._buffer
        buffer += data
        while len(buffer) >= 4:
            end = 4 + _LENGTH.unpack_from(buffer)[0]
            if end < 8:
                raise Failed(f"an answer of length {end - 4}")
            if len(buffer) < end:
                return
            frame = bytes(buffer[4:end])
            del buffer[:end]
            self._tally.add("answered")
            if self.is_readable:
                _key, _version, message = self.expected.answer(frame)
                if is_refusal(message):
                    self._tally.add("refused")


def _pieces(random: Random, data: bytes) -> list[bytes]:
    """All at once, or cut anywhere."""
    cuts = sorted(random.randrange(len(data)) for _ in range(random.choice((0, 0, 1, 3))))
    edges = [0, *cuts, len(data)]
    return [data[start:end] for start, end in pairwise(edges) if end > start]


@dataclass
class Report:
    tally: Tally
    #: The measurements of the witness before and during the attack.
    quiet: Phase
    attacked: Phase
    before_bytes: int
    after_bytes: int
    peak_bytes: int
    descriptors: tuple[Descriptors, Descriptors]
    said: int
    idle_cpu: float

    @property
    def growth_bytes(self) -> int:
        return self.after_bytes - self.before_bytes

    @property
    def wait_s_max(self) -> float:
        return max(WAIT_S_MAX, _QUIET_TIMES * self.quiet.held_s)

    def __str__(self) -> str:
        quiet, attacked = self.quiet, self.attacked
        return (
            f"{self.tally}; the witness: {attacked.rounds:,} rounds, its longest wait {attacked.held_s * 1000:.0f} ms "
            f"({attacked.wall_s * 1000:.0f} ms with the machine's own delays; {quiet.held_s * 1000:.0f} and "
            f"{quiet.wall_s * 1000:.0f} ms before the attack), {attacked.unavailable} commits refused; "
            f"memory {megabytes(self.before_bytes)} before, {megabytes(self.after_bytes)} after (growth "
            f"{megabytes(self.growth_bytes)}), peak {megabytes(self.peak_bytes)}; "
            f"descriptors: {self.descriptors[0]} before, {self.descriptors[1]} after; {self.said} lines logged; "
            f"{self.idle_cpu:.0%} CPU when idle"
        )


def run_sockets(
    count: int,
    seed: int,
    directory: Path,
    *,
    shapes: float = SHAPES,
    bytes_max: int = BYTES_MAX,
    bounded: bool = True,
    tell: Callable[[str], None] = lambda _text: None,
) -> Report:
    """Send this many requests; raises Failed with the command that repeats it. `bounded`: also if the witness
    waited too long, or memory was not released.
    """
    random = Random(f"{seed}:sockets")
    # Floods of connections are tested elsewhere: here connections must not wait.
    process = Process(directory, {"max.connection.creation.rate": "100000"})
    again = f"again: python -m testkit.fuzz sockets --seed {seed} --requests {count} --shapes {shapes} --bytes-max {bytes_max}"
    last: list[bytes] = []
    try:
        report = _attack(count, random, process, (shapes, bytes_max), tell, last)
        if process.stop():
            raise Failed("the broker did not stop cleanly")
        if bounded:
            tell(f"sockets: {report}")
            _check_bounds(report)
        return report
    except (Failed, OSError, MalformedMessage) as error:
        words = "".join(process.said[-20:])
        sent = "\n  ".join(map(shortened, last))
        raise Failed(f"{error}\n  {again}\n  the broker said: {words}\n  the last burst: {sent}") from error
    finally:
        process.stop()


def _check_bounds(report: Report) -> None:
    attacked = report.attacked
    if attacked.held_s > report.wait_s_max:
        raise Failed(
            f"the witness waited for {attacked.held_s * 1000:.0f} ms, at most {report.wait_s_max * 1000:.0f} are allowed"
        )
    if report.growth_bytes > GROWTH_BYTES_MAX:
        raise Failed(
            f"the broker has grown by {megabytes(report.growth_bytes)}, at most {megabytes(GROWTH_BYTES_MAX)} are allowed"
        )
    if attacked.unavailable > _UNAVAILABLE_MAX * attacked.rounds + 5:
        raise Failed(f"{attacked.unavailable} of {attacked.rounds} commits of the witness were refused")


def _attack(
    count: int,
    random: Random,
    process: Process,
    shapes: tuple[float, int],
    tell: Callable[[str], None],
    last: list[bytes],
) -> Report:
    admin = Asker(process.address)
    known = Known(
        topics={name: admin.create(name, PARTITIONS, settings) for name, settings in TOPICS.items()}
    )
    known.topics[WIDE] = admin.create(WIDE, WIDE_PARTITIONS, {})
    maker = Maker(random, known)
    requests = Requests(random, maker, *shapes)
    _warm_up(process, maker)
    _undo(admin, known)
    witness = Witness(process.address, process.pid)
    try:
        witness.mark()
        threading.Event().wait(_QUIET_S if count > 10_000 else _QUIET_S / 3)
        quiet = witness.mark()
        before_bytes, before_descriptors = resident_bytes(process.pid), process.descriptors()
        tally, attacked = _storm(count, random, process, admin, requests, known, witness, tell, last)
        _phase_ends(attacked, witness.end(), requests, tell)
    finally:
        witness.kill()
    _undo(admin, known)
    _delete_groups(admin)
    admin.close()
    return _report(process, quiet, attacked, tally, before_bytes, before_descriptors)


def _storm(
    count: int,
    random: Random,
    process: Process,
    admin: Asker,
    requests: Requests,
    known: Known,
    witness: Witness,
    tell: Callable[[str], None],
    last: list[bytes],
) -> tuple[Tally, Phase]:
    tally, attacked = Tally(), Phase()
    attackers: list[Attacker] = []
    told = 0
    while tally["requests"] < count or attackers:
        while len(attackers) < _CONNECTIONS and tally["requests"] < count:
            known.now_ms = time.time_ns() // 1_000_000
            size = min(random.choice(_BURSTS), count - tally["requests"])
            attackers.append(Attacker(process.address, random, requests, tally, size))
        attackers = _step_all(attackers, last)
        if witness.problem is not None:
            raise Failed(witness.problem)
        if not process.is_up:
            raise Failed("the broker has died")
        if tally["requests"] - told >= 2_000:
            told = tally["requests"]
            _undo(admin, known)
            _check_log(process)
            tell(f"sockets: {tally}")
            _phase_ends(attacked, witness.mark(), requests, tell)
    _check_log(process)
    return tally, attacked


def _phase_ends(attacked: Phase, phase: Phase, requests: Requests, tell: Callable[[str], None]) -> None:
    """Report the longest waits of the witness while the requests of that time are known."""
    attacked.merge(phase)
    for key, start, end, held_s in phase.waits[-1:]:
        around = "".join(
            f"\n    {each.size:,} bytes, {each.label}: {shortened(each.frame, 120)}"
            for each in requests.around(start, end)
        )
        tell(
            f"the witness waited {held_s * 1000:.0f} ms for API {key}; sent meanwhile, the largest first:{around}"
        )


def _check_log(process: Process) -> None:
    for line in list(process.said):
        if "internal error" in line or "Traceback" in line or "is offline" in line:
            raise Failed(f"the broker logged: {line}")


def _warm_up(process: Process, maker: Maker) -> None:
    """Each version is imported at its first use: that is not caused by garbage."""
    asker = Asker(process.address)
    for key, version in served_versions():
        # Neither acks=0 nor a request that waits.
        if key not in (ApiKey.PRODUCE, ApiKey.FETCH):
            asker.ask(key, version, **maker.message(request_class(key, version), key))
    asker.close()


def _step_all(attackers: list[Attacker], last: list[bytes]) -> list[Attacker]:
    selector = selectors.DefaultSelector()
    for attacker in attackers:
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if attacker.pieces else 0)
        selector.register(attacker.socket, events, attacker)
    selector.select(0.02)
    selector.close()
    left = []
    for attacker in attackers:
        last[:] = attacker.frames
        if attacker.step():
            left.append(attacker)
        else:
            attacker.socket.close()
    return left


def _undo(admin: Asker, known: Known) -> None:
    """Delete topics that garbage created, recreate those that it deleted."""
    there = {topic.name for topic in admin.ask(ApiKey.METADATA, 9, topics=None).topics}
    strange = [name for name in there if name not in (*TOPICS, WITNESS, WIDE)]
    if strange:
        admin.ask(ApiKey.DELETE_TOPICS, 6, topics=[{"name": name} for name in strange], timeout=30_000)
    for name, settings in TOPICS.items():
        if name not in there:
            known.topics[name] = admin.create(name, PARTITIONS, settings)
    if WIDE not in there:
        known.topics[WIDE] = admin.create(WIDE, WIDE_PARTITIONS, {})


def _delete_groups(admin: Asker) -> None:
    """State of groups is not a memory leak."""
    names = [group.group_id for group in admin.ask(ApiKey.LIST_GROUPS, 4, states_filter=[]).groups]
    for start in range(0, len(names), 100):
        admin.ask(ApiKey.DELETE_GROUPS, 2, groups_names=names[start : start + 100])


def _report(
    process: Process,
    quiet: Phase,
    attacked: Phase,
    tally: Tally,
    before_bytes: int,
    before_descriptors: Descriptors,
) -> Report:
    deadline = time.monotonic() + PATIENCE_S
    # Topics are deleted in the background, and freed memory is released from time to time. A job may delete a
    # file a moment before it is closed.
    while time.monotonic() < deadline:
        idle_cpu = _idle_cpu(process)
        is_small = resident_bytes(process.pid) <= before_bytes + GROWTH_BYTES_MAX
        if idle_cpu <= 0.05 and is_small and not process.descriptors().deleted:
            break
    return Report(
        tally,
        quiet,
        attacked,
        before_bytes,
        resident_bytes(process.pid),
        resident_bytes(process.pid, "VmHWM"),
        (before_descriptors, process.descriptors()),
        len(process.said),
        idle_cpu,
    )


def _idle_cpu(process: Process) -> float:
    """CPU usage while idle."""
    before, started = process.cpu_seconds(), time.monotonic()
    threading.Event().wait(0.5)
    return (process.cpu_seconds() - before) / (time.monotonic() - started)
