"""The metrics of a producer, counted once per batch or request and never per record.

The accumulator and the sender fill `Counts`, on the client's thread. `metrics()` returns `ProducerMetrics`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from ottla.client.errors import KafkaError

if TYPE_CHECKING:
    from ottla.client.producer.batches import ProducerBatch


@dataclass(frozen=True, slots=True)
class ProducerMetrics:
    """The counters and averages of a producer since it was created. `str()` is a table.

    - `records_sent`: acknowledged records. `records_failed`: records that failed for good.
    - `batch_fill_avg`: the share of `batch_size` that a batch had when it was first sent.
    - `queue_time_*`: from the first record of a batch until the batch was first sent.
    - `request_latency_*`: from a request until its response.
    - `throttle_time_ms`: the total time that brokers asked the producer to wait.
    """

    records_sent: int = 0
    records_failed: int = 0
    bytes_sent: int = 0
    batches_sent: int = 0
    batches_failed: int = 0
    batches_split: int = 0
    batch_fill_avg: float = 0.0
    records_per_batch_avg: float = 0.0
    requests: int = 0
    requests_in_flight: int = 0
    retries: int = 0
    request_latency_avg_ms: float = 0.0
    request_latency_max_ms: float = 0.0
    queue_time_avg_ms: float = 0.0
    queue_time_max_ms: float = 0.0
    throttle_time_ms: float = 0.0
    buffered_bytes: int = 0
    buffer_bytes: int = 0

    def __str__(self) -> str:
        rows = [(field.name, getattr(self, field.name)) for field in fields(self)]
        return "\n".join(
            f"{name:<24}{f'{value:,.2f}' if isinstance(value, float) else f'{value:,}':>16}"
            for name, value in rows
        )


class Counts:
    """Running sums."""

    __slots__ = (
        "answers", "batches_failed", "batches_sent", "bytes_left", "bytes_sent", "first_departures", "latency_max_ms", "latency_ms",
        "queued_max_ms", "queued_ms", "records_failed", "records_sent", "requests", "retries", "splits", "throttled_ms",
    )  # fmt: skip

    def __init__(self) -> None:
        self.records_sent = self.records_failed = self.bytes_sent = 0
        self.batches_sent = self.batches_failed = self.splits = 0
        self.requests = self.answers = self.retries = 0
        self.latency_ms = self.latency_max_ms = 0.0
        self.first_departures = self.bytes_left = 0
        self.queued_ms = self.queued_max_ms = 0.0
        self.throttled_ms = 0.0

    def left(self, batch: ProducerBatch) -> None:
        """A batch is sent in a request."""
        if batch.attempts:
            self.retries += 1
            return
        queued_ms = batch.taken_ms - batch.created_ms
        self.first_departures += 1
        self.bytes_left += batch.size_bytes
        self.queued_ms += queued_ms
        self.queued_max_ms = max(self.queued_max_ms, queued_ms)

    def answered(self, latency_ms: float) -> None:
        self.answers += 1
        self.latency_ms += latency_ms
        self.latency_max_ms = max(self.latency_max_ms, latency_ms)

    def finished(self, batch: ProducerBatch, error: KafkaError | None) -> None:
        if error is None:
            self.records_sent += len(batch.records)
            self.bytes_sent += batch.size_bytes
            self.batches_sent += 1
        else:
            self.records_failed += len(batch.records)
            self.batches_failed += 1

    def snapshot(
        self, *, in_flight: int, batch_bytes: int, buffered_bytes: int, buffer_bytes: int
    ) -> ProducerMetrics:
        departures = self.first_departures or 1
        return ProducerMetrics(
            records_sent=self.records_sent,
            records_failed=self.records_failed,
            bytes_sent=self.bytes_sent,
            batches_sent=self.batches_sent,
            batches_failed=self.batches_failed,
            batches_split=self.splits,
            batch_fill_avg=self.bytes_left / departures / batch_bytes if batch_bytes else 1.0,
            records_per_batch_avg=self.records_sent / (self.batches_sent or 1),
            requests=self.requests,
            requests_in_flight=in_flight,
            retries=self.retries,
            request_latency_avg_ms=self.latency_ms / (self.answers or 1),
            request_latency_max_ms=self.latency_max_ms,
            queue_time_avg_ms=self.queued_ms / departures,
            queue_time_max_ms=self.queued_max_ms,
            throttle_time_ms=self.throttled_ms,
            buffered_bytes=buffered_bytes,
            buffer_bytes=buffer_bytes,
        )
