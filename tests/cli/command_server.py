"""Runs `ottla` commands in forked processes, which need not import everything again.

Started with a Unix socket as its argument, it imports the command line and waits. Each message is a command:
arguments and environment as JSON, with three descriptors for its standard streams. The command runs in a fork
of this process. Its exit status is the answer.
"""

import contextlib
import gc
import importlib
import json
import os
import pkgutil
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

_STATUS = struct.Struct(">i")
_COMMAND_BYTES_MAX = 1 << 20
#: Packages whose modules commands import when they run.
_PRELOADED = (
    "ottla.cli",
    "ottla.client",
    "ottla.client.admin",
    "ottla.client.consumer",
    "ottla.client.producer",
)
#: Modules that need Spark, or run something.
_LEFT_OUT = ("__main__", "pipeline", "pipeline_runs", "with_spark", "demo_pipeline")


class CommandServer:
    """The process, from the side of the tests."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-W", "error", __file__, str(theirs.fileno())], pass_fds=[theirs.fileno()]
            )
        self._socket = ours

    def run(
        self, arguments: list[str], stdin: bytes, env: dict[str, str], timeout_s: float
    ) -> tuple[int, bytes, bytes]:
        """The exit status, standard output and standard error."""
        with contextlib.ExitStack() as stack:
            given, out, err = (stack.enter_context(tempfile.TemporaryFile()) for _ in range(3))
            given.write(stdin)
            given.seek(0)
            message = json.dumps({"arguments": arguments, "env": env}).encode()
            self._socket.settimeout(timeout_s)
            socket.send_fds(self._socket, [message], [each.fileno() for each in (given, out, err)])
            answer = self._socket.recv(_STATUS.size)
            if not answer:
                raise ChildProcessError("the process that runs the commands has ended")
            out.seek(0)
            err.seek(0)
            return _STATUS.unpack(answer)[0], out.read(), err.read()

    def close(self) -> None:
        self._socket.close()
        self._process.wait(20)


def serve(connection: socket.socket, main: Callable[[list[str]], Any]) -> None:
    while True:
        message, streams, _flags, _address = socket.recv_fds(connection, _COMMAND_BYTES_MAX, 3)
        if not message:
            return
        child = os.fork()
        if not child:
            connection.close()
            _become(json.loads(message), streams, main)
        for each in streams:
            os.close(each)
        _pid, status = os.waitpid(child, 0)
        connection.send(_STATUS.pack(os.waitstatus_to_exitcode(status)))


def _become(command: dict[str, Any], streams: list[int], main: Callable[[list[str]], Any]) -> None:
    """Exits like the command, with the normal shutdown of an interpreter."""
    for at, each in enumerate(streams):
        os.dup2(each, at)
        os.close(each)
    os.environ.clear()
    os.environ.update(command["env"])
    main(command["arguments"])
    sys.exit(0)


def preload() -> Callable[[list[str]], Any]:
    for name in _PRELOADED:
        package = importlib.import_module(name)
        for each in pkgutil.iter_modules(package.__path__):
            if each.name not in _LEFT_OUT:
                importlib.import_module(f"{name}.{each.name}")
    main: Callable[[list[str]], Any] = importlib.import_module("ottla.cli.main").main
    # The collector would touch, and so copy, all objects in every fork.
    gc.collect()
    gc.freeze()
    return main


if __name__ == "__main__":
    # Without the folder of this file, which has other test modules.
    sys.path[:] = [entry for entry in sys.path if entry != str(Path(__file__).parent)]
    with socket.socket(fileno=int(sys.argv[1])) as given_socket:
        sys.argv[:] = ["ottla"]
        serve(given_socket, preload())
