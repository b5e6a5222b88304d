"""The settings of clients: Kafka's names with underscores, their defaults, and the checks on them.

`Client` holds what every client needs; `producer/settings.py` and `consumer/settings.py` add their own. A client is built from keyword arguments
(`ottla.Producer(address, linger_ms=5)`); the typed dictionaries below give those arguments to type checkers and a test
keeps them equal to the dataclasses.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict, TypeVar

from ottla.client.errors import SettingError


@dataclasses.dataclass(frozen=True, slots=True)
class Client:
    client_id: str = "ottla"
    request_timeout_ms: int = 30_000
    socket_connection_setup_timeout_ms: int = 10_000
    metadata_max_age_ms: int = 300_000
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 1_000

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name.endswith(("_ms", "_bytes", "_size", "_memory", "_records")):
                if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                    raise SettingError(f"{field.name} must be a whole number of 0 or more, not {value!r}")


class ClientSettings(TypedDict, total=False):
    client_id: str
    request_timeout_ms: int
    socket_connection_setup_timeout_ms: int
    metadata_max_age_ms: int
    retry_backoff_ms: int
    retry_backoff_max_ms: int


Kind = TypeVar("Kind", bound=Client)


def settings_of(kind: type[Kind], given: Mapping[str, Any]) -> Kind:
    """Settings of that kind from keyword arguments; an unknown name is refused with the nearest known one."""
    known = [field.name for field in dataclasses.fields(kind)]
    for name in given:
        if name not in known:
            import difflib

            near = difflib.get_close_matches(name.replace(".", "_"), known, 1)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"
            raise SettingError(f"unknown setting {name!r}: {hint}")
    return kind(**given)


def bootstrap_addresses(servers: str | Sequence[str]) -> list[tuple[str, int]]:
    """`host:port` pairs out of a comma-separated string or a sequence; IPv6 hosts stand in brackets."""
    texts = servers.split(",") if isinstance(servers, str) else list(servers)
    found = []
    for text in (text.strip() for text in texts):
        if not text:
            continue
        host, colon, port = text.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        if not colon or not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise SettingError(f"{text!r} is no bootstrap address: write HOST:PORT, as in 127.0.0.1:9092")
        found.append((host, int(port)))
    if not found:
        raise SettingError("no bootstrap address given: write HOST:PORT, as in 127.0.0.1:9092")
    return found


def address_text(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
