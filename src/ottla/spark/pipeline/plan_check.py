"""Checks of a plan that need brokers or Spark: do its topics exist, and does Spark accept its steps?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ottla.client.consumer.settings import ConsumerConfig
from ottla.client.errors import KafkaError, SettingError, TopicNotFound
from ottla.client.producer.settings import ProducerConfig
from ottla.client.properties import settings_from
from ottla.client.settings import ClientConfig, bootstrap_addresses
from ottla.spark.clients import settings_for
from ottla.spark.pipeline.causes import cause_of, is_file_fault
from ottla.spark.pipeline.model import Plan, Problem, Sink, Source
from ottla.spark.pipeline.queries import StepFailed, build_tables, planned_queries, prepare

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


#: Brokers and client settings: the places in the file that name topics there.
_Wanted = dict[tuple[str, tuple[tuple[str, str], ...]], list[tuple[str, str]]]


def check_topics(plan: Plan) -> list[Problem]:
    """Report missing topics and invalid client settings. Topics of a pattern may be created later."""
    problems: list[Problem] = []
    wanted: _Wanted = {}

    def note(thing: Source | Sink, kind: type[ClientConfig], topics: Mapping[str, str | None]) -> None:
        place = f"{'sources' if isinstance(thing, Source) else 'sinks'}.{thing.name}"
        try:
            bootstrap_addresses(thing.brokers or "")
            settings_from(thing.kafka, kind)
        except SettingError as error:
            problems.append(Problem(plan.file, None, f"{place}.kafka", str(error)))
            return
        client = tuple(sorted(settings_for(thing.kafka, ClientConfig).items()))
        at = wanted.setdefault((thing.brokers or "", client), [])
        for field, names in topics.items():
            at += [(f"{place}.{field}", each.strip()) for each in (names or "").split(",") if each.strip()]

    for source in plan.sources.values():
        if source.is_topic:
            note(source, ConsumerConfig, {"topic": source.topic, "dead_letters": source.dead_letters})
    for sink in plan.sinks.values():
        if sink.topic is not None or sink.dead_letters is not None:
            note(sink, ProducerConfig, {"topic": sink.topic, "dead_letters": sink.dead_letters})
    for (brokers, settings), places in wanted.items():
        if places:
            problems += _missing(plan, brokers, dict(settings), places)
    return problems


def require_topics(plan: Plan) -> None:
    """Raise `StepFailed` with all problems of `check_topics`."""
    problems = check_topics(plan)
    if problems:
        first, *others = problems
        said = "\n".join([first.message, *(f"{each.place}: {each.message}" for each in others)])
        is_outage = all(each.is_outage for each in problems)
        raise StepFailed(first.place, ConnectionError(said) if is_outage else ValueError(said))


def _missing(
    plan: Plan, brokers: str, settings: dict[str, str], places: list[tuple[str, str]]
) -> list[Problem]:
    from ottla.client.admin.sync import Admin

    problems = []
    try:
        with Admin(brokers, **settings_from(settings, ClientConfig)) as admin:
            for place, topic in places:
                try:
                    admin.describe_topics([topic])
                except TopicNotFound:
                    create = f"ottla topic create {topic} --bootstrap {brokers}"
                    said = f"there is no topic {topic} at {brokers}: run {create}"
                    problems.append(Problem(plan.file, None, place, said))
    except KafkaError as error:
        problems.append(Problem(plan.file, None, places[0][0], str(error), is_outage=True))
    return problems


def analyse(spark: SparkSession, plan: Plan) -> tuple[dict[str, DataFrame], list[Problem]]:
    """Return the DataFrames, up to the first source or step that fails, and all problems of the sinks."""
    problems: list[Problem] = []
    frames: dict[str, DataFrame] = {}
    try:
        frames = build_tables(spark, plan)
        for part in planned_queries(spark, plan, frames):
            try:
                prepare(plan, part, rehearses=True)
            except StepFailed as failed:
                problems.append(_problem(plan, failed))
    except StepFailed as failed:
        problems.append(_problem(plan, failed))
    return frames, problems


def _problem(plan: Plan, failed: StepFailed) -> Problem:
    said, is_outage = cause_of(str(failed.error)), not is_file_fault(failed.error)
    return Problem(plan.file, None, failed.place, said, is_outage=is_outage)
