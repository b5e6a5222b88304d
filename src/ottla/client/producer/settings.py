"""The producer settings: Kafka's names with underscores, their defaults and their checks."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from ottla.client.errors import SettingError
from ottla.client.serialization import Name, Serializer, serializer_of
from ottla.client.settings import ClientConfig, ClientSettings

if TYPE_CHECKING:
    from ottla.client.interception import Interceptor
    from ottla.client.producer.partitioner import Partitioner

Acks = Literal["all", -1, 0, 1, "0", "1", "-1"]
Compression = Literal["none", "gzip", "snappy", "lz4", "zstd"]
PartitionerName = Literal["sticky", "round_robin"]

COMPRESSIONS: tuple[Compression, ...] = ("none", "gzip", "snappy", "lz4", "zstd")
PARTITIONERS: tuple[PartitionerName, ...] = ("sticky", "round_robin")
RETRIES_MAX = (1 << 31) - 1
#: A broker remembers the last five batches of a producer, to recognize duplicates (KIP-98).
IN_FLIGHT_IDEMPOTENT_MAX = 5


@dataclasses.dataclass(frozen=True, slots=True)
class ProducerConfig(ClientConfig):
    acks: Acks = "all"
    # Records wait only while an earlier batch of their partition is in flight, so larger batches cost no
    # latency. Kafka's 16 KiB would only mean more requests.
    batch_size: int = 262_144
    buffer_memory: int = 33_554_432
    compression_type: Compression = "none"
    delivery_timeout_ms: int = 120_000
    enable_idempotence: bool | None = None
    interceptors: Sequence[Interceptor] = ()
    key_serializer: Name | Serializer | None = None
    linger_ms: int = 0
    max_block_ms: int = 60_000
    max_in_flight_requests_per_connection: int = 5
    max_request_size: int = 1_048_576
    partitioner: PartitionerName | Partitioner = "sticky"
    retries: int = RETRIES_MAX
    transaction_timeout_ms: int = 60_000
    transactional_id: str | None = None
    value_serializer: Name | Serializer | None = None

    def __post_init__(self) -> None:
        ClientConfig.__post_init__(self)
        if str(self.acks) not in ("all", "-1", "0", "1"):
            raise SettingError(f"acks must be 'all', 1 or 0, not {self.acks!r}")
        if self.compression_type not in COMPRESSIONS:
            raise SettingError(
                f"compression_type must be one of {', '.join(COMPRESSIONS)}, not {self.compression_type!r}"
            )
        if self.enable_idempotence and self.acks_number != -1:
            raise SettingError("enable_idempotence needs acks='all'")
        for name, lowest in (("retries", 0), ("max_in_flight_requests_per_connection", 1)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < lowest:
                raise SettingError(f"{name} must be a whole number of {lowest} or more, not {value!r}")
        if self.idempotent and self.max_in_flight_requests_per_connection > IN_FLIGHT_IDEMPOTENT_MAX:
            raise SettingError(
                f"max_in_flight_requests_per_connection must be 1 to {IN_FLIGHT_IDEMPOTENT_MAX} "
                "with enable_idempotence"
            )
        if self.partitioner not in PARTITIONERS and not callable(self.partitioner):
            raise SettingError(
                f"partitioner must be one of {', '.join(PARTITIONERS)} or a callable "
                f"(topic, key, key_bytes, value, partitions), not {self.partitioner!r}"
            )
        serializer_of(self.key_serializer, "key_serializer")
        serializer_of(self.value_serializer, "value_serializer")
        if not isinstance(self.interceptors, (list, tuple)):
            raise SettingError(f"interceptors must be a list of objects, not {self.interceptors!r}")
        self._check_transactions()

    def _check_transactions(self) -> None:
        name: object = self.transactional_id
        if name is None:
            return
        if not isinstance(name, str) or not name:
            raise SettingError(f"transactional_id must be a string that is not empty, not {name!r}")
        if not self.idempotent:
            raise SettingError("transactional_id needs acks='all' and enable_idempotence")
        if not self.transaction_timeout_ms:
            raise SettingError("transaction_timeout_ms must be more than 0")

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
    interceptors: Sequence[Interceptor]
    key_serializer: Name | Serializer | None
    linger_ms: int
    max_block_ms: int
    max_in_flight_requests_per_connection: int
    max_request_size: int
    partitioner: PartitionerName | Partitioner
    retries: int
    transaction_timeout_ms: int
    transactional_id: str | None
    value_serializer: Name | Serializer | None
