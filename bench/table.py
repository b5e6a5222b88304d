"""Rows, goals and the printed table.

A figure is a list of values, one per round. The table shows medians; JSON contains all values. A goal is a
ratio to Kafka's figure, or an absolute bound. The table is Markdown, so that docs/performance.md can contain
it as printed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

# mode -> broker -> figure -> one value per round
Results = dict[str, dict[str, dict[str, list[float]]]]

START, PAGE_CACHE, DURABLE, COMPACTION = "start", "page-cache", "durable", "compaction"
CLUSTER = "cluster"
GROUPS = "groups"
TRANSACTIONS = "transactions"
KAFKA, OTTLA = "kafka", "ottla"


@dataclass(frozen=True, slots=True)
class Goal:
    """`ottla` <= `kafka_share` of Kafka's figure, or < `bound`, or >= `least`."""

    kafka_share: float | None = None
    bound: float | None = None
    least: float | None = None

    def text(self) -> str:
        if self.least is not None:
            return f"≥ {self.least:,.0f}"
        if self.bound is not None:
            return f"< {self.bound:g}"
        return "≤ Kafka" if self.kafka_share == 1 else f"≤ {self.kafka_share:g} × Kafka"

    def met(self, ottla: float, kafka: float | None) -> bool | None:
        """None without Kafka to compare with."""
        if self.least is not None:
            return ottla >= self.least
        if self.bound is not None:
            return ottla < self.bound
        return None if kafka is None or self.kafka_share is None else ottla <= self.kafka_share * kafka


@dataclass(frozen=True, slots=True)
class Row:
    figure: str
    label: str
    digits: int
    goal: Goal | None = None


NO_MORE = Goal(kafka_share=1)
HALF = Goal(kafka_share=0.5)

LOAD_ROWS = [
    Row("produce_mb_s", "produce, MB/s", 0),
    Row("produce_cpu_us_mb", "produce, broker CPU µs per MB", 0, NO_MORE),
    Row("consume_mb_s", "consume, MB/s", 0),
    Row("consume_cpu_us_mb", "consume, broker CPU µs per MB", 0, NO_MORE),
    Row("requests_s", "1-message requests/s, librdkafka, 5 in flight", 0),
    Row("request_cpu_us", "broker CPU µs per request, librdkafka", 1, HALF),
    Row("raw_requests_s", "1-message requests/s, raw socket, 5 in flight", 0),
    Row("raw_request_cpu_us", "broker CPU µs per request, raw socket", 1, HALF),
    Row("round_trip_p50_ms", "round trip p50, ms", 3, NO_MORE),
    Row("round_trip_p99_ms", "round trip p99, ms", 3, NO_MORE),
    Row("round_trip_p999_ms", "round trip p99.9, ms", 3),
    Row("round_trip_cpu_us", "broker CPU µs per round trip", 1),
]
START_ROWS = [
    Row("start_s", "start to first answer, s", 2, Goal(bound=0.5)),
    Row("rss_idle_mb", "resident memory idle, MB", 0, Goal(bound=80)),
    Row("rss_loaded_mb", "resident memory, peak under load, MB", 0, Goal(bound=80)),
    Row("idle_cpu_ms_s", "CPU while idle, ms per s", 1),
]
COMPACTION_ROWS = [
    Row("compaction_s", "time to compact, s", 1),
    Row("compaction_mb_s", "compacted, MB/s", 0),
    Row("compacted_share", "what is left of the log, share", 2),
    Row("quiet_p99_ms", "round trip p99 before it, ms", 3),
    Row("compacting_p99_ms", "round trip p99 meanwhile, ms", 3, NO_MORE),
    Row("compacting_p999_ms", "round trip p99.9 meanwhile, ms", 3),
]
CLUSTER_ROWS = [
    *(
        Row(row.figure, row.label.replace("broker CPU", "CPU of all brokers,"), row.digits, row.goal)
        for row in LOAD_ROWS
    ),
    Row("one_broker_requests_s", "a fifth of a core a broker: requests/s, 3 partitions on one broker", 0),
    Row(
        "three_brokers_requests_s", "a fifth of a core a broker: requests/s, 3 partitions on three brokers", 0
    ),
    Row("cluster_rss_mb", "resident memory of all brokers, peak, MB", 0, Goal(kafka_share=0.125)),
    Row("zookeeper_rss_mb", "resident memory of ZooKeeper, peak, MB", 0),
    Row("failover_stall_s", "kill -9 of a leader: longest wait of a producer, s", 2, Goal(bound=2)),
    Row("failover_s", "kill -9 of a leader: all its partitions take records again, s", 2, NO_MORE),
]
COMMITS = Goal(least=10_000)
GROUP_ROWS = [
    Row("settle_classic_s", "1,000 members of one group settle, classic protocol, s", 2, Goal(bound=5)),
    Row("settle_classic_cpu_s", "the same, broker CPU, s", 2),
    Row("settle_consumer_s", "1,000 members of one group settle, consumer protocol, s", 2, Goal(bound=5)),
    Row("settle_consumer_cpu_s", "the same, broker CPU, s", 2),
    Row("heartbeats_s", "5,000 groups of 2, a heartbeat every 3 s: heartbeats/s", 0),
    Row("heartbeat_core_percent", "the same, broker CPU, % of one core", 1, Goal(bound=40)),
    Row("heartbeat_cpu_us", "broker CPU µs per heartbeat", 1),
    *(
        Row(f"{durable}{spread}{figure}", f"{label}{kind}{of}", digits, goal)
        for durable, kind in (("", ""), ("durable_", ", durable"))
        for spread, of, many in (("", ", one group", COMMITS), ("spread_", ", 50 groups", None))
        for figure, label, digits, goal in (
            ("commits_s", "commits/s, 50 connections", 0, many),
            ("commit_p50_ms", "commit p50, ms", 2, None),
            ("commit_p99_ms", "commit p99, ms", 2, None),
            ("commit_cpu_us", "broker CPU µs per commit", 1, None),
        )
    ),
]
TENTH_MORE = Goal(bound=1.1)
TRANSACTION_ROWS = [
    Row("plain_request_cpu_us", "broker CPU µs per 1-message request, raw socket, plain", 1),
    Row("idempotent_request_cpu_us", "the same, idempotent", 1),
    Row("idempotent_request_share", "idempotent / plain, per request", 2, TENTH_MORE),
    Row("plain_cpu_us_mb", "broker CPU µs per MB produced, plain", 0),
    Row("idempotent_cpu_us_mb", "the same, idempotent", 0),
    Row("idempotent_share", "idempotent / plain, per MB", 2, TENTH_MORE),
    Row("uncommitted_fetch_cpu_us", "broker CPU µs per fetch of 32 KB, raw socket, read_uncommitted", 1),
    Row("committed_fetch_cpu_us", "the same, read_committed", 1),
    Row("committed_fetch_share", "read_committed / read_uncommitted, per fetch", 2, TENTH_MORE),
    Row("uncommitted_cpu_us_mb", "broker CPU µs per MB consumed, read_uncommitted", 0),
    Row("committed_cpu_us_mb", "the same, read_committed", 0),
    Row("committed_share", "read_committed / read_uncommitted, per MB", 2, TENTH_MORE),
    Row("small_transactions_s", "transactions of one message, one after another, a second", 0),
    Row("small_transaction_p99_ms", "the same, p99, ms", 2),
    Row("small_transaction_cpu_us", "the same, broker CPU µs per transaction", 0, NO_MORE),
    Row("copied_s", "messages (100 B) in transactions of 750 with offsets, a second", 0),
    Row("copy_cpu_us", "the same, broker CPU µs per transaction", 0, NO_MORE),
]
# The durable mode has no goals: it is shown for comparison with Kafka's equivalent mode.
SECTIONS = [
    (PAGE_CACHE, "Page-cache mode (log.flush.policy=page-cache; Kafka's default)", LOAD_ROWS),
    (START, "Start and memory (page-cache mode)", START_ROWS),
    (
        DURABLE,
        "Durable mode (ottla's default; Kafka with flush.messages=1)",
        [Row(row.figure, row.label, row.digits) for row in LOAD_ROWS],
    ),
    (
        CLUSTER,
        "Cluster: three brokers, replication 3, acks=all (page-cache mode)",
        CLUSTER_ROWS,
    ),
    (COMPACTION, "Compaction of one log (page-cache mode)", COMPACTION_ROWS),
    (
        GROUPS,
        "Groups (page-cache mode; durable: ottla's default, Kafka with flush.messages=1)",
        GROUP_ROWS,
    ),
    (
        TRANSACTIONS,
        "Exactly once (page-cache mode)",
        TRANSACTION_ROWS,
    ),
]


@dataclass(frozen=True, slots=True)
class Verdict:
    label: str
    met: bool | None


def _middle(figures: Mapping[str, Sequence[float]], figure: str) -> float | None:
    values = figures.get(figure)
    return median(values) if values else None


def render(results: Results, names: Mapping[str, str]) -> str:
    """The whole table; `names` are the column headers (`Kafka 4.3.1`, `ottla`)."""
    lines = []
    for mode, title, rows in SECTIONS:
        if mode not in results:
            continue
        cells = [["", names.get(KAFKA, "Kafka"), names.get(OTTLA, "ottla"), "ottla / Kafka", "goal", ""]]
        cells += [_cells(row, results[mode]) for row in rows if _shown(row, results[mode])]
        widths = [max(len(line[column]) for line in cells) for column in range(len(cells[0]))]
        cells.insert(1, ["-" * width for width in widths])
        lines += ["", f"**{title}**", ""]
        for line in cells:
            padded = [
                cell.ljust(width) if column in (0, 4, 5) else cell.rjust(width)
                for column, (cell, width) in enumerate(zip(line, widths, strict=True))
            ]
            lines.append("| " + " | ".join(padded) + " |")
    return "\n".join(lines).lstrip("\n")


def _shown(row: Row, brokers: Mapping[str, Mapping[str, Sequence[float]]]) -> bool:
    return any(row.figure in figures for figures in brokers.values())


def _cells(row: Row, brokers: Mapping[str, Mapping[str, Sequence[float]]]) -> list[str]:
    kafka, ottla = (_middle(brokers.get(name, {}), row.figure) for name in (KAFKA, OTTLA))

    def number(value: float | None) -> str:
        return "–" if value is None else f"{value:,.{row.digits}f}"

    ratio = f"{ottla / kafka:.2f}" if ottla is not None and kafka else "–"
    met = row.goal.met(ottla, kafka) if row.goal and ottla is not None else None
    verdict = {True: "pass", False: "MISS", None: ""}[met]
    return [row.label, number(kafka), number(ottla), ratio, row.goal.text() if row.goal else "", verdict]


def verdicts(results: Results) -> list[Verdict]:
    """Every goal, judged or not, in the order of the table."""
    found = []
    for mode, _, rows in SECTIONS:
        brokers = results.get(mode, {})
        for row in rows:
            ottla = _middle(brokers.get(OTTLA, {}), row.figure)
            if row.goal is not None and ottla is not None:
                kafka = _middle(brokers.get(KAFKA, {}), row.figure)
                found.append(Verdict(row.label, row.goal.met(ottla, kafka)))
    return found
