"""The settings of producers: Kafka's names with underscores, their defaults, and the checks on them."""

from __future__ import annotations

import dataclasses
from typing import Literal

from ottla.client.errors import SettingError
from ottla.client.settings import Client, ClientSettings

Acks = Literal["all", -1, 0, 1, "0", "1", "-1"]
Compression = Literal["none", "gzip", "snappy", "lz4", "zstd"]

COMPRESSIONS: tuple[Compression, ...] = ("none", "gzip", "snappy", "lz4", "zstd")


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
