"""Creates Spark sessions for pipelines, tests and the demo: local by default, on loopback, quiet."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ottla.spark.java import find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Settings of every session. The caller's values override them.
DEFAULTS = {
    # Otherwise a Python source reads rows that a filter would exclude.
    "spark.sql.python.filterPushdown.enabled": "true",
    # Spark waits this long for a stopped query. A Python function that ignores the interrupt would hang it.
    "spark.sql.streaming.stopTimeout": "10s",
}
#: Additional settings when Spark runs on this machine.
LOCAL = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # One task per core. Spark's default of 200 suits a cluster.
    "spark.sql.shuffle.partitions": str(os.cpu_count() or 1),
}


def spark_session(
    name: str,
    *,
    master: str | None = None,
    remote: str | None = None,
    config: Mapping[str, str] | None = None,
    log_level: str = "ERROR",
) -> SparkSession:
    """Return the active session, or create one: for `master` or `remote` (`sc://HOST`), else local."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(name)
    settings = {**DEFAULTS, **(config or {})}
    if remote is None or remote.startswith("local"):
        home = find_java()
        if home is not None:
            os.environ["JAVA_HOME"] = home
    if remote is not None:
        builder = builder.remote(remote)
    else:
        # Workers run this Python, not the first one on the PATH.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        # If spark-submit started this process, it has already set the master.
        if master is not None or "PYSPARK_GATEWAY_PORT" not in os.environ:
            builder = builder.master(master or "local[*]")
            if master is None or master.startswith("local"):
                settings = {**LOCAL, **settings}
    for key, value in settings.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    if remote is None:
        session.sparkContext.setLogLevel(log_level)
    return session
