"""Sockets of kafka-python that close themselves.

kafka-python (3.0) drops sockets without closing them in three cases: the connection is refused, the client is closed while it connects,
and a client is not constructed because no broker answers. So kafka-python gets sockets that are closed silently when they are collected.
Every other socket that a test leaves open is an error (`filterwarnings` in pyproject.toml).
"""

import socket
import sys
from types import SimpleNamespace


class _Socket(socket.socket):
    def __del__(self) -> None:
        self.close()


def _socketpair() -> tuple[_Socket, _Socket]:
    first, second = (
        _Socket(each.family, each.type, each.proto, each.detach()) for each in socket.socketpair()
    )
    return first, second


def install() -> None:
    """Where kafka-python has been imported."""
    module = SimpleNamespace(**{**vars(socket), "socket": _Socket, "socketpair": _socketpair})
    for name in ("kafka.net.inet", "kafka.net.selector"):
        if name in sys.modules:
            sys.modules[name].socket = module  # type: ignore[attr-defined]
