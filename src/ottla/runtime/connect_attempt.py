"""One attempt to connect to another broker, without blocking the loop.

`done(socket, None)` or `done(None, error)` is called once, never within the constructor, and not at all after
`cancel`. Host names are resolved in a thread, IP addresses need none. All addresses of a name are tried in
turn. The error is REFUSED only if every address refused the connection: nothing else proves that the broker
process has ended.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from errno import ECONNREFUSED, EINPROGRESS, EMFILE, ENOTCONN
from os import strerror
from typing import Any, Final, TypeAlias

from ottla.ports.effects import REFUSED

#: Timeout per address. A caller that wants to wait longer makes another attempt.
_CONNECT_S: Final = 10.0

Done: TypeAlias = Callable[[socket.socket | None, str | None], None]


class ConnectAttempt:
    __slots__ = ("_addresses", "_done", "_errors", "_limit", "_loop", "_sock", "_to")

    def __init__(self, loop: asyncio.AbstractEventLoop, host: str, port: int, done: Done) -> None:
        self._loop = loop
        self._done: Done | None = done
        self._to = f"{host}:{port}"
        self._addresses: list[tuple[Any, ...]] = []
        self._errors: list[str] = []
        self._sock: socket.socket | None = None
        self._limit: asyncio.TimerHandle | None = None
        try:
            ipaddress.ip_address(host)
        except ValueError:
            threading.Thread(target=self._look_up, args=(host, port), name="ottla-name", daemon=True).start()
        else:
            self._addresses = _addresses(host, port)
            loop.call_soon(self._next)

    def cancel(self) -> None:
        self._done = None
        self._forget()

    def interrupted(self, error: Exception) -> None:
        """A callback raised."""
        self._forget()
        if self._done is not None:
            self._end(None, f"{self._to}: internal error: {error!r}")

    def _look_up(self, host: str, port: int) -> None:
        try:
            addresses = _addresses(host, port)
        except OSError as error:
            self._post([], f"cannot resolve {host}: {error.strerror}")
        else:
            self._post(addresses, None)

    def _post(self, addresses: list[tuple[Any, ...]], error: str | None) -> None:
        # RuntimeError: the loop was closed meanwhile.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._looked_up, addresses, error)

    def _looked_up(self, addresses: list[tuple[Any, ...]], error: str | None) -> None:
        if error is not None:
            self._errors.append(error)
        self._addresses = addresses
        self._next()

    def _next(self) -> None:
        if self._done is None:
            return
        if not self._addresses:
            # A timeout or an unknown name among refusals does not prove that the broker has ended.
            doubts = [error for error in self._errors if error != REFUSED]
            self._end(None, doubts[0] if doubts else REFUSED)
            return
        family, kind, protocol, _name, address = self._addresses.pop(0)
        try:
            sock = self._sock = socket.socket(family, kind, protocol)
        except OSError as error:
            self._failed(error.errno or EMFILE)
            return
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        error_number = sock.connect_ex(address)
        if error_number == 0:
            self._connected()
        elif error_number == EINPROGRESS:
            self._loop.add_writer(sock.fileno(), self._connected)
            self._limit = self._loop.call_later(_CONNECT_S, self._too_long)
        else:
            self._failed(error_number)

    def _connected(self) -> None:
        sock = self._sock
        assert sock is not None
        error_number = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error_number == 0:
            # The kernel may give this connection the target port as its ephemeral port. TCP then connects it
            # to itself, and it would block the port for the broker that wants to listen on it.
            try:
                if sock.getsockname() == sock.getpeername():
                    error_number = ECONNREFUSED
            except OSError as error:
                error_number = error.errno or ENOTCONN
        if error_number:
            self._failed(error_number)
            return
        self._loop.remove_writer(sock.fileno())
        self._sock = None
        self._forget()
        self._end(sock, None)

    def _failed(self, error_number: int) -> None:
        self._forget()
        self._errors.append(
            REFUSED if error_number == ECONNREFUSED else f"{self._to}: {strerror(error_number)}"
        )
        self._next()

    def _too_long(self) -> None:
        self._forget()
        self._errors.append(f"{self._to}: no answer within {_CONNECT_S:g} s")
        self._next()

    def _forget(self) -> None:
        if self._limit is not None:
            self._limit.cancel()
            self._limit = None
        if self._sock is not None:
            self._loop.remove_writer(self._sock.fileno())
            self._sock.close()
            self._sock = None

    def _end(self, sock: socket.socket | None, error: str | None) -> None:
        done, self._done = self._done, None
        assert done is not None
        done(sock, error)


def _addresses(host: str, port: int) -> list[tuple[Any, ...]]:
    return list(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
