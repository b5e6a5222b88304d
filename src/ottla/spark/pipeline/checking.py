"""What only the world can tell of a plan: whether its topics are there, and whether Spark understands its steps."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ottla.client.errors import KafkaError, TopicNotFound
from ottla.client.properties import settings_from
from ottla.client.settings import Client
from ottla.spark.pipeline.building import StepFailed, build_tables
from ottla.spark.pipeline.causes import cause_of
from ottla.spark.pipeline.model import Plan, Problem

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def check_topics(plan: Plan) -> list[Problem]:
    """Topics of sources and sinks that are not there. Those of a pattern may come later."""
    wanted: dict[tuple[str, tuple[tuple[str, str], ...]], list[tuple[str, str]]] = {}
    for name, source in plan.sources.items():
        if source.is_topic and source.topic is not None:
            topics = [each.strip() for each in source.topic.split(",") if each.strip()]
            _note(wanted, source.brokers, source.kafka.items(), f"sources.{name}.topic", topics)
            if source.dead_letters is not None:
                _note(
                    wanted,
                    source.brokers,
                    source.kafka.items(),
                    f"sources.{name}.dead_letters",
                    [source.dead_letters],
                )
    for name, sink in plan.sinks.items():
        if sink.topic is not None:
            _note(wanted, sink.brokers, sink.kafka.items(), f"sinks.{name}.topic", [sink.topic])
    problems = []
    for (brokers, settings), places in wanted.items():
        problems += _missing(plan, brokers, dict(settings), places)
    return problems


def _note(
    wanted: dict[tuple[str, tuple[tuple[str, str], ...]], list[tuple[str, str]]],
    brokers: str | None,
    settings: Iterable[tuple[str, str]],
    place: str,
    topics: list[str],
) -> None:
    at = wanted.setdefault((brokers or "", tuple(sorted(settings))), [])
    at += [(place, topic) for topic in topics]


def _missing(
    plan: Plan, brokers: str, settings: dict[str, str], places: list[tuple[str, str]]
) -> list[Problem]:
    from ottla.client.admin.blocking import Admin

    problems = []
    try:
        with Admin(brokers, **settings_from(settings, Client)) as admin:
            for place, topic in places:
                try:
                    admin.describe_topics([topic])
                except TopicNotFound:
                    said = f"there is no topic {topic} at {brokers}: ottla topic create {topic} --bootstrap {brokers}"
                    problems.append(Problem(plan.file, None, place, said))
    except KafkaError as error:
        problems.append(Problem(plan.file, None, places[0][0], str(error)))
    return problems


def analyse(spark: SparkSession, plan: Plan) -> tuple[dict[str, DataFrame], list[Problem]]:
    """What each source and step is to Spark, or the first one that is nothing to it."""
    try:
        return build_tables(spark, plan), []
    except StepFailed as failed:
        return {}, [Problem(plan.file, None, failed.place, cause_of(str(failed.error)))]
