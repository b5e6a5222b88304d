"""What a producer counts, once a batch or a request and never once a record, and how it tells it.

`Counts` is filled by the accumulator and the sender, on the client's thread; `ProducerMetrics` is what `metrics()` gives out.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from ottla.client.errors import KafkaError

if TYPE_CHECKING:
    from ottla.client.producer.batches import ProducerBatch


@dataclass(frozen=True, slots=True)
class ProducerMetrics:
    """What a producer has done since it was made. `str()` of it is a table.

    `records_sent` are acknowledged, `records_failed` are not and will not be. `batch_fill_avg` is the part of `batch_size` that
    batches had when they left; `queue_time_avg_ms` is from the first record of a batch until it first left; `request_latency_*`
    is from a request until its answer. `throttle_time_ms` is how long brokers asked to be left alone, in all.
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
    """The running sums."""

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
        """A batch leaves in a request."""
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

    def told(
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
