"""The progress of a query, from Spark's report after each micro-batch. Pure: JSON in, values and text out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Progress:
    """The last micro-batch of one sink's query. Lag is per partition, "orders-0", after that micro-batch."""

    batch: int
    at: str
    rows: int
    rows_per_s_in: float
    rows_per_s: float
    batch_ms: int
    lag: Mapping[str, int] = field(default_factory=dict)
    state_rows: int = 0
    state_bytes: int = 0
    watermark: str | None = None

    @property
    def lag_total(self) -> int:
        return sum(self.lag.values())

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"lag": dict(self.lag), "lag_total": self.lag_total}


def read_progress(said: Mapping[str, Any]) -> Progress:
    """Parse Spark's progress JSON."""
    states = said.get("stateOperators") or []
    durations = said.get("durationMs") or {}
    return Progress(
        batch=int(said.get("batchId", -1)),
        at=str(said.get("timestamp", "")),
        rows=int(said.get("numInputRows") or 0),
        rows_per_s_in=_number(said.get("inputRowsPerSecond")),
        rows_per_s=_number(said.get("processedRowsPerSecond")),
        batch_ms=int(durations.get("triggerExecution") or said.get("batchDuration") or 0),
        lag=_lag(said.get("sources") or []),
        state_rows=sum(int(state.get("numRowsTotal") or 0) for state in states),
        state_bytes=sum(int(state.get("memoryUsedBytes") or 0) for state in states),
        watermark=(said.get("eventTime") or {}).get("watermark"),
    )


def _number(given: Any) -> float:
    """Convert a rate: Spark reports NaN for the first micro-batch."""
    try:
        number = float(given)
    except (TypeError, ValueError):
        return 0.0
    return round(number, 1) if number == number and abs(number) != float("inf") else 0.0


def _lag(sources: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """The lag of sources whose offsets are numbers by topic and partition."""
    found: dict[str, int] = {}
    for source in sources:
        latest, end = offsets(source.get("latestOffset")), offsets(source.get("endOffset"))
        for place, offset in latest.items():
            if place in end:
                found[place] = found.get(place, 0) + max(offset - end[place], 0)
    return found


def offsets(said: Any) -> dict[str, int]:
    """Convert {"orders": {"0": 5}} to {"orders-0": 5}; empty for other kinds of offsets."""
    if not isinstance(said, Mapping):
        return {}
    return {
        f"{topic}-{partition}": offset
        for topic, partitions in said.items()
        if isinstance(partitions, Mapping)
        for partition, offset in partitions.items()
        if str(partition).isdigit() and isinstance(offset, int)
    }


def one_line(progress: Mapping[str, Progress | None]) -> str:
    """All queries in one line for a terminal."""
    parts = []
    for sink, last in progress.items():
        if last is None:
            parts.append(f"{sink}: starting")
            continue
        state = f"  state {last.state_rows:,} rows, {size(last.state_bytes)}" if last.state_rows else ""
        parts.append(
            f"{sink}: batch {last.batch}  {last.rows_per_s_in:,.0f} rows/s in  lag {last.lag_total:,}  "
            f"{last.batch_ms:,} ms{state}"
        )
    return "  |  ".join(parts)


def brief(progress: Mapping[str, Progress | None]) -> str:
    """Many queries in one line for a terminal: only rate and lag."""
    return "  |  ".join(
        f"{sink}: {last.rows_per_s_in:,.0f}/s  lag {last.lag_total:,}" if last else f"{sink}: starting"
        for sink, last in progress.items()
    )


def size(count: int) -> str:
    number = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:.1f} TiB"
