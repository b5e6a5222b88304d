"""Members of consumer groups on foreign clients: each a process that says what it has and reads, and is told what to do.

The programs (`java/GroupMember.java`, `member` of those in `go/` and `js/`) speak the same lines of JSON, which the first
draws; what they have said so far is here, and the tests compare it with what should be.
"""

import json
import os
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

#: Longer than a rebalance takes on a machine that has other things to do.
PATIENCE_S = 120.0

Place = tuple[str, int]


class Member:
    """What a running member has said. `with` ends its process, however it comes."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **(environment or {})},
        )
        self.command = list(command)
        self._heard = threading.Condition()
        self.parts: set[Place] = set()
        self.read: list[tuple[str, int, int]] = []
        self.events: list[tuple[str, frozenset[Place]]] = []
        self.commits: list[dict[Place, int]] = []
        self.has_left = False
        #: What was no JSON: a client complains.
        self.other: list[str] = []
        self._ended = False
        self._reader = threading.Thread(target=self._listen, daemon=True)
        self._reader.start()

    def __enter__(self) -> "Member":
        return self

    def __exit__(self, *exception: object) -> None:
        self.kill()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._heard:
                self._take(line)
                self._heard.notify_all()
        with self._heard:
            self._ended = True
            self._heard.notify_all()

    def _take(self, line: str) -> None:
        try:
            said = json.loads(line)
        except ValueError:
            self.other.append(line.rstrip())
            return
        if "has" in said:
            self.parts = places(said["has"])
        elif "read" in said:
            self.read += [(topic, number, offset) for topic, number, offset in said["read"]]
        elif "event" in said:
            self.events.append((said["event"], frozenset(places(said["of"]))))
        elif "committed" in said:
            self.commits.append({(topic, number): offset for topic, number, offset in said["committed"]})
        elif "left" in said:
            self.has_left = True
        else:
            self.other.append(line.rstrip())

    def wait_until(self, condition: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        with self._heard:
            while not condition():
                left = deadline - time.monotonic()
                assert left > 0 and not (self._ended and not self.has_left), f"{what}: {self.story()}"
                # What others say does not wake this one.
                self._heard.wait(min(left, 0.1))

    def story(self) -> str:
        return (
            f"has {sorted(self.parts)}, read {len(self.read)}, {self.events}, {self.commits}, said {self.other}, "
            f"ended {self._ended}"
        )

    def say(self, command: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()

    def commit(self, command: str = "commit") -> dict[Place, int]:
        before = len(self.commits)
        self.say(command)
        self.wait_until(lambda: len(self.commits) > before, "it commits")
        return self.commits[-1]

    def leave(self) -> None:
        self.say("leave")
        self.wait_until(lambda: self.has_left, "it leaves")
        self._process.wait(PATIENCE_S)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()


def places(rows: Any) -> set[Place]:
    return {(topic, number) for topic, number in rows}


def share(members: Sequence[Member], wanted: set[Place], sizes: Sequence[int] | None = None) -> None:
    """Wait until these members have these partitions among them, each once; and so many each, if that is asked for."""

    def is_shared() -> bool:
        held = [place for member in members for place in member.parts]
        if sorted(held) != sorted(wanted):
            return False
        return sizes is None or sorted(len(member.parts) for member in members) == sorted(sizes)

    members[0].wait_until(is_shared, "; ".join(member.story() for member in members))
