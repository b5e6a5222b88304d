"""Runs a pipeline: starts, watches and stops its queries, and writes the status file. One object per run.

A stop waits for the running micro-batch up to a time limit, then aborts it. Exactly-once sinks need no clean
stop; the next start repeats the micro-batch. The caller calls `look` a few times per second.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ottla.spark.pipeline.causes import cause_of
from ottla.spark.pipeline.loader import LoadedPipeline
from ottla.spark.pipeline.local_modules import as_file
from ottla.spark.pipeline.model import Plan
from ottla.spark.pipeline.plan_check import require_topics
from ottla.spark.pipeline.progress import Progress, read_progress
from ottla.spark.pipeline.queries import StepFailed, build_tables, start_queries
from ottla.spark.pipeline.status import RUNNING, STARTING, now, this_run, write_status

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_STATUS_EVERY_S: Final = 1.0
_POLL_S: Final = 0.05


@dataclass(slots=True)
class WatchedQuery:
    """A query, and its last reported state."""

    query: StreamingQuery
    progress: Progress | None = None
    rows: int = 0
    state: str = RUNNING
    cause: str | None = None
    #: The last micro-batch whose rows are in the total.
    counted: int = -1


class Run:
    """One run of a pipeline: call `start`, then `look` until nothing runs, then `stop`."""

    def __init__(self, spark: SparkSession, plan: Plan) -> None:
        self._spark = spark
        self.plan = plan
        self._about = this_run(plan)
        self._written_s = 0.0
        self.queries: dict[str, WatchedQuery] = {}

    def start(self, *, once: bool = False) -> None:
        """Start all queries. Raises `StepFailed`, and writes it to the status file."""
        self._write_status(STARTING)
        try:
            require_topics(self.plan)
            frames = build_tables(self._spark, self.plan)
            started = start_queries(self._spark, self.plan, frames, once=once)
        except StepFailed as failed:
            self._write_status("failed", f"{failed.place}: {cause_of(str(failed.error))}")
            raise
        except BaseException as error:
            self._write_status(
                "stopped" if isinstance(error, KeyboardInterrupt) else "failed", cause_of(repr(error))
            )
            raise
        self.queries = {name: WatchedQuery(query) for name, query in started.items()}
        self._write_status(RUNNING)

    def look(self) -> bool:
        """Update the state of every query. Returns whether none has failed."""
        for watched in self.queries.values():
            if watched.state != RUNNING:
                continue
            active = watched.query.isActive
            self._update(watched)
            if not active:
                error = watched.query.exception()
                watched.state = "done" if error is None else "failed"
                watched.cause = None if error is None else cause_of(str(error))
        if time.monotonic() - self._written_s >= _STATUS_EVERY_S:
            self._write_status(RUNNING)
        return not self.failed

    @property
    def running(self) -> bool:
        return any(watched.state == RUNNING for watched in self.queries.values())

    @property
    def failed(self) -> dict[str, str]:
        """The causes, by the name of the query."""
        return {name: each.cause or "" for name, each in self.queries.items() if each.state == "failed"}

    @property
    def progress(self) -> dict[str, Progress | None]:
        return {name: watched.progress for name, watched in self.queries.items()}

    def stop(self, within_s: float | None = None) -> dict[str, str]:
        """Stop all queries.

        Returns how each ended: "stopped" after its micro-batch, or "given up" during one.
        """
        return stop_together([self], within_s)[0]

    def stopping(self, within_s: float | None = None) -> Iterator[dict[str, str]]:
        """The same as a generator: yields how queries have ended so far, until all have."""
        deadline_s = time.monotonic() + (self.plan.stop_within_s if within_s is None else within_s)
        waiting = {name: watched for name, watched in self.queries.items() if watched.state == RUNNING}
        begun = {name: _batch(watched.query) for name, watched in waiting.items()}
        ends: dict[str, str] = {}
        while waiting:
            for name, watched in list(waiting.items()):
                late = time.monotonic() >= deadline_s
                idle = not watched.query.isActive or not watched.query.status["isTriggerActive"]
                if not (idle or late or _batch(watched.query) != begun[name]):
                    continue
                ends[name] = "given up" if late and not idle else "stopped"
                if not self._end(watched):
                    ends[name] = "given up"
                del waiting[name]
            if waiting:
                yield ends
        self.finish()
        yield ends

    def _end(self, watched: WatchedQuery) -> bool:
        """Stop a query.

        Returns whether it has ended: code that ignores the interrupt ends only with the process.
        """
        if watched.query.isActive:
            with contextlib.suppress(Exception):
                # The query may have failed by itself, which is reported below, or Spark's stopTimeout has
                # passed.
                watched.query.stop()
        has_ended = not watched.query.isActive
        self._update(watched)
        error = watched.query.exception()
        watched.state = "stopped" if error is None else "failed"
        watched.cause = None if error is None else cause_of(str(error))
        return has_ended

    def finish(self) -> None:
        """Write the final status."""
        states = {watched.state for watched in self.queries.values()}
        self._write_status("failed" if "failed" in states else "stopped" if "stopped" in states else "done")

    def _update(self, watched: WatchedQuery) -> None:
        last = watched.query.lastProgress
        if last is None:
            return
        latest = read_progress(json.loads(last.json))
        if latest == watched.progress:
            return
        seen = -1 if watched.progress is None else watched.progress.batch
        # recentProgress is expensive. It is needed only if micro-batches were faster than the calls of
        # `look`.
        missed = _recent(watched.query) if latest.batch > seen + 1 else []
        for each in [*missed, latest]:
            if each.batch > watched.counted and each.rows:
                watched.rows += each.rows
                watched.counted = each.batch
        watched.progress = latest

    def _write_status(self, state: str, cause: str | None = None) -> None:
        self._written_s = time.monotonic()
        path = self.plan.status_path
        if path is None:
            return
        queries: dict[str, dict[str, Any]] = {
            name: {"state": STARTING if state == STARTING else "not started", "rows": 0}
            for name in self.plan.sinks
        }
        queries |= {
            name: {
                "state": watched.state,
                "rows": watched.rows,
                **({"cause": watched.cause} if watched.cause else {}),
                **({"last": watched.progress.as_json()} if watched.progress else {}),
            }
            for name, watched in self.queries.items()
        }
        why = {"cause": cause} if cause else {}
        about = {**self._about, "state": state, **why, "updated": now(), "queries": queries}
        write_status(Path(path), about)


def stop_together(runs: Sequence[Run], within_s: float | None = None) -> list[dict[str, str]]:
    """Stop all runs in parallel. Returns how the queries of each ended."""
    ends: list[dict[str, str]] = [{} for _ in runs]
    looks = {number: run.stopping(within_s) for number, run in enumerate(runs)}
    while looks:
        for number, look in list(looks.items()):
            try:
                ends[number] = next(look)
            except StopIteration:
                del looks[number]
        if looks:
            time.sleep(_POLL_S)
    return ends


def _recent(query: StreamingQuery) -> list[Progress]:
    return [read_progress(json.loads(each.json)) for each in query.recentProgress]


def _batch(query: StreamingQuery) -> int:
    last = query.lastProgress
    return -1 if last is None else int(last.batchId)


def ship(spark: SparkSession, loaded: LoadedPipeline, py_files: Iterable[str], *, remote: bool) -> None:
    """Send the pipeline's Python code to the workers: functions by value, and local modules as files."""
    from pyspark import cloudpickle

    for module in (*loaded.own, *loaded.beside):
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    for path in [*(str(as_file(place)) for place in loaded.modules), *py_files]:
        if remote:
            spark.addArtifacts(path, pyfile=True)
        else:
            spark.sparkContext.addPyFile(path)


__all__ = ["Run", "StepFailed", "WatchedQuery", "ship", "stop_together"]
