"""Several pipelines in one Spark application: conflicts, static settings, and a session for each.

A session has its own settings and views, so tables with the same name do not conflict. Spark's static
settings apply to all sessions, so the pipelines must agree on them. Names and checkpoints must differ,
because transactional ids and paths use them.
"""

from __future__ import annotations

import itertools
import os.path
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from ottla.spark.pipeline.model import Plan
from ottla.spark.session import DEFAULTS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: The static settings below spark.sql, as Spark lists them.
STATIC_SQL: Final = frozenset(
    f"spark.sql.{name}"
    for name in (
        "artifact.copyFromLocalToFs.allowDestLocal",
        "avro.schemaUrlAllowedSchemes",
        "broadcastExchange.maxThreadThreshold",
        "cache.serializer",
        "catalog.spark_catalog.defaultDatabase",
        "catalogImplementation",
        "codegen.cache.maxEntries",
        "codegen.comments",
        "debug",
        "defaultUrlStreamHandlerFactory.enabled",
        "event.truncate.length",
        "extensions",
        "extensions.test.loadFromCp",
        "filesourceTableRelationCacheSize",
        "globalTempDatabase",
        "hive.thriftServer.http.sniHostCheckEnabled",
        "hive.thriftServer.singleSession",
        "kafka.disallowedOptions",
        "legacy.hive.thriftServer.allowSettingSystemProperties",
        "legacy.sessionInitWithConfigDefaults",
        "metadataCacheTTLSeconds",
        "queryExecutionListeners",
        "reflect.allowList",
        "restrictedMode.enabled",
        "resultQueryStage.maxThreadThreshold",
        "shuffleExchange.maxThreadThreshold",
        "sources.disabledJdbcConnProviderList",
        "sources.schemaStringLengthThreshold",
        "streaming.streamingQueryListeners",
        "streaming.ui.enabled",
        "streaming.ui.enabledCustomMetricList",
        "streaming.ui.retainedProgressUpdates",
        "streaming.ui.retainedQueries",
        "subquery.maxThreadThreshold",
        "ui.retainedExecutions",
        "warehouse.dir",
    )
)
#: Settings of the Hive metastore.
STATIC_HIVE: Final = ("spark.sql.hive.metastore.", "spark.sql.hive.version")


def is_static(setting: str) -> bool:
    """Whether the setting applies to the whole application and must be set at its start."""
    return not setting.startswith("spark.sql.") or setting.startswith(STATIC_HIVE) or setting in STATIC_SQL


def clashes(plans: Sequence[Plan]) -> list[str]:
    """The reasons why these pipelines cannot run in one application."""
    found = []
    for one, other in itertools.combinations(plans, 2):
        both = f"{one.file} and {other.file}"
        if one.name == other.name:
            found.append(f"{both} are both named {one.name}: rename one")
        if _place(one.checkpoint_path) == _place(other.checkpoint_path):
            found.append(f"{both} have the same checkpoint, {one.checkpoint_path}: change one")
        elif one.status_path is not None and one.status_path == other.status_path:
            found.append(f"{both} have the same status file, {one.status_path}: change one")
        found += [
            f"{one.file} sets {name}={one.spark[name]}, {other.file} sets {other.spark[name]}: it applies "
            "to the whole "
            "application, use one value"
            for name in sorted(one.spark.keys() & other.spark.keys())
            if is_static(name) and one.spark[name] != other.spark[name]
        ]
    return found


def _place(path: str) -> str:
    return os.path.normpath(path.removeprefix("file:"))


def at_start(plans: Sequence[Plan]) -> dict[str, str]:
    """The static settings of all pipelines."""
    return {name: value for plan in plans for name, value in plan.spark.items() if is_static(name)}


def session_for(spark: SparkSession, plan: Plan) -> SparkSession:
    """Create a session for this pipeline, with its settings."""
    from ottla.spark import register

    session = spark.newSession()
    for name, value in {**DEFAULTS, **plan.spark}.items():
        if not is_static(name):
            session.conf.set(name, value)
    register(session)
    return session
