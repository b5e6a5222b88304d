"""The Spark session of a command. Java and the workers log to a file, and the command keeps Ctrl-C for
itself.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ottla.cli.outcome import CommandError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ottla.spark.pipeline.model import Plan


def log_path(plan: Plan) -> Path:
    """Spark's log file: in the checkpoint, if that is on this machine."""
    status_path = plan.status_path
    return (
        Path(status_path).with_name("spark.log")
        if status_path
        else Path(tempfile.gettempdir(), f"ottla-{plan.name}.log")
    )


@contextlib.contextmanager
def spark_for(plan: Plan, master: str | None, remote: str | None) -> Iterator[SparkSession]:
    """A session whose Java logs to a file; the command keeps its signal handlers."""
    try:
        import pyspark  # noqa: F401  # check that it is installed

        from ottla.spark import register
        from ottla.spark.java import NoJava
        from ottla.spark.session import spark_session
    except ModuleNotFoundError as error:
        raise CommandError(f"{error.name} is not installed: pip install 'ottla[spark]'") from None
    # PySpark logs errors as JSON in addition to raising them.
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL + 1)
    log = log_path(plan)
    log.parent.mkdir(parents=True, exist_ok=True)
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with _stderr_into(log):
            spark = spark_session(plan.name, master=master, remote=remote, config=plan.spark)
    except NoJava as error:
        raise CommandError(str(error)) from None
    except Exception as error:
        from ottla.spark.pipeline.causes import cause_of

        raise CommandError(f"Spark did not start: {cause_of(str(error))}\nSee {log} for details") from None
    finally:
        # PySpark installs its own handler for Ctrl-C.
        for number, handler in before.items():
            signal.signal(number, handler)
    try:
        register(spark)
        yield spark
    finally:
        with contextlib.suppress(Exception):
            spark.stop()


@contextlib.contextmanager
def _stderr_into(path: Path) -> Iterator[None]:
    """Processes started inside write their standard error to this file, and so do their children."""
    sys.stderr.flush()
    kept = os.dup(2)
    with path.open("ab") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
