"""Mutated requests over sockets, against a broker in a process of its own, with a witness beside them.

The witness produces and fetches on its own topic all the while and must not notice: right data, in a bounded time. The process
stays up, its memory and its descriptors stay bounded, it says little, and when all is over it does nothing. Requests are
pipelined, cut at any place, and followed by others that make sense, on many connections at once.
"""

from __future__ import annotations

import os
import selectors
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from random import Random
from struct import Struct
from typing import Any, Final

from ottla.records.record import Record, decode_batches, encode_batch
from ottla.testing.fuzz.answers import Expected, is_refusal
from ottla.testing.fuzz.core import PARTITIONS, TOPICS, WITNESS, WITNESS_SETTINGS
from ottla.testing.fuzz.harness import CREATE_TOPICS, DELETE_TOPICS, FETCH, PRODUCE
from ottla.testing.fuzz.making import Known, Maker, served_versions
from ottla.testing.fuzz.mutating import framed, mutate
from ottla.testing.fuzz.outcome import Failed, Tally, resident_bytes
from ottla.wire.decode import MalformedMessage, decode_response
from ottla.wire.encode import request_encoder
from ottla.wire.frames import ClientConnection
from ottla.wire.schema import request_class

_LENGTH: Final = Struct(">i")
_PATIENCE_S: Final = 30.0
#: How long a connection is listened to for further answers; some of its fetches would wait for days.
_LISTEN_S: Final = 0.15
_CONNECTIONS: Final = 16
#: Requests on one connection: all behind the first that is refused are in vain.
_BURSTS: Final = (1, 1, 1, 2, 2, 3, 3, 8)
_METADATA: Final = 3


class Process:
    """`ottla up` on a directory of its own."""

    def __init__(self, directory: Path, settings: dict[str, str] | None = None) -> None:
        arguments = ["up", "--listen", "127.0.0.1:0", "--data-dir", str(directory), "--no-console"]
        for name, value in (settings or {}).items():
            arguments += ["--set", f"{name}={value}"]
        self._process = subprocess.Popen(  # noqa: S603  (our own command, our own arguments)
            [sys.executable, "-m", "ottla.cli", *arguments], stderr=subprocess.PIPE, text=True
        )
        assert self._process.stderr is not None
        first = self._process.stderr.readline()
        self.said = [first]
        if " listens on " not in first:
            self._process.kill()
            raise Failed(f"the broker did not start: {first}{self._process.stderr.read()}")
        self.address = first.split()[-1]
        self.pid = self._process.pid
        self._reader = threading.Thread(target=self.said.extend, args=(self._process.stderr,), daemon=True)
        self._reader.start()

    @property
    def is_up(self) -> bool:
        return self._process.poll() is None

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self) -> int:
        if self.is_up:
            self._process.terminate()
        code = self._process.wait(_PATIENCE_S)
        self._reader.join(_PATIENCE_S)
        assert self._process.stderr is not None
        self._process.stderr.close()
        return code


class Asker:
    """One blocking connection of somebody who behaves."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=_PATIENCE_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._wire = ClientConnection("witness")

    def close(self) -> None:
        self._socket.close()

    def ask(self, key: int, version: int, /, **fields: Any) -> Any:
        self._socket.sendall(self._wire.request(key, version, request_encoder(key, version)(fields))[1])
        while True:
            data = self._socket.recv(1 << 20)
            if not data:
                raise Failed("the broker closed a connection that did nothing wrong")
            for _id, body in self._wire.feed(data):
                return decode_response(key, version, body, 0)

    def create(self, name: str, partitions: int, settings: dict[str, str]) -> bytes:
        configs = [{"name": key, "value": value} for key, value in settings.items()]
        new = {"name": name, "num_partitions": partitions, "replication_factor": 1, "configs": configs}
        [row] = self.ask(CREATE_TOPICS, 7, topics=[new], timeout=30_000).topics
        if row.error_code.value:
            raise Failed(f"the topic {name} could not be made: {row.error_message}")
        topic_id: bytes = row.topic_id.bytes
        return topic_id


class Witness(threading.Thread):
    """Produces, and fetches what it produced, one at a time."""

    def __init__(self, address: str) -> None:
        super().__init__(daemon=True)
        self._asker = Asker(address)
        self._asker.create(WITNESS, 1, WITNESS_SETTINGS)
        self._ended = threading.Event()
        self.count = 0
        self.longest_s = 0.0
        self.problem: str | None = None

    def run(self) -> None:
        try:
            while not self._ended.wait(0.002):
                started = time.monotonic()
                self._once()
                self.longest_s = max(self.longest_s, time.monotonic() - started)
        except Exception as error:
            self.problem = f"the witness noticed, after {self.count} records: {error!r}"

    def _once(self) -> None:
        value = b"%d" % self.count
        rows = [{"index": 0, "records": encode_batch([Record(0, time.time_ns() // 1_000_000, b"w", value)])}]
        topics = [{"name": WITNESS, "partition_data": rows}]
        row = (
            self._asker.ask(PRODUCE, 9, acks=-1, timeout=30_000, topic_data=topics)
            .responses[0]
            .partition_responses[0]
        )
        if row.error_code.value or row.base_offset != self.count:
            raise Failed(f"wrote {self.count} and was told {row}")
        self.count += 1
        if (found := self.read(self.count - 1)) != [value]:
            raise Failed(f"read {found} instead of {value!r}")

    def read(self, offset: int) -> list[bytes | None]:
        row = {
            "partition": 0,
            "fetch_offset": offset,
            "partition_max_bytes": 1 << 30,
            "current_leader_epoch": -1,
        }
        topics = [{"topic": WITNESS, "partitions": [row]}]
        answer = self._asker.ask(
            FETCH,
            11,
            replica_id=-1,
            max_wait=0,
            min_bytes=0,
            max_bytes=1 << 30,
            session_epoch=-1,
            topics=topics,
        )
        found = answer.responses[0].partitions[0]
        return [record.value for record in decode_batches(found.records or b"") if record.offset >= offset]

    def end(self) -> None:
        self._ended.set()
        self.join(_PATIENCE_S)
        if self.problem is None and self.is_alive():
            self.problem = "the witness waits for an answer"
        if self.problem is None:
            everything: list[bytes | None] = []
            while len(everything) < self.count and (more := self.read(len(everything))):
                everything += more
            if everything != [b"%d" % number for number in range(self.count)]:
                self.problem = (
                    f"the witness wrote {self.count} records and reads {len(everything)}, or others"
                )
        self._asker.close()


class Attacker:
    """One connection: a burst of requests, in pieces, then what comes back until that is all, or enough."""

    def __init__(self, address: str, random: Random, maker: Maker, tally: Tally, count: int) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=_PATIENCE_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._tally = tally
        self.expected = Expected()
        self.frames: list[bytes] = []
        data = bytearray()
        readable = True
        for number in range(count):
            _name, frame = mutate(random, maker.frame(number + 100), maker)
            whole = framed(random, frame)
            self.frames.append(whole)
            data += whole
            # Behind a wrong length nothing is what it was meant to be.
            readable = readable and _LENGTH.unpack_from(whole)[0] == len(frame)
            if readable:
                self.expected.ask(frame)
        self.is_readable = readable
        self.pieces = _pieces(random, bytes(data))
        tally.add("requests", count)
        self.listen_until = time.monotonic() + _PATIENCE_S
        self._buffer = bytearray()

    def step(self) -> bool:
        """Send a piece if there is one, take what came; False once this connection is over."""
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
    witnessed: int
    witness_longest_s: float
    before_bytes: int
    after_bytes: int
    peak_bytes: int
    descriptors: tuple[int, int]
    said: int
    idle_cpu: float


def run_sockets(
    count: int, seed: int, directory: Path, *, tell: Callable[[str], None] = lambda _text: None
) -> Report:
    """So many requests; raises Failed with what repeats it."""
    random = Random(f"{seed}:sockets")
    # What a flood of connections may do is tested elsewhere: here none shall wait.
    process = Process(directory, {"max.connection.creation.rate": "100000"})
    again = f"again: python -m ottla.testing.fuzz sockets --seed {seed} --requests {count}"
    last: list[bytes] = []
    try:
        report = _attack(count, random, process, tell, last)
        if process.stop():
            raise Failed("the broker did not stop cleanly")
        return report
    except (Failed, OSError, MalformedMessage) as error:
        words = "".join(process.said[-20:])
        sent = "\n  ".join(frame.hex() for frame in last)
        raise Failed(f"{error!r}\n  {again}\n  the broker said: {words}\n  the last burst: {sent}") from error
    finally:
        process.stop()


def _attack(
    count: int, random: Random, process: Process, tell: Callable[[str], None], last: list[bytes]
) -> Report:
    admin = Asker(process.address)
    known = Known(
        topics={name: admin.create(name, PARTITIONS, settings) for name, settings in TOPICS.items()}
    )
    maker = Maker(random, known)
    witness = Witness(process.address)
    tally = Tally()
    _warm_up(process, maker)
    _undo(admin, known)
    before_bytes, before_descriptors = resident_bytes(process.pid), process.descriptors()
    witness.start()
    attackers: list[Attacker] = []
    told = 0
    while tally["requests"] < count or attackers:
        while len(attackers) < _CONNECTIONS and tally["requests"] < count:
            known.now_ms = time.time_ns() // 1_000_000
            size = min(random.choice(_BURSTS), count - tally["requests"])
            attackers.append(Attacker(process.address, random, maker, tally, size))
        attackers = _step_all(attackers, last)
        if witness.problem is not None:
            raise Failed(witness.problem)
        if not process.is_up:
            raise Failed("the broker has died")
        if tally["requests"] - told >= 2_000:
            told = tally["requests"]
            _undo(admin, known)
            tell(f"sockets: {tally}, {witness.count} witnessed")
    witness.end()
    if witness.problem is not None:
        raise Failed(witness.problem)
    _undo(admin, known)
    admin.close()
    return _report(process, witness, tally, before_bytes, before_descriptors)


def _warm_up(process: Process, maker: Maker) -> None:
    """Every version is loaded when it is first used: that is not the garbage's doing."""
    asker = Asker(process.address)
    for key, version in served_versions():
        # Neither one that wants no answer nor one that waits.
        if key not in (PRODUCE, FETCH):
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
    """Topics that garbage made go, those that it deleted come back."""
    there = {topic.name for topic in admin.ask(_METADATA, 9, topics=None).topics}
    strange = [name for name in there if name not in TOPICS and name != WITNESS]
    if strange:
        admin.ask(DELETE_TOPICS, 6, topics=[{"name": name} for name in strange], timeout=30_000)
    for name, settings in TOPICS.items():
        if name not in there:
            known.topics[name] = admin.create(name, PARTITIONS, settings)


def _report(
    process: Process, witness: Witness, tally: Tally, before_bytes: int, before_descriptors: int
) -> Report:
    deadline = time.monotonic() + _PATIENCE_S
    # The topics that were made are deleted in the background; their files go with them.
    while (idle_cpu := _idle_cpu(process)) > 0.05 and time.monotonic() < deadline:
        pass
    return Report(
        tally,
        witness.count,
        witness.longest_s,
        before_bytes,
        resident_bytes(process.pid),
        resident_bytes(process.pid, "VmHWM"),
        (before_descriptors, process.descriptors()),
        len(process.said),
        idle_cpu,
    )


def _idle_cpu(process: Process) -> float:
    """How much of a processor it takes while nobody asks for anything."""
    before, started = process.cpu_seconds(), time.monotonic()
    threading.Event().wait(0.5)
    return (process.cpu_seconds() - before) / (time.monotonic() - started)
