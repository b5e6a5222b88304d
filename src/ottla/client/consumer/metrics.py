"""What a consumer has read, in figures: `Consumer.metrics()`."""

from __future__ import annotations

from dataclasses import dataclass

from ottla.client.consumer.fetcher import Fetcher


@dataclass(frozen=True, slots=True)
class ConsumerMetrics:
    """What a consumer has read: records handed out, bytes that came, fetches and how long they took (a fetch may be held by the broker).

    `lag_max` is the largest distance from a position to the end of its partition, as the last fetch told it; `poison_records` counts
    those that were skipped or replaced.
    """

    records: int
    bytes: int
    buffered_bytes: int
    fetches: int
    fetch_latency_ms_avg: float
    fetch_latency_ms_max: float
    lag_max: int
    poison_records: int


def consumer_metrics(fetcher: Fetcher) -> ConsumerMetrics:
    buffer, committed = fetcher.buffer, fetcher.settings.isolation_level == "read_committed"
    with buffer.lock:
        lags = [
            max(end - partition.position, 0)
            for partition in buffer.partitions.values()
            if partition.position is not None
            and (end := partition.last_stable_offset if committed else partition.high_watermark) >= 0
        ]
        buffered = sum(partition.buffered_bytes for partition in buffer.partitions.values())
    return ConsumerMetrics(
        records=buffer.records_taken,
        bytes=buffer.bytes_fetched,
        buffered_bytes=buffered,
        fetches=fetcher.fetches,
        fetch_latency_ms_avg=fetcher.latency_ms_sum / fetcher.fetches if fetcher.fetches else 0.0,
        fetch_latency_ms_max=fetcher.latency_ms_max,
        lag_max=max(lags, default=0),
        poison_records=buffer.maker.poisoned,
    )
