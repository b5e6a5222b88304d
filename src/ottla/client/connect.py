"""TCP connections: try the addresses of a host name in turn, set socket options, and explain failures.

A name may have several addresses (IPv6 and IPv4, or several hosts). Each gets its share of the remaining
time, so an address that drops packets does not block the others. Called by `BrokerConnection.open`.
"""

from __future__ import annotations

import asyncio
import errno
import socket

from ottla.client.errors import BrokerUnreachable
from ottla.client.settings import ClientConfig


async def dial(host: str, port: int, settings: ClientConfig, timeout_s: float) -> socket.socket:
    """A connected socket, or the `OSError` of the last address."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    failure: OSError | None = None
    for tried, (family, kind, protocol, _, address) in enumerate(found):
        share_s = (deadline - loop.time()) / (len(found) - tried)
        try:
            async with asyncio.timeout(share_s):
                return await _connect(loop, socket.socket(family, kind, protocol), address, settings)
        except OSError as error:
            # Keep a refused connection: it says more than a timeout.
            if failure is None or not isinstance(failure, ConnectionRefusedError):
                failure = error
    raise failure or socket.gaierror(socket.EAI_NONAME, "the name has no address")


async def _connect(
    loop: asyncio.AbstractEventLoop, sock: socket.socket, address: object, settings: ClientConfig
) -> socket.socket:
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        # Before connecting: the TCP window depends on it.
        if settings.send_buffer_bytes > 0:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, settings.send_buffer_bytes)
        if settings.receive_buffer_bytes > 0:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, settings.receive_buffer_bytes)
        await loop.sock_connect(sock, address)  # type: ignore[arg-type]
    except BaseException:
        sock.close()
        raise
    return sock


def unreachable(address: str, error: OSError, timeout_s: float) -> BrokerUnreachable:
    """Explain why a connection failed, and what to try."""
    if isinstance(error, socket.gaierror):
        reason = "the host name does not resolve"
        advice = "Check the spelling, or use an address such as 127.0.0.1"
    elif isinstance(error, ConnectionRefusedError):
        reason = "connection refused"
        advice = (
            "Nothing listens there: start a broker with `ottla up`, or give another address with --bootstrap"
        )
    elif isinstance(error, TimeoutError):
        reason = f"no answer within {timeout_s:g} s"
        advice = "A firewall may drop the packets, or the host is down"
    elif error.errno in (errno.ENETUNREACH, errno.EHOSTUNREACH):
        reason = (error.strerror or "no route").lower()
        advice = "This machine has no route to the address: check the network and `advertised.listeners`"
    else:
        reason, advice = error.strerror or str(error), "Check the address and the network"
    return BrokerUnreachable(f"cannot reach broker {address}: {reason}", broker=address, advice=advice)
