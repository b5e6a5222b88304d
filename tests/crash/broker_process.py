"""`ottla up` as a process of its own, to be killed and started again on the same port and directory, and a bare client.

Nothing here sleeps: the process's own words say when it serves, and every wait is for an event with a deadline that only
a hanging broker reaches.
"""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

from ottla.records.record import Record, decode_batches, encode_batch
from ottla.wire.decode import decode_response
from ottla.wire.encode import request_encoder
from ottla.wire.frames import ClientConnection
from tests.crash.failing import Faults

#: Longer than anything healthy takes, shorter than the limit of a test.
PATIENCE_S = 60.0

KILL_AT = Path(__file__).with_name("kill_at.py")
FAILING = Path(__file__).with_name("failing.py")

PRODUCE, FETCH, LIST_OFFSETS, METADATA, API_VERSIONS, CREATE_TOPICS, DELETE_TOPICS = 0, 1, 2, 3, 18, 19, 20
LATEST = -1


class BrokerProcess:
    """A broker on one port and one data directory; may be started, killed and started again."""

    def __init__(
        self,
        data_dir: Path,
        port: int,
        settings: Mapping[str, str] | None = None,
        *,
        faults: Faults | None = None,
        descriptors: int | None = None,
        ends_with_us: bool = False,
    ) -> None:
        """`descriptors`: how many the process may have, soft and hard. `ends_with_us`: even if we are killed."""
        self.data_dir = data_dir
        self.faults = faults
        self.port = port
        self.address = f"127.0.0.1:{port}"
        self._settings = dict(settings or {})
        self._descriptors = descriptors
        self._ends_with_us = ends_with_us
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None
        self._heard = threading.Condition()
        #: What the present process has said, line by line.
        self.said: list[str] = []
        self._is_silent = True

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exception: object) -> None:
        self.kill()

    def spawn(self, *, kill_at: int = 0) -> Self:
        """Start the process and return at once. `kill_at` N: it dies just before it changes a file for the Nth time.

        With `faults`, operations on files fail as that file's rules say (`tests/crash/failing.py`).
        """
        assert self._process is None or self._process.poll() is not None
        command = [str(Path(sys.executable).parent / "ottla")]
        if kill_at:
            command = [sys.executable, str(KILL_AT), str(kill_at), str(self.data_dir)]
        elif self.faults is not None:
            command = [sys.executable, str(FAILING), str(self.faults.path)]
        command += ["up", "--listen", self.address, "--data-dir", str(self.data_dir), "--no-console"]
        for name, value in self._settings.items():
            command += ["--set", f"{name}={value}"]
        if self._descriptors is not None:
            command = ["sh", "-c", 'ulimit -n "$0" && exec "$@"', str(self._descriptors), *command]
        self.said, self._is_silent = [], False
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE if self._ends_with_us else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            env={**os.environ, "OTTLA_STOP_WITH_STDIN": "1"} if self._ends_with_us else None,
        )
        self._reader = threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True)
        self._reader.start()
        return self

    def start(self) -> Self:
        """Start the process and wait until it says that it listens."""
        self.spawn()
        try:
            self.wait_for("listens on")
        except BaseException:
            self.kill()
            raise
        return self

    def _read(self, lines: Any) -> None:
        for line in lines:
            with self._heard:
                self.said.append(line.rstrip("\n"))
                self._heard.notify_all()
        lines.close()
        with self._heard:
            self._is_silent = True
            self._heard.notify_all()

    def wait_for(self, words: str) -> str:
        """The line that holds these words, once it has been said."""
        deadline = time.monotonic() + PATIENCE_S
        with self._heard:
            while True:
                for line in self.said:
                    if words in line:
                        return line
                left = deadline - time.monotonic()
                assert not self._is_silent, f"the broker ended without {words!r}:\n{self.words}"
                assert left > 0, f"the broker did not say {words!r}:\n{self.words}"
                self._heard.wait(left)

    @property
    def words(self) -> str:
        return "\n".join(self.said)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def end(self) -> int:
        """Wait until the process has ended by itself; its exit code."""
        assert self._process is not None and self._reader is not None
        code = self._process.wait(PATIENCE_S)
        self._gone()
        return code

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        self.signal(signal.SIGTERM)
        return self.end()

    def kill(self) -> None:
        """SIGKILL, if it still lives; returns when it is gone."""
        if self._process is not None and self._reader is not None:
            self._process.kill()
            self._process.wait(PATIENCE_S)
            self._gone()

    def _gone(self) -> None:
        assert self._process is not None and self._reader is not None
        self._reader.join(PATIENCE_S)
        if self._process.stdin is not None:
            self._process.stdin.close()


class Wire:
    """One blocking connection that speaks the protocol request by request."""

    def __init__(self, address: str, timeout_s: float = PATIENCE_S, *, source: str = "") -> None:
        """`source`: the address of this machine that the connection comes from; by default the system chooses."""
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection(
            (host, int(port)), timeout=timeout_s, source_address=(source, 0) if source else None
        )
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._frames = ClientConnection("tests")
        self._asked: list[tuple[int, int]] = []
        self._answers: list[Any] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.socket.close()

    def frame(self, key: int, version: int, *, is_answered: bool = True, **fields: Any) -> bytes:
        body = request_encoder(key, version)(fields)
        if is_answered:
            self._asked.append((key, version))
        return self._frames.request(key, version, body, is_answered=is_answered)[1]

    def send(self, key: int, version: int, **fields: Any) -> None:
        self.socket.sendall(self.frame(key, version, **fields))

    def receive(self) -> Any:
        """The next answer."""
        while not self._answers:
            data = self.socket.recv(1 << 20)
            if not data:
                raise ConnectionError("the broker closed the connection")
            for _id, body in self._frames.feed(data):
                self._answers.append(decode_response(*self._asked.pop(0), body, 0))
        return self._answers.pop(0)

    def ask(self, key: int, version: int, **fields: Any) -> Any:
        self.send(key, version, **fields)
        return self.receive()

    # --- what nearly every test asks for ----------------------------------------------------------------------

    def create(self, topic: str, partitions: int = 1, **configs: str) -> None:
        """A new topic; settings with underscores instead of dots."""
        rows = [{"name": name.replace("_", "."), "value": value} for name, value in configs.items()]
        row = {"name": topic, "num_partitions": partitions, "replication_factor": 1, "configs": rows}
        [answer] = self.ask(CREATE_TOPICS, 5, topics=[row], timeout=30_000).topics
        assert answer.error_code.value == 0, answer.error_message

    def produce(self, topic: str, batch: bytes, partition: int = 0, acks: int = -1) -> int:
        """Append one batch; its base offset."""
        row = self.ask(PRODUCE, 9, **producing(topic, batch, partition, acks)).responses[0]
        row = row.partition_responses[0]
        assert row.error_code.value == 0, row.error_code
        offset: int = row.base_offset
        return offset

    def fetch(self, topic: str, offset: int, partition: int = 0, **more: Any) -> list[Record]:
        """The records from an offset on that one fetch brings."""
        row = self.ask(FETCH, 11, **fetching(topic, offset, partition, **more)).responses[0].partitions[0]
        assert row.error_code.value == 0, row.error_code
        return [record for record in decode_batches(row.records or b"") if record.offset >= offset]

    def end_offset(self, topic: str, partition: int = 0, timestamp: int = LATEST) -> int:
        rows = [{"partition_index": partition, "timestamp": timestamp, "current_leader_epoch": -1}]
        answer = self.ask(
            LIST_OFFSETS, 4, replica_id=-1, isolation_level=0, topics=[{"name": topic, "partitions": rows}]
        )
        row = answer.topics[0].partitions[0]
        assert row.error_code.value == 0, row.error_code
        offset: int = row.offset
        return offset


def producing(topic: str, batch: bytes, partition: int = 0, acks: int = -1) -> dict[str, Any]:
    rows = [{"index": partition, "records": batch}]
    return {"acks": acks, "timeout": 30_000, "topic_data": [{"name": topic, "partition_data": rows}]}


def fetching(
    topic: str,
    offset: int,
    partition: int = 0,
    *,
    max_wait_ms: int = 0,
    min_bytes: int = 1,
    bytes_max: int = 1 << 24,
) -> dict[str, Any]:
    row = {
        "partition": partition, "fetch_offset": offset, "partition_max_bytes": bytes_max,
        "current_leader_epoch": -1, "log_start_offset": -1,
    }  # fmt: skip
    return {
        "replica_id": -1, "max_wait": max_wait_ms, "min_bytes": min_bytes, "max_bytes": bytes_max,
        "isolation_level": 0, "session_id": 0, "session_epoch": -1, "rack_id": "", "forgotten_topics_data": [],
        "topics": [{"topic": topic, "partitions": [row]}],
    }  # fmt: skip


def batch_of(*values: bytes, timestamp_ms: int | None = None, **fields: Any) -> bytes:
    """One batch with a record for each value, a millisecond apart."""
    now_ms = time.time_ns() // 1_000_000 if timestamp_ms is None else timestamp_ms
    return encode_batch(
        [Record(number, now_ms + number, b"k", value) for number, value in enumerate(values)], **fields
    )


def wait_until(condition: Callable[[], bool], why: str) -> None:
    """Look again and again until it holds, for things that announce themselves in files alone."""
    pause = threading.Event()
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"waited for {PATIENCE_S:.0f} s: {why}"
        pause.wait(0.005)
