"""A Spark session as pipelines, tests and the demo want it: local unless told otherwise, on loopback, quiet, quick to start."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ottla.spark.java import find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: What a session of ours has, wherever it runs; a caller's own values go before these.
DEFAULTS = {
    # Without it a source in Python reads what a filter would leave out.
    "spark.sql.python.filterPushdown.enabled": "true",
    # How long a query that is stopped is waited for: a Python function in the middle of a batch hears of no interrupt, and Spark would wait for ever.
    "spark.sql.streaming.stopTimeout": "10s",
}
#: What it has besides when Spark runs in this process' own machine.
LOCAL = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # One task a core; the 200 of a cluster would only wait for each other.
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
    """A new session, or the one there is. `master` as for spark-submit, `remote` as `sc://HOST`; with neither it is local."""
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
        # Workers run the Python that this is, not the first one on the PATH.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        # spark-submit, where it has started this process, has said already where Spark runs.
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
