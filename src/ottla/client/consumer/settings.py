"""The settings of consumers: Kafka's names with underscores, their defaults, and the checks on them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Literal

from ottla.client.consumer.decoding import RECORD_DECODERS, RecordDecoder
from ottla.client.consumer.poison import ON_POISON, OnPoison
from ottla.client.errors import SettingError
from ottla.client.serialization import Deserializer, Name, deserializer_of
from ottla.client.settings import Client, ClientSettings

IsolationLevel = Literal["read_uncommitted", "read_committed"]
ISOLATION_LEVELS: tuple[IsolationLevel, ...] = ("read_uncommitted", "read_committed")
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
    queued_max_bytes: int = 67_108_864
    isolation_level: IsolationLevel = "read_uncommitted"
    client_rack: str = ""
    check_crcs: bool = True
    key_deserializer: Name | Deserializer | None = None
    value_deserializer: Name | Deserializer | None = None
    on_poison: OnPoison = "raise"
    record_decoder: RecordDecoder = "auto"

    def __post_init__(self) -> None:
        Client.__post_init__(self)
        if self.auto_offset_reset not in OFFSET_RESETS:
            raise SettingError(
                f"auto_offset_reset must be one of {', '.join(OFFSET_RESETS)}, not {self.auto_offset_reset!r}"
            )
        if self.max_poll_records < 1:
            raise SettingError("max_poll_records must be 1 or more")
        self._check_reading()

    def _check_reading(self) -> None:
        one_of("isolation_level", self.isolation_level, ISOLATION_LEVELS)
        one_of("record_decoder", self.record_decoder, RECORD_DECODERS)
        if not callable(self.on_poison):
            one_of("on_poison", self.on_poison, ON_POISON, "or a callable")
        deserializer_of(self.key_deserializer, "key_deserializer")
        deserializer_of(self.value_deserializer, "value_deserializer")


def one_of(setting: str, value: object, known: Sequence[str], more: str = "") -> None:
    if value not in known:
        text = " ".join(filter(None, (", ".join(known), more)))
        raise SettingError(f"{setting} must be one of {text}, not {value!r}")


class ConsumerSettings(ClientSettings, total=False):
    group_id: str | None
    auto_offset_reset: OffsetReset
    fetch_max_bytes: int
    fetch_max_wait_ms: int
    fetch_min_bytes: int
    max_partition_fetch_bytes: int
    max_poll_records: int
    queued_max_bytes: int
    isolation_level: IsolationLevel
    client_rack: str
    check_crcs: bool
    key_deserializer: Name | Deserializer | None
    value_deserializer: Name | Deserializer | None
    on_poison: OnPoison
    record_decoder: RecordDecoder
