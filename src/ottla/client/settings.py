"""The settings of all clients: Kafka's names with underscores, their defaults and their checks.

`ClientConfig` has the settings of every client; `producer/settings.py` and `consumer/settings.py` add their
own. A client takes keyword arguments (`ottla.Producer(address, linger_ms=5)`). The typed dictionaries declare
them for type checkers, and a test keeps them equal to the dataclasses. Secrets are not in the repr, and no
error quotes one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypedDict, TypeVar

from ottla.client.errors import SettingError
from ottla.client.security import Mechanism, SecurityProtocol, check_security

if TYPE_CHECKING:
    import ssl

    from ottla.client.sasl.oauthbearer import TokenProvider

#: Settings for which -1 means the system's default, or never.
_MINUS_ONE_ALLOWED: Final = frozenset(
    ("connections_max_idle_ms", "receive_buffer_bytes", "send_buffer_bytes")
)


@dataclasses.dataclass(frozen=True, slots=True)
class ClientConfig:
    client_id: str = "ottla"
    request_timeout_ms: int = 30_000
    socket_connection_setup_timeout_ms: int = 10_000
    metadata_max_age_ms: int = 300_000
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 1_000
    reconnect_backoff_ms: int = 50
    reconnect_backoff_max_ms: int = 1_000
    connections_max_idle_ms: int = 540_000
    # Kafka's fixed 64 and 128 KiB would disable the kernel's auto-tuning, which is better on every network.
    send_buffer_bytes: int = -1
    receive_buffer_bytes: int = -1
    security_protocol: SecurityProtocol = "PLAINTEXT"
    ssl_cafile: str | None = None
    ssl_certfile: str | None = None
    ssl_keyfile: str | None = None
    ssl_password: str | None = dataclasses.field(default=None, repr=False)
    ssl_check_hostname: bool = True
    ssl_context: ssl.SSLContext | None = dataclasses.field(default=None, repr=False)
    sasl_mechanism: Mechanism | None = None
    sasl_username: str | None = None
    sasl_password: str | None = dataclasses.field(default=None, repr=False)
    sasl_oauth_token_provider: TokenProvider | None = dataclasses.field(default=None, repr=False)

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name.endswith(("_ms", "_bytes", "_size", "_memory", "_records")):
                least = -1 if field.name in _MINUS_ONE_ALLOWED else 0
                if isinstance(value, bool) or not isinstance(value, int) or value < least:
                    raise SettingError(
                        f"{field.name} must be a whole number of {least} or more, not {value!r}"
                    )
        check_security(self)


class ClientSettings(TypedDict, total=False):
    client_id: str
    request_timeout_ms: int
    socket_connection_setup_timeout_ms: int
    metadata_max_age_ms: int
    retry_backoff_ms: int
    retry_backoff_max_ms: int
    reconnect_backoff_ms: int
    reconnect_backoff_max_ms: int
    connections_max_idle_ms: int
    send_buffer_bytes: int
    receive_buffer_bytes: int
    security_protocol: SecurityProtocol
    ssl_cafile: str | None
    ssl_certfile: str | None
    ssl_keyfile: str | None
    ssl_password: str | None
    ssl_check_hostname: bool
    ssl_context: ssl.SSLContext | None
    sasl_mechanism: Mechanism | None
    sasl_username: str | None
    sasl_password: str | None
    sasl_oauth_token_provider: TokenProvider | None


Kind = TypeVar("Kind", bound=ClientConfig)


def settings_of(kind: type[Kind], given: Mapping[str, Any]) -> Kind:
    """Settings from keyword arguments. An unknown name is refused with the nearest known one."""
    known = [field.name for field in dataclasses.fields(kind)]
    for name in given:
        if name not in known:
            import difflib

            near = difflib.get_close_matches(name.replace(".", "_"), known, 1)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"
            raise SettingError(f"unknown setting {name!r}: {hint}")
    return kind(**given)


def bootstrap_addresses(servers: str | Sequence[str]) -> list[tuple[str, int]]:
    """The `host:port` pairs of a string with commas or of a sequence. IPv6 hosts are in brackets."""
    texts = servers.split(",") if isinstance(servers, str) else list(servers)
    found = []
    for text in (text.strip() for text in texts):
        if not text:
            continue
        host, colon, port = text.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        if not colon or not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise SettingError(f"{text!r} is not a bootstrap address: write HOST:PORT, as in 127.0.0.1:9092")
        found.append((host, int(port)))
    if not found:
        raise SettingError("no bootstrap address given: write HOST:PORT, as in 127.0.0.1:9092")
    return found


def address_text(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
