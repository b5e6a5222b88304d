"""Pipelines on a real Spark: run, failure, stop and restart."""

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import DataFrame, SparkSession

import ottla
from ottla.spark.pipeline import Pipeline
from ottla.spark.pipeline.causes import cause_of, is_file_fault
from ottla.spark.pipeline.plan_check import analyse, check_topics
from ottla.spark.pipeline.queries import StepFailed
from ottla.spark.pipeline.runner import Run
from ottla.spark.pipeline.status import read_status
from ottla.spark.session import DEFAULTS

PATIENCE_S = 100


def until(running: Run, condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        running.look()
        assert time.monotonic() < deadline_s, running.progress
        time.sleep(0.05)


@pytest.fixture
def session(spark: SparkSession) -> SparkSession:
    """Views and settings of its own, on the context that all tests share."""
    return spark.newSession()


def ticks(tmp_path: Path, **fields: Any) -> Pipeline:
    pipeline = Pipeline("ticks", checkpoint=str(tmp_path / "kept"), **fields)
    pipeline.source("ticks", format="rate", options={"rowsPerSecond": 100}, watermark="timestamp 1 second")
    return pipeline


def test_a_pipeline_tells_how_it_is_getting_on_and_stops_behind_a_batch(
    session: SparkSession, tmp_path: Path
) -> None:
    pipeline = ticks(tmp_path, trigger="200 ms")
    pipeline.sql(
        "thirds",
        "SELECT window(timestamp, '1 second') AS w, value % 3 AS id, count(*) AS n FROM ticks GROUP BY 1, 2",
    )

    @pipeline.step
    def even(ticks: DataFrame) -> DataFrame:
        return ticks.where("value % 2 = 0")

    pipeline.sink("counts", from_="thirds", format="noop", mode="update")
    pipeline.sink("all", from_="even", format="noop")
    plan = pipeline.plan(str(tmp_path / "ticks.py"))
    running = Run(session, plan)
    running.start()
    until(running, lambda: all(each is not None and each.rows > 0 for each in running.progress.values()))
    until(running, lambda: (running.progress["counts"] or Any).state_rows > 0)
    known = read_status(plan) or {}
    assert known["state"] == "running" and set(known["queries"]) == {"counts", "all"}

    assert running.stop(60) == {"counts": "stopped", "all": "stopped"}
    assert {each.state for each in running.queries.values()} == {"stopped"}
    known = read_status(plan) or {}
    assert known["state"] == "stopped"
    for query in known["queries"].values():
        assert query["rows"] > 0 and query["last"]["batch_ms"] > 0
        # The batch that ran came to its end; the next one may have begun meanwhile.
        assert query["checkpoint"]["begun"] - query["checkpoint"]["done"] <= 1


def test_a_stop_gives_up_a_function_that_does_not_end(session: SparkSession, tmp_path: Path) -> None:
    # Its default is to wait for ever.
    assert session.conf.get("spark.sql.streaming.stopTimeout") == DEFAULTS["spark.sql.streaming.stopTimeout"]
    session.conf.set("spark.sql.streaming.stopTimeout", "200ms")
    begun, may_end = threading.Event(), threading.Event()

    def wait(frame: DataFrame, batch_id: int) -> None:
        begun.set()
        may_end.wait(PATIENCE_S)

    pipeline = ticks(tmp_path)
    pipeline.sink("out", from_="ticks", python=wait)
    plan = pipeline.plan(str(tmp_path / "ticks.py"))
    running = Run(session, plan)
    running.start()
    try:
        assert begun.wait(PATIENCE_S)
        assert running.stop(0.1) == {"out": "given up"}
        assert (read_status(plan) or {})["state"] == "stopped"
    finally:
        may_end.set()
    assert running.queries["out"].query.awaitTermination(PATIENCE_S)


def test_a_query_that_fails_says_why_and_the_status_keeps_it(session: SparkSession, tmp_path: Path) -> None:
    pipeline = ticks(tmp_path)

    def refuse(frame: DataFrame, batch_id: int) -> None:
        raise ValueError(f"batch {batch_id} is not wanted")

    pipeline.sink("out", from_="ticks", python=refuse)
    plan = pipeline.plan(str(tmp_path / "ticks.py"))
    running = Run(session, plan)
    running.start()
    until(running, lambda: not running.running)
    running.stop()
    (cause,) = running.failed.values()
    assert cause.startswith("batch 0 is not wanted\nin ") and len(cause.splitlines()) == 2
    known = read_status(plan) or {}
    assert known["state"] == "failed" and known["queries"]["out"]["cause"] == cause


def test_a_step_that_spark_does_not_understand_is_named(session: SparkSession, tmp_path: Path) -> None:
    pipeline = ticks(tmp_path)
    pipeline.sql("bad", "SELECT nope FROM ticks")
    pipeline.sink("out", from_="bad", format="noop")
    plan = pipeline.plan(str(tmp_path / "ticks.py"))
    with pytest.raises(StepFailed) as failed:
        Run(session, plan).start()
    assert failed.value.place == "steps.bad"
    (problem,) = analyse(session, plan)[1]
    assert problem.place == "steps.bad" and "`nope` cannot be resolved" in problem.message
    assert cause_of(str(failed.value.error)) == problem.message and not problem.is_outage
    known = read_status(plan) or {}
    assert known["state"] == "failed" and known["cause"] == f"steps.bad: {problem.message}"
    assert known["queries"] == {"out": {"state": "not started", "rows": 0}}


def test_what_is_not_there_is_no_fault_of_the_file(session: SparkSession, tmp_path: Path) -> None:
    pipeline = ticks(tmp_path)
    states = []

    @pipeline.step
    def asked(ticks: DataFrame) -> DataFrame:
        states.append(json.loads((tmp_path / "kept" / "status.json").read_text())["state"])
        raise ConnectionRefusedError(111, "the registry is down")

    pipeline.sink("out", from_="asked", format="noop")
    plan = pipeline.plan(str(tmp_path / "ticks.py"))
    with pytest.raises(StepFailed):
        Run(session, plan).start()
    assert states == ["starting"]
    known = read_status(plan) or {}
    assert known["state"] == "failed" and "the registry is down" in known["cause"]
    (problem,) = analyse(session, plan)[1]
    assert problem.is_outage

    pipeline = ticks(tmp_path)
    pipeline.step(lambda ticks: None, name="nothing")
    pipeline.sink("out", from_="nothing", format="noop")
    with pytest.raises(StepFailed, match="must return a DataFrame"):
        Run(session, pipeline.plan("ticks.py")).start()


def test_values_that_cannot_be_decoded_fail_the_batch_or_go_to_the_dead_letters(
    session: SparkSession, ottla_address: str, topic_name: str, tmp_path: Path
) -> None:
    out, dead = f"{topic_name}-out", f"{topic_name}-dead"
    with ottla.Admin(ottla_address) as admin:
        for name in (topic_name, out, dead):
            admin.create_topic(name, 1)
    with ottla.Producer(ottla_address) as producer:
        for value in (b'{"id": 1}', b"no json", b'{"id": 2, "note": "x"}', b'{"id": "x"}'):
            producer.send(topic_name, value, key=b"k")

    def run(folder: str, **fields: str) -> Run:
        pipeline = Pipeline("letters", brokers=ottla_address, checkpoint=str(tmp_path / folder))
        pipeline.source("rows", topic=topic_name, value="json", schema="id BIGINT, note STRING", **fields)
        pipeline.sql("seen", "SELECT id, note, _key AS name, _offset AS at FROM rows")
        pipeline.sink("out", from_="seen", topic=out, key="name", value="json")
        running = Run(session, pipeline.plan(str(tmp_path / "letters.py")))
        running.start(once=True)
        until(running, lambda: not running.running)
        running.stop()
        return running

    failed = run("a").failed["out"]
    assert (
        f"the record at {topic_name}-0 offset 1 cannot be decoded: not JSON of the schema: no json" in failed
    )
    ran = run("b", dead_letters=dead)
    assert not ran.failed, ran.failed
    assert set(ran.queries) == {"out", "rows.dead-letters"}
    with ottla.Consumer(
        ottla_address, auto_offset_reset="earliest", isolation_level="read_committed"
    ) as consumer:
        consumer.assign([(out, 0), (dead, 0)])
        found: dict[str, list[Any]] = {out: [], dead: []}
        deadline_s = time.monotonic() + PATIENCE_S
        while sum(map(len, found.values())) < 4 and time.monotonic() < deadline_s:
            for place, batch in consumer.poll(100).items():
                found[place.topic] += batch
    assert [json.loads(each.value) for each in found[out]] == [
        {"id": 1, "note": None, "name": "k", "at": 0},
        {"id": 2, "note": "x", "name": "k", "at": 2},
    ]
    assert [each.value for each in found[dead]] == [b"no json", b'{"id": "x"}']
    headers = dict(found[dead][0].headers)
    assert headers["error.offset"] == b"1" and b"not JSON of the schema" in headers["error.reason"]


def test_a_broker_that_is_not_there_is_an_outage(tmp_path: Path) -> None:
    settings = {"request.timeout.ms": 300}
    pipeline = Pipeline("p", brokers="127.0.0.1:9", checkpoint=str(tmp_path), kafka=settings)
    pipeline.source("rows", topic="rows")
    pipeline.sink("out", from_="rows", format="noop")
    (problem,) = check_topics(pipeline.plan("p.py"))
    assert problem.place == "sources.rows.topic" and problem.is_outage
    with pytest.raises(StepFailed) as failed:
        Run(cast("SparkSession", None), pipeline.plan("p.py")).start()
    assert not is_file_fault(failed.value.error)
    known = read_status(pipeline.plan("p.py")) or {}
    assert known["state"] == "failed" and known["cause"] == f"sources.rows.topic: {problem.message}"


def test_topics_that_are_not_there_are_found(ottla_address: str, topic_name: str, tmp_path: Path) -> None:
    with ottla.Admin(ottla_address) as admin:
        admin.create_topic(topic_name, 1)
    pipeline = Pipeline("p", brokers=ottla_address, checkpoint=str(tmp_path), kafka={"linger.ms": 5})
    pipeline.source("here", topic=topic_name, kafka={"fetch.max.bytes": 1000})
    pipeline.source("gone", topic=f"{topic_name}, {topic_name}-gone")
    pipeline.source("wrong", topic=topic_name, kafka={"fetch.max.byts": 1000})
    pipeline.sink("out", from_="here", topic=f"{topic_name}-out", kafka={"compression.type": "zstd"})
    pipeline.sink("ill", from_="here", topic=topic_name, kafka={"compression.type": "zip"})
    places = {each.place: each.message for each in check_topics(pipeline.plan("p.py"))}
    assert set(places) == {"sources.gone.topic", "sinks.out.topic", "sources.wrong.kafka", "sinks.ill.kafka"}
    assert "did you mean fetch_max_bytes?" in places["sources.wrong.kafka"]
    assert (
        f"there is no topic {topic_name}-gone at {ottla_address}: run ottla topic create"
        in places["sources.gone.topic"]
    )
    # A run does not begin without them.
    with pytest.raises(
        StepFailed, match=rf"{topic_name}-gone at(.|\n)*sinks\.out\.topic: there is no topic"
    ) as failed:
        Run(cast("SparkSession", None), pipeline.plan("p.py")).start()
    assert is_file_fault(failed.value.error)
