"""What only the world can tell of a plan: whether its topics are there, and whether Spark understands its steps."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ottla.client.errors import KafkaError, TopicNotFound
from ottla.client.properties import settings_from
from ottla.client.settings import Client
from ottla.spark.pipeline.building import StepFailed, build_tables, parts, prepare
from ottla.spark.pipeline.causes import cause_of
from ottla.spark.pipeline.model import Plan, Problem

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def check_topics(plan: Plan) -> list[Problem]:
    """Topics of sources and sinks that are not there, or brokers that do not say. Those of a pattern may come later."""
    problems = []
    for (brokers, settings), places in _topics(plan).items():
        try:
            problems += _missing(plan, brokers, dict(settings), places)
        except KafkaError as error:
            problems.append(Problem(plan.file, None, places[0][0], str(error)))
    return problems


def require_topics(plan: Plan) -> None:
    """Raises `StepFailed` with all that are missing, and `KafkaError` where brokers do not answer."""
    problems: list[Problem] = []
    for (brokers, settings), places in _topics(plan).items():
        problems += _missing(plan, brokers, dict(settings), places)
    if problems:
        first, *others = problems
        said = [first.message, *(f"{each.place}: {each.message}" for each in others)]
        raise StepFailed(first.place, ValueError("\n".join(said)))


_Wanted = dict[tuple[str, tuple[tuple[str, str], ...]], list[tuple[str, str]]]


def _topics(plan: Plan) -> _Wanted:
    """Places and topics, by brokers and settings."""
    wanted: _Wanted = {}
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
        if sink.dead_letters is not None:
            _note(wanted, sink.brokers, sink.kafka.items(), f"sinks.{name}.dead_letters", [sink.dead_letters])
    return wanted


def _note(
    wanted: _Wanted,
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
    with Admin(brokers, **settings_from(settings, Client)) as admin:
        for place, topic in places:
            try:
                admin.describe_topics([topic])
            except TopicNotFound:
                said = f"there is no topic {topic} at {brokers}: ottla topic create {topic} --bootstrap {brokers}"
                problems.append(Problem(plan.file, None, place, said))
    return problems


def analyse(spark: SparkSession, plan: Plan) -> tuple[dict[str, DataFrame], list[Problem]]:
    """What each source and step is to Spark, or the first one that is nothing to it; and all that is wrong with the sinks."""
    problems: list[Problem] = []
    frames: dict[str, DataFrame] = {}
    try:
        frames = build_tables(spark, plan)
        for part in parts(spark, plan, frames):
            try:
                prepare(plan, part, rehearses=True)
            except StepFailed as failed:
                problems.append(_problem(plan, failed))
    except StepFailed as failed:
        problems.append(_problem(plan, failed))
    return frames, problems


def _problem(plan: Plan, failed: StepFailed) -> Problem:
    return Problem(plan.file, None, failed.place, cause_of(str(failed.error)))
