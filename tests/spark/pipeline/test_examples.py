"""examples/pipelines with a real broker and Spark: processes all records, and checks every output record."""

import contextlib
import json
import re
import sqlite3
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import ottla
from ottla.spark.pipeline.loader import load
from ottla.spark.pipeline.runner import Run, ship
from ottla.spark.pipeline.shared_spark import session_for
from tests.running_broker import RunningBroker
from tests.spark.pipeline.examples import FOLDER, PATIENCE_S, generator, records, take_all


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One of the examples' own: they name their topics."""
    broker = RunningBroker(tmp_path_factory.mktemp("examples"))
    yield broker.address
    assert broker.stop() == 0


@pytest.fixture
def run(spark: SparkSession, brokers: str, tmp_path: Path) -> Callable[..., dict[str, int]]:
    """Run an example on all that is there; gives the rows of each query."""

    def go(file: str, **settings: str) -> dict[str, int]:
        loaded = load(FOLDER / file, {"BROKERS": brokers, "CHECKPOINTS": str(tmp_path), **settings})
        # Views and settings of its own, on the context that all tests share.
        session = session_for(spark, loaded.plan)
        ship(session, loaded, (), remote=False)
        running = Run(session, loaded.plan)
        take_all(running)
        assert not running.failed, running.failed
        assert {each.state for each in running.queries.values()} == {"done"}
        return {name: each.rows for name, each in running.queries.items()}

    return go


def committed(brokers: str, topic: str) -> list[tuple[str, Any]]:
    """Keys and values, in the order of each partition."""
    found = []
    with ottla.Consumer(brokers, auto_offset_reset="earliest", isolation_level="read_committed") as consumer:
        with ottla.Admin(brokers) as admin:
            places = [
                ottla.TopicPartition(topic, each)
                for each in range(len(admin.list_topics()[topic].partitions))
            ]
            ends = admin.list_offsets(dict.fromkeys(places, -1))
        consumer.assign(places)
        deadline_s = time.monotonic() + PATIENCE_S
        while any(consumer.position(place) < at.offset for place, at in ends.items()):
            assert time.monotonic() < deadline_s
            for each in consumer.poll(100).values():
                found += [(record.key.decode(), record.value.decode()) for record in each]
    return found


def test_words_are_counted_exactly_once_from_topic_to_topic(brokers: str, run: Callable[..., Any]) -> None:
    lines = records("lines", 3000)
    generator().make_topics(brokers, "lines")
    half = len(lines) // 2
    expected: Counter[str] = Counter()
    for part in (lines[:half], lines[half:]):
        generator().send(brokers, iter(part))
        assert run("wordcount.py") == {"counts": half}
        for line in part:
            expected.update(re.findall(r"\w+", line.value.decode().lower()))
        told = committed(brokers, "counts")
        assert dict(told) == {word: str(count) for word, count in expected.items()}
    # Each run is one batch, and tells each word once.
    assert len(told) == 2 * len(expected)


def visits_of(clicks: list[Any]) -> tuple[list[tuple[Any, ...]], int]:
    """Visits by user, start, end and number of clicks; and the latest click, in ms."""
    at_of = defaultdict(list)
    for record in clicks:
        click = json.loads(record.value)
        at_of[click["user"]].append(ms(click["at"]))
    visits = []
    for user, times in at_of.items():
        times.sort()
        begin = 0
        for here in range(1, len(times) + 1):
            if here == len(times) or times[here] - times[here - 1] >= 300_000:
                visits.append((user, times[begin], times[here - 1] + 300_000, here - begin))
                begin = here
    return visits, max(max(times) for times in at_of.values())


def ms(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1000)


def test_clicks_become_visits_and_pages_a_minute(brokers: str, run: Callable[..., Any]) -> None:
    clicks = records("clicks", 3000)
    generator().make_topics(brokers, "clicks")
    generator().send(brokers, iter(clicks))
    assert run("sessions.yaml") == {"visits": 3000, "pages": 3000}
    visits, latest = visits_of(clicks)
    watermark = latest - 30_000
    told = [json.loads(value) for _, value in committed(brokers, "visits")]
    found = [(each["user"], ms(each["started"]), ms(each["ended"]), each["clicks"]) for each in told]
    # Those that may still grow are not told yet.
    over = [each for each in visits if each[2] <= watermark]
    assert len(over) > 100 and sorted(found) == sorted(over)

    minutes: Counter[tuple[int, str]] = Counter()
    for record in clicks:
        click = json.loads(record.value)
        minutes[ms(click["at"]) // 60_000, click["page"]] += 1
    pages = [json.loads(value) for _, value in committed(brokers, "pages")]
    assert {(ms(each["minute"]) // 60_000, each["page"]): each["clicks"] for each in pages} == {
        place: count for place, count in minutes.items() if (place[0] + 1) * 60_000 <= watermark
    }


def test_orders_are_rows_of_a_database_with_the_names_of_their_customers(
    brokers: str, run: Callable[..., Any], tmp_path: Path
) -> None:
    made = records("orders", 3000)
    generator().make_topics(brokers, "orders")
    database = tmp_path / "orders.db"
    customers: dict[str, Any] = {}
    expected: dict[int, tuple[Any, ...]] = {}
    half = len(made) // 2
    for part in (made[:half], made[half:]):
        generator().send(brokers, iter(part))
        orders = [json.loads(record.value) for record in part if record.topic == "orders"]
        customers |= {record.key: json.loads(record.value) for record in part if record.topic == "customers"}
        assert run("orders.yaml", DATABASE=f"sqlite:///{database}") == {"database": len(orders)}
        # The table as it is when the batch runs: orders of a batch see the names of its end.
        for order in orders:
            known = customers.get(order["customer"], {"name": None, "country": "?"})
            row = (order["customer"], known["name"], known["country"], order["amount"])
            expected[order["id"]] = row
        with contextlib.closing(sqlite3.connect(database)) as connection:
            rows = connection.execute("SELECT id, customer, name, country, amount FROM orders").fetchall()
        assert {row[0]: row[1:] for row in rows} == expected and len(rows) == len(expected)
