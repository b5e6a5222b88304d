"""Spark for a command: its session, whose Java and workers talk to a file and not to the terminal, and which leaves Ctrl-C to the command."""

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
    """Where Spark's own words go: into the checkpoint, if that is on this machine."""
    status_path = plan.status_path
    return (
        Path(status_path).with_name("spark.log")
        if status_path
        else Path(tempfile.gettempdir(), f"ottla-{plan.name}.log")
    )


@contextlib.contextmanager
def spark_for(plan: Plan, master: str | None, remote: str | None) -> Iterator[SparkSession]:
    """A session whose Java talks to a file; Ctrl-C stays ours."""
    try:
        import pyspark  # noqa: F401  # to know that it is there

        from ottla.spark import register
        from ottla.spark.java import NoJava
        from ottla.spark.session import spark_session
    except ModuleNotFoundError as error:
        raise CommandError(f"{error.name} is not installed: pip install 'ottla[spark]'") from None
    # PySpark logs as JSON what it also raises.
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

        raise CommandError(f"Spark does not start: {cause_of(str(error))}\nMore is in {log}") from None
    finally:
        # PySpark takes Ctrl-C for itself.
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
    """What is started inside has this file as its standard error, and so have its own children."""
    sys.stderr.flush()
    kept = os.dup(2)
    with path.open("ab") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
