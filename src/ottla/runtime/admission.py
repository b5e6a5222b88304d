"""Limits on new connections: in all, per address, and per second (KIP-612).

One address cannot starve the others. Beyond its rate its connections are accepted but not read for a while,
and if that wait would exceed `_WAIT_MS_MAX`, they are closed. So the accept queue, which all clients share,
keeps moving.

In a cluster some connections are reserved for other brokers. A broker is recognized by the address at which
this broker has reached it, or by its authentication (`Transport.is_broker`). Clients on the address of a
broker, as on one machine, can use the reserve too.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Callable, Collection
from typing import Final

from ottla.config.broker import BrokerConfig
from ottla.model.limits import (
    ADDRESSES_REMEMBERED_MAX,
    AUTHENTICATION_FAILURES_PER_SECOND,
    BROKER_CONNECTIONS_RESERVED,
)
from ottla.model.rates import RateLimiter

#: A connection beyond the rate of its address waits at most this long; otherwise it is closed.
_WAIT_MS_MAX: Final = 10_000
#: The reserve is at most this part of all connections.
_RESERVED_PART: Final = 8
#: An IPv6 host usually has its own /64 network.
_IPV6_PREFIX: Final = 64


class Admission:
    def __init__(self, connections_max: int, broker_addresses: Callable[[], Collection[str]] | None) -> None:
        """`connections_max` is the bound by descriptors; `broker_addresses` is None without a cluster."""
        self._connections_max = connections_max
        self._broker_addresses = broker_addresses
        self._rates = RateLimiter(ADDRESSES_REMEMBERED_MAX)
        self._failures = RateLimiter(ADDRESSES_REMEMBERED_MAX)
        self._by_host: Counter[str] = Counter()
        self._all = 0

    def is_broker(self, host: str) -> bool:
        return self._broker_addresses is not None and host in self._broker_addresses()

    def refusal(self, host: str, config: BrokerConfig, brokers: int) -> str | None:
        """Why a new connection is refused, or None. `brokers`: authenticated connections of brokers."""
        limit = min(config.max_connections, self._connections_max)
        if self._broker_addresses is not None and not self.is_broker(host):
            reserved = min(BROKER_CONNECTIONS_RESERVED, limit // _RESERVED_PART)
            limit -= max(0, reserved - brokers)
        if self._all >= limit:
            return f"connection from {host} refused: {limit} connections are open (max.connections)"
        per_host = config.max_connections_per_ip_overrides.get(host, config.max_connections_per_ip)
        if self._by_host[host] >= per_host:
            return f"connection from {host} refused: it has {per_host} open already (max.connections.per.ip)"
        return None

    def wait_ms(self, host: str, config: BrokerConfig, now_ms: int) -> float | None:
        """How long a new connection is not read because of the rate of its address; None: close it."""
        if self.is_broker(host):
            return 0.0
        rate = config.max_connection_creation_rate_per_ip
        key = address_key(host)
        failed_ms = self._failures.wait_ms(key, now_ms)
        wait_ms = self._rates.take(key, now_ms, rate=rate, burst=rate, wait_ms_max=_WAIT_MS_MAX)
        return None if wait_ms is None or failed_ms > _WAIT_MS_MAX else max(wait_ms, failed_ms)

    def authentication_failed(self, host: str, now_ms: int) -> None:
        """Delay the next connections from its address, so that guessing secrets is slow."""
        rate = AUTHENTICATION_FAILURES_PER_SECOND
        # The wait is bounded, however many failures there are.
        self._failures.take(address_key(host), now_ms, rate=rate, burst=rate, wait_ms_max=2 * _WAIT_MS_MAX)

    def opened(self, host: str) -> None:
        self._all += 1
        self._by_host[host] += 1

    def closed(self, host: str) -> None:
        self._all -= 1
        self._by_host[host] -= 1
        if not self._by_host[host]:
            del self._by_host[host]


def address_key(host: str) -> str:
    """The part of an address that a client cannot change at will: its IPv4 address, or its IPv6 network."""
    if ":" not in host:
        return host
    address = ipaddress.IPv6Address(host.partition("%")[0])
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Network((address, _IPV6_PREFIX), strict=False).network_address)
