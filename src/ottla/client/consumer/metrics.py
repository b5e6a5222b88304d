"""The metrics of a consumer: `Consumer.metrics()`."""

from __future__ import annotations

from dataclasses import dataclass

from ottla.client.consumer.fetcher import Fetcher


@dataclass(frozen=True, slots=True)
class ConsumerMetrics:
    """The counters and averages of a consumer: records, bytes, fetches and their latency.

    The latency includes the time that the broker holds a fetch. `lag_max` is the largest lag of a partition
    at its last fetch. `poison_records` counts skipped and replaced records.
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
