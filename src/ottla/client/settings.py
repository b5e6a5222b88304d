"""The settings of clients: Kafka's names with underscores, their defaults, and the checks on them.

`Client` holds what every client needs; producer and consumer add their own. A client is built from keyword arguments
(`ottla.Producer(address, linger_ms=5)`); the typed dictionaries below give those arguments to type checkers and a test
keeps them equal to the dataclasses.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict, TypeVar

from ottla.client.errors import SettingError

Acks = Literal["all", -1, 0, 1, "0", "1", "-1"]
Compression = Literal["none", "gzip", "snappy", "lz4", "zstd"]
OffsetReset = Literal["earliest", "latest", "none"]

COMPRESSIONS: tuple[Compression, ...] = ("none", "gzip", "snappy", "lz4", "zstd")
OFFSET_RESETS: tuple[OffsetReset, ...] = ("earliest", "latest", "none")


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


@dataclasses.dataclass(frozen=True, slots=True)
class Producing(Client):
    acks: Acks = "all"
    # Records wait only while an earlier batch of their partition is on its way, so that a larger batch costs no
    # latency; Kafka's 16 KiB would only make more requests.
    batch_size: int = 262_144
    buffer_memory: int = 33_554_432
    compression_type: Compression = "none"
    delivery_timeout_ms: int = 120_000
    enable_idempotence: bool | None = None
    linger_ms: int = 0
    max_block_ms: int = 60_000
    max_request_size: int = 1_048_576

    def __post_init__(self) -> None:
        Client.__post_init__(self)
        if str(self.acks) not in ("all", "-1", "0", "1"):
            raise SettingError(f"acks must be 'all', 1 or 0, not {self.acks!r}")
        if self.compression_type not in COMPRESSIONS:
            raise SettingError(
                f"compression_type must be one of {', '.join(COMPRESSIONS)}, not {self.compression_type!r}"
            )
        if self.enable_idempotence and self.acks_number != -1:
            raise SettingError("enable_idempotence needs acks='all'")

    @property
    def acks_number(self) -> int:
        return -1 if self.acks == "all" else int(self.acks)

    @property
    def idempotent(self) -> bool:
        return self.acks_number == -1 if self.enable_idempotence is None else self.enable_idempotence


@dataclasses.dataclass(frozen=True, slots=True)
class Consuming(Client):
    group_id: str | None = None
    auto_offset_reset: OffsetReset = "latest"
    fetch_max_bytes: int = 52_428_800
    fetch_max_wait_ms: int = 500
    fetch_min_bytes: int = 1
    max_partition_fetch_bytes: int = 1_048_576
    max_poll_records: int = 500

    def __post_init__(self) -> None:
        Client.__post_init__(self)
        if self.auto_offset_reset not in OFFSET_RESETS:
            raise SettingError(
                f"auto_offset_reset must be one of {', '.join(OFFSET_RESETS)}, not {self.auto_offset_reset!r}"
            )
        if self.max_poll_records < 1:
            raise SettingError("max_poll_records must be 1 or more")


class ClientSettings(TypedDict, total=False):
    client_id: str
    request_timeout_ms: int
    socket_connection_setup_timeout_ms: int
    metadata_max_age_ms: int
    retry_backoff_ms: int
    retry_backoff_max_ms: int


class ProducerSettings(ClientSettings, total=False):
    acks: Acks
    batch_size: int
    buffer_memory: int
    compression_type: Compression
    delivery_timeout_ms: int
    enable_idempotence: bool | None
    linger_ms: int
    max_block_ms: int
    max_request_size: int


class ConsumerSettings(ClientSettings, total=False):
    group_id: str | None
    auto_offset_reset: OffsetReset
    fetch_max_bytes: int
    fetch_max_wait_ms: int
    fetch_min_bytes: int
    max_partition_fetch_bytes: int
    max_poll_records: int


Kind = TypeVar("Kind", Client, Producing, Consuming)


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
