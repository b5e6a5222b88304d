"""Listeners in the form NAME://HOST:PORT, and the map from listener names to security protocols.

`broker.py` creates `Listener`s from the settings; `runtime/` binds them and the metadata APIs advertise them.
No host name is resolved here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ottla.config.definition import Value

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
WILDCARD_HOSTS = ("", "0.0.0.0", "::")  # noqa: S104 - recognised here, bound by nobody
LISTENER_FORM = "NAME://HOST:PORT items separated by commas (an IPv6 host in brackets, PORT from 0 to 65535)"
PORT_MAX = 65_535


class Listener(NamedTuple):
    """`host` is "" for every interface; IPv6 without brackets."""

    name: str
    protocol: str
    host: str
    port: int

    @property
    def address(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.name}://{self.address}"


def split_listener(text: str) -> tuple[str, str, int] | None:
    """Name, host and port, or None if the text is not a listener."""
    name, scheme, address = text.partition("://")
    host, colon, port = address.rpartition(":")
    if not (name and scheme and colon and port.isascii() and port.isdigit() and len(port) <= 5):
        return None
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host or "[" in host or "]" in host:
        return None
    if int(port) > PORT_MAX or any(char.isspace() or char in "/@?#" for char in host):
        return None
    return name.upper(), host, int(port)


def are_listeners(value: Value) -> bool:
    return isinstance(value, tuple) and bool(value) and all(map(split_listener, value))


def is_protocol_map(value: Value) -> bool:
    if not isinstance(value, tuple):
        return False
    return all(
        name and protocol in PROTOCOLS for name, _, protocol in (item.partition(":") for item in value)
    )


def protocol_map(items: Iterable[str]) -> dict[str, str]:
    """Listener name to security protocol, from items that `is_protocol_map` accepted."""
    return {name.upper(): protocol for name, _, protocol in (item.partition(":") for item in items)}
