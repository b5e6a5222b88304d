"""A well-behaved client in its own process during the attack: its reads must be correct, and fast.

    python -m testkit.fuzz.witness ADDRESS PID

It requests metadata, produces, fetches, commits and fetches the commit, one request at a time, and reports
the longest wait. `mark` on standard input ends a phase: it prints a `Phase` as a line of JSON. At the end of
standard input it reads everything it wrote, and exits. A `problem` is printed as soon as it is detected.

A wait is measured twice. *Wall* is the elapsed time. *Held* is the elapsed time without the time in which the
broker's event loop, or this process, was ready to run and the machine ran something else (Linux:
`schedstat`). Both may have been ready at the same time, so held is never less than the CPU time of the event
loop. If the system does not report it, held and wall are the same.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import asdict, dataclass, field
from typing import Any, Final, NamedTuple

from ottla.model.api_key import ApiKey
from ottla.records.record import Record, decode_batches, encode_batch
from testkit.fuzz.core import WITNESS, WITNESS_SETTINGS
from testkit.fuzz.outcome import Failed
from testkit.fuzz.process import PATIENCE_S, Asker

#: The coordinator is loading, or missing: the attack may legitimately delete `__consumer_offsets`.
_TRANSIENT: Final = (14, 15, 16)
_ALL: Final = 1 << 30
#: Waits from this length on are reported with their time.
_WORTH_TELLING_S: Final = 0.1


@dataclass
class Phase:
    """The measurements between two marks."""

    rounds: int = 0
    #: Commits that failed because of the coordinator.
    unavailable: int = 0
    wall_s: float = 0.0
    held_s: float = 0.0
    #: (API, start and end by the monotonic clock, held) of the longest waits.
    waits: list[tuple[int, float, float, float]] = field(default_factory=list)

    def merge(self, later: Phase) -> None:
        """Add the next phase; its waits were reported already."""
        self.rounds += later.rounds
        self.unavailable += later.unavailable
        self.wall_s, self.held_s = max(self.wall_s, later.wall_s), max(self.held_s, later.held_s)


class Scheduled(NamedTuple):
    """Of a thread so far: seconds on a CPU, and seconds ready to run without a CPU."""

    ran_s: float = 0.0
    waited_s: float = 0.0

    @classmethod
    def of(cls, pid: int) -> Scheduled:
        """Of the main thread of a process; zeros if the system does not report it."""
        try:
            with open(f"/proc/{pid}/task/{pid}/schedstat", encoding="ascii") as status:
                ran, waited, _times = status.read().split()
        except (OSError, ValueError):
            return cls()
        return cls(int(ran) / 1e9, int(waited) / 1e9)


def held_s(wall_s: float, broker: tuple[Scheduled, Scheduled], own: tuple[Scheduled, Scheduled]) -> float:
    """The part of a wait that the broker caused, by the schedule of both threads before and after it."""
    waited_s = sum(after.waited_s - before.waited_s for before, after in (broker, own))
    return min(wall_s, max(wall_s - waited_s, broker[1].ran_s - broker[0].ran_s))


class WitnessClient:
    def __init__(self, address: str, pid: int) -> None:
        self._asker = Asker(address)
        self._asker.create(WITNESS, 1, WITNESS_SETTINGS)
        self._pids = pid, os.getpid()
        self.phase = Phase()
        self.count = 0
        deadline = time.monotonic() + PATIENCE_S
        while not self._commit(0):
            if time.monotonic() > deadline:
                raise Failed("the coordinator does not take a commit")
        self.phase = Phase()

    def once(self) -> None:
        value = b"%d" % self.count
        topics = self._timed(ApiKey.METADATA, 9, topics=[{"name": WITNESS}]).topics
        if [(topic.name, len(topic.partitions)) for topic in topics] != [(WITNESS, 1)]:
            raise Failed(f"metadata of {WITNESS} says {topics}")
        batch = encode_batch([Record(0, time.time_ns() // 1_000_000, b"w", value)])
        rows = [{"name": WITNESS, "partition_data": [{"index": 0, "records": batch}]}]
        produced = self._timed(ApiKey.PRODUCE, 9, acks=-1, timeout=30_000, topic_data=rows)
        row = produced.responses[0].partition_responses[0]
        if row.error_code.value or row.base_offset != self.count:
            raise Failed(f"wrote {self.count} and was told {row}")
        self.count += 1
        if (found := self.read(self.count - 1)) != [value]:
            raise Failed(f"read {found} instead of {value!r}")
        if self._commit(self.count):
            self._check_commit(self.count)
        else:
            self.phase.unavailable += 1
        self.phase.rounds += 1

    def _commit(self, offset: int) -> bool:
        """Whether the commit was accepted."""
        row = {
            "partition_index": 0,
            "committed_offset": offset,
            "committed_leader_epoch": -1,
            "committed_metadata": "",
        }
        answer = self._timed(
            ApiKey.OFFSET_COMMIT, 8, group_id=WITNESS, generation_id_or_member_epoch=-1, member_id="", group_instance_id=None,
            topics=[{"name": WITNESS, "partitions": [row]}],
        )  # fmt: skip
        code = answer.topics[0].partitions[0].error_code.value
        if code in _TRANSIENT:
            self._timed(ApiKey.FIND_COORDINATOR, 4, key_type=0, coordinator_keys=[WITNESS])
            return False
        if code:
            raise Failed(f"a commit was refused with error {code}")
        return True

    def _check_commit(self, offset: int) -> None:
        asked = [{"group_id": WITNESS, "topics": [{"name": WITNESS, "partition_indexes": [0]}]}]
        [group] = self._timed(ApiKey.OFFSET_FETCH, 8, groups=asked, require_stable=False).groups
        if group.error_code.value in _TRANSIENT:
            self.phase.unavailable += 1
            return
        found = group.topics[0].partitions[0]
        if found.error_code.value or found.committed_offset != offset:
            raise Failed(f"committed {offset} and was told {found}")

    def read(self, offset: int) -> list[bytes | None]:
        row = {
            "partition": 0,
            "fetch_offset": offset,
            "partition_max_bytes": _ALL,
            "current_leader_epoch": -1,
        }
        answer = self._timed(
            ApiKey.FETCH, 11, replica_id=-1, max_wait=0, min_bytes=0, max_bytes=_ALL, session_epoch=-1,
            topics=[{"topic": WITNESS, "partitions": [row]}],
        )  # fmt: skip
        found = answer.responses[0].partitions[0]
        return [record.value for record in decode_batches(found.records or b"") if record.offset >= offset]

    def _timed(self, key: int, version: int, /, **fields: Any) -> Any:
        # The clock is read first and last: no thread can have waited longer than the elapsed time.
        started = time.monotonic()
        before = tuple(map(Scheduled.of, self._pids))
        answer = self._asker.ask(key, version, **fields)
        phase = self.phase
        ended = time.monotonic()
        if ended - started > min(phase.held_s, phase.wall_s):
            broker, own = zip(before, map(Scheduled.of, self._pids), strict=True)
            ended = time.monotonic()
            held = held_s(ended - started, broker, own)
            phase.wall_s, phase.held_s = max(phase.wall_s, ended - started), max(phase.held_s, held)
            if held > _WORTH_TELLING_S:
                phase.waits = [*phase.waits, (key, started, ended, held)][-20:]
        return answer

    def check_all(self) -> None:
        """Everything that was written is there."""
        everything: list[bytes | None] = []
        while len(everything) < self.count and (more := self.read(len(everything))):
            everything += more
        if everything != [b"%d" % number for number in range(self.count)]:
            raise Failed(f"wrote {self.count} records and reads {len(everything)}, or others")


def main() -> int:
    address, pid = sys.argv[1], int(sys.argv[2])
    #: Lines of standard input; None at its end.
    marks: list[str | None] = []

    def listen() -> None:
        marks.extend(sys.stdin)
        marks.append(None)

    threading.Thread(target=listen, daemon=True).start()
    try:
        witness = WitnessClient(address, pid)
        print(json.dumps({"ready": True}), flush=True)
        while True:
            if marks:
                mark = marks.pop(0)
                if mark is None:
                    witness.check_all()
                print(json.dumps(asdict(witness.phase)), flush=True)
                if mark is None:
                    return 0
                witness.phase = Phase()
            witness.once()
            time.sleep(0.002)
    except Exception as error:
        print(json.dumps({"problem": f"the witness noticed: {error!r}"}), flush=True)
        return 1


class Witness:
    """The process, as seen by the attack."""

    def __init__(self, address: str, pid: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "testkit.fuzz.witness", address, str(pid)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self._lines: list[dict[str, Any]] = []
        self._came = threading.Condition()
        self.problem: str | None = None
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._next_line()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            told = json.loads(line)
            with self._came:
                self.problem = told.get("problem", self.problem)
                self._lines.append(told)
                self._came.notify_all()
        with self._came:
            self._lines.append({"problem": "the witness has ended"})
            self._came.notify_all()

    def _next_line(self) -> dict[str, Any]:
        with self._came:
            if not self._came.wait_for(lambda: bool(self._lines), PATIENCE_S):
                raise Failed(f"the witness has waited for an answer for {PATIENCE_S:.0f} s")
            told = self._lines.pop(0)
        if "problem" in told:
            raise Failed(told["problem"])
        return told

    def mark(self) -> Phase:
        """The measurements since the last mark."""
        assert self._process.stdin is not None
        self._process.stdin.write("mark\n")
        self._process.stdin.flush()
        return Phase(**self._next_line())

    def end(self) -> Phase:
        """The last phase, after everything was read again."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        phase = Phase(**self._next_line())
        self._process.wait(PATIENCE_S)
        return phase

    def kill(self) -> None:
        """If it still runs."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._reader.join(PATIENCE_S)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


if __name__ == "__main__":
    sys.exit(main())
