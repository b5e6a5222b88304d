"""A broker in its own process, and a blocking connection to it: shared by the attack and the witness."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, Final, NamedTuple

from ottla.model.api_key import ApiKey
from ottla.wire.decode import decode_response
from ottla.wire.encode import request_encoder
from ottla.wire.frames import ClientConnection
from testkit.fuzz.harness import created, new_topic
from testkit.fuzz.outcome import Failed

PATIENCE_S: Final = 30.0


class Descriptors(NamedTuple):
    """The open descriptors of a process."""

    sockets: int
    #: Deleted files in its data directory.
    deleted: tuple[str, ...]
    others: int

    def __str__(self) -> str:
        return f"{self.sockets} sockets, {len(self.deleted)} deleted files, {self.others} others"


class Process:
    """`ottla up` on its own directory."""

    def __init__(self, directory: Path, settings: dict[str, str] | None = None) -> None:
        self._directory = directory.resolve()
        arguments = ["up", "--listen", "127.0.0.1:0", "--data-dir", str(directory), "--no-console"]
        for name, value in (settings or {}).items():
            arguments += ["--set", f"{name}={value}"]
        self._process = subprocess.Popen(
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

    def descriptors(self) -> Descriptors:
        sockets = others = 0
        deleted: list[str] = []
        for descriptor in Path(f"/proc/{self.pid}/fd").iterdir():
            try:
                target = os.readlink(descriptor)
            except FileNotFoundError:
                # It was closed after the listing.
                continue
            if target.startswith("socket:"):
                sockets += 1
            elif target.startswith(str(self._directory)) and target.endswith(" (deleted)"):
                deleted.append(target)
            else:
                others += 1
        return Descriptors(sockets, tuple(deleted), others)

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self) -> int:
        if self.is_up:
            self._process.terminate()
        code = self._process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)
        assert self._process.stderr is not None
        self._process.stderr.close()
        return code


class Asker:
    """One blocking connection of a well-behaved client."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=PATIENCE_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._wire = ClientConnection("witness")

    def close(self) -> None:
        self._socket.close()

    def ask(self, key: int, version: int, /, **fields: Any) -> Any:
        self._socket.sendall(self._wire.request(key, version, request_encoder(key, version)(fields))[1])
        while True:
            data = self._socket.recv(1 << 20)
            if not data:
                raise Failed("the broker closed the connection of a valid client")
            for _id, body in self._wire.feed(data):
                return decode_response(key, version, body, 0)

    def create(self, name: str, partitions: int, settings: dict[str, str]) -> bytes:
        return created(self.ask(ApiKey.CREATE_TOPICS, 7, **new_topic(name, partitions, settings)))
