"""A broker that dies by SIGKILL at a step of a transaction, named beforehand, and is started again at once.

    python kill_at_step.py ARMED DIED up …

The file ARMED holds the name of a step, or nothing. The process that reaches this step adds the name to the file DIED, empties the first and
kills itself; this program then starts another one. Whatever else ends the broker ends this program too, and so does the end
of its standard input. Nothing of the product is changed: a step is seen by the bytes that are about to be written to a
log, or have just been, and by the answers that are about to be sent, or have just been.

    before-THING    nothing of it has happened yet
    after-THING     it has happened, and nothing after it

where THING is one of WRITES or ANSWERS below.

The package is loaded once and each broker is a fork of that, so that a start costs milliseconds.
"""

import gc
import os
import signal
import socket
import struct
import sys
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

#: Of batches: those of `__transaction_state` by the state that they tell, the others by their partition.
WRITES = (
    "Empty",
    "Ongoing",
    "records-0",
    "records-1",
    "Ongoing-with-offsets",
    "offsets",
    "PrepareCommit",
    "PrepareAbort",
    "marker-of-offsets",
    "marker-0",
    "marker-1",
    "CompleteCommit",
    "CompleteAbort",
)
#: By the number of the API.
ANSWERS = {
    22: "InitProducerId",
    24: "AddPartitionsToTxn",
    0: "Produce",
    25: "AddOffsetsToTxn",
    28: "TxnOffsetCommit",
    26: "EndTxn",
}

#: What clients and tests ask for beside these: Fetch, ListOffsets, Metadata, OffsetFetch, FindCoordinator, ApiVersions, DescribeTransactions.
LOADED = {*ANSWERS, 1, 2, 3, 9, 10, 18, 65}

_TRANSACTIONAL, _CONTROL = 0x10, 0x20
_ATTRIBUTES_AT = 21


def thing_written(path: str, data: bytes) -> str | None:
    """What a write to a file is, or None if it is no step of a transaction."""
    folder, _, name = path.rpartition("/")
    if not name.endswith(".log") or len(data) <= _ATTRIBUTES_AT + 2:
        return None
    topic, _, number = folder.rpartition("/")[2].rpartition("-")
    if topic == "__transaction_state":
        return _state_told(data)
    [attributes] = struct.unpack_from(">h", data, _ATTRIBUTES_AT)
    if not attributes & _TRANSACTIONAL:
        return None
    is_offsets = topic == "__consumer_offsets"
    if attributes & _CONTROL:
        return "marker-of-offsets" if is_offsets else f"marker-{number}"
    return "offsets" if is_offsets else f"records-{number}"


def _state_told(data: bytes) -> str | None:
    from ottla.records.record import decode_batches
    from ottla.transactions.formats import decode

    for record in decode_batches(data):
        known = decode(record.key, record.value)
        if known is not None and known.entry is not None:
            has_offsets = any(topic == "__consumer_offsets" for topic, _number in known.entry.partitions)
            state = known.entry.state.title
            return f"{state}-with-offsets" if state == "Ongoing" and has_offsets else state
    return None


class Requests:
    """What was asked on one socket and is not answered yet: names by correlation id."""

    def __init__(self) -> None:
        self._received = b""
        self._asked: dict[int, str] = {}

    def received(self, data: bytes) -> None:
        self._received += data
        while len(self._received) >= 12:
            size, key, _version, correlation = struct.unpack_from(">ihhi", self._received)
            if len(self._received) < 4 + size:
                return
            self._received = self._received[4 + size :]
            if key in ANSWERS:
                self._asked[correlation] = ANSWERS[key]

    def answered(self, data: bytes) -> list[str]:
        """The names of the answers that begin in these bytes."""
        found = []
        while len(data) >= 8:
            size, correlation = struct.unpack_from(">ii", data)
            if correlation in self._asked:
                found.append(self._asked.pop(correlation))
            data = data[4 + size :]
        return found


def install(armed: Path, died: Path) -> None:
    def reach(step: str) -> None:
        if armed.read_text() == step:
            with died.open("a") as file:
                file.write(f"{step}\n")
            armed.write_text("")
            os.kill(os.getpid(), signal.SIGKILL)

    real_pwritev, real_send, real_receive = os.pwritev, socket.socket.send, socket.socket.recv_into

    def pwritev(fd: int, parts: Sequence[Any], *more: Any) -> int:
        thing = thing_written(os.readlink(f"/proc/self/fd/{fd}"), b"".join(parts))
        if thing is None:
            return real_pwritev(fd, parts, *more)
        reach(f"before-{thing}")
        written = real_pwritev(fd, parts, *more)
        reach(f"after-{thing}")
        return written

    requests: weakref.WeakKeyDictionary[socket.socket, Requests] = weakref.WeakKeyDictionary()

    def receive(self: socket.socket, buffer: Any, *more: Any) -> int:
        size = real_receive(self, buffer, *more)
        with memoryview(buffer) as view:
            requests.setdefault(self, Requests()).received(bytes(view[:size]))
        return size

    def send(self: socket.socket, data: Any, *flags: int) -> int:
        answers = requests[self].answered(bytes(data)) if self in requests else []
        for each in answers:
            reach(f"before-answer-to-{each}")
        sent = real_send(self, data, *flags)
        for each in answers:
            reach(f"after-answer-to-{each}")
        return sent

    os.pwritev = pwritev  # type: ignore[assignment]
    socket.socket.send = send  # type: ignore[method-assign,assignment]
    socket.socket.recv_into = receive  # type: ignore[method-assign,assignment]


def run_for_ever(main: Callable[[], None], died: Path) -> int:
    """Have forks run `main` one after the other as long as they die at a step; the exit code of the one that did not."""
    while True:
        deaths = died.read_text().count("\n")
        child = os.fork()
        if child == 0:
            main()
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code != -signal.SIGKILL or died.read_text().count("\n") == deaths:
            return code


if __name__ == "__main__":
    install(Path(sys.argv[1]), Path(sys.argv[2]))
    from ottla.broker.api.shared.api_table import APIS, entry_for
    from ottla.cli.main import main
    from ottla.server import node  # noqa: F401 (each fork would load it)

    for api in APIS.values():
        # Readers and writers of messages are made when first needed; each fork would make them.
        if api.key in LOADED:
            for version in range(api.oldest, api.newest + 1):
                entry_for(api.key, version)
    # What is there now stays: no fork need look through it.
    gc.freeze()
    sys.exit(run_for_ever(lambda: main(sys.argv[3:]), Path(sys.argv[2])))
