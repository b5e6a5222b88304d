"""The settings of consumers: Kafka's names with underscores, their defaults, and the checks on them."""

from __future__ import annotations

import dataclasses
from typing import Literal

from ottla.client.errors import SettingError
from ottla.client.settings import Client, ClientSettings

OffsetReset = Literal["earliest", "latest", "none"]

OFFSET_RESETS: tuple[OffsetReset, ...] = ("earliest", "latest", "none")


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


class ConsumerSettings(ClientSettings, total=False):
    group_id: str | None
    auto_offset_reset: OffsetReset
    fetch_max_bytes: int
    fetch_max_wait_ms: int
    fetch_min_bytes: int
    max_partition_fetch_bytes: int
    max_poll_records: int
