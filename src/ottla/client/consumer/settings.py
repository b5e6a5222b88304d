"""The consumer settings: Kafka's names with underscores, their defaults and their checks."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Literal, TypeAlias

from ottla.client.consumer.assignors.names import Strategy, assignors_of
from ottla.client.consumer.decoder import RECORD_DECODERS, RecordDecoder
from ottla.client.consumer.poison import ON_POISON, OnPoison
from ottla.client.consumer.resets import reset_timestamp
from ottla.client.consumer.stores.store import OffsetStore
from ottla.client.errors import SettingError
from ottla.client.interception import Interceptor
from ottla.client.serialization import Deserializer, Name, deserializer_of
from ottla.client.settings import ClientConfig, ClientSettings

IsolationLevel = Literal["read_uncommitted", "read_committed"]
ISOLATION_LEVELS: tuple[IsolationLevel, ...] = ("read_uncommitted", "read_committed")
GroupProtocol = Literal["classic", "consumer"]
Strategies: TypeAlias = Strategy | Sequence[Strategy]

GROUP_PROTOCOLS: tuple[GroupProtocol, ...] = ("classic", "consumer")
#: A name, or `by_duration:` and a duration.
OffsetReset: TypeAlias = Literal["earliest", "latest", "none"] | str


@dataclasses.dataclass(frozen=True, slots=True)
class ConsumerConfig(ClientConfig):
    group_id: str | None = None
    group_instance_id: str | None = None
    group_protocol: GroupProtocol = "classic"
    group_remote_assignor: str | None = None
    partition_assignment_strategy: Strategies = ("range", "cooperative-sticky")
    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 3_000
    max_poll_interval_ms: int = 300_000
    enable_auto_commit: bool = True
    auto_commit_interval_ms: int = 5_000
    default_api_timeout_ms: int = 60_000
    offset_store: OffsetStore | None = None
    interceptors: Sequence[Interceptor] = ()
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
        ClientConfig.__post_init__(self)
        one_of("group_protocol", self.group_protocol, GROUP_PROTOCOLS)
        for name in ("group_id", "group_instance_id", "group_remote_assignor"):
            if getattr(self, name) == "":
                raise SettingError(f"{name} must be a name or None, not empty")
        self._check_group()
        reset_timestamp(self.auto_offset_reset, 0)
        if self.max_poll_records < 1:
            raise SettingError("max_poll_records must be 1 or more")
        self._check_reading()

    def _check_group(self) -> None:
        assignors_of(self.partition_assignment_strategy)
        if self.heartbeat_interval_ms >= self.session_timeout_ms:
            raise SettingError(
                f"heartbeat_interval_ms ({self.heartbeat_interval_ms}) must be below session_timeout_ms "
                f"({self.session_timeout_ms}); a third of it tolerates two lost heartbeats"
            )
        if self.group_remote_assignor is not None and self.group_protocol == "classic":
            raise SettingError(
                'group_remote_assignor needs group_protocol="consumer"; for classic groups set '
                "partition_assignment_strategy"
            )

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
    group_instance_id: str | None
    group_protocol: GroupProtocol
    group_remote_assignor: str | None
    partition_assignment_strategy: Strategies
    session_timeout_ms: int
    heartbeat_interval_ms: int
    max_poll_interval_ms: int
    enable_auto_commit: bool
    auto_commit_interval_ms: int
    default_api_timeout_ms: int
    offset_store: OffsetStore | None
    interceptors: Sequence[Interceptor]
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
