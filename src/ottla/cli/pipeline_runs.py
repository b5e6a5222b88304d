"""The pipelines of one `ottla pipeline run`: start one after the other, show progress, stop together,
summarize.

With one pipeline, queries are shown by name; with several, as pipeline/query.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from ottla.cli.outcome import FAILED, USAGE, CommandError, Stop, print_json, show, usage_error
from ottla.cli.progress import ProgressLine
from ottla.spark.pipeline.causes import cause_of, is_file_fault
from ottla.spark.pipeline.loader import LoadedPipeline
from ottla.spark.pipeline.model import Plan
from ottla.spark.pipeline.progress import brief, one_line
from ottla.spark.pipeline.runner import Run, StepFailed, WatchedQuery, ship, stop_together
from ottla.spark.pipeline.shared_spark import session_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

POLL_S = 0.1


def started(
    spark: SparkSession,
    loaded: Sequence[LoadedPipeline],
    py_files: Iterable[str],
    *,
    once: bool,
    remote: bool,
) -> list[Run]:
    """Start a run per pipeline, with a session each if there are several. If one fails, stop the others."""
    runs: list[Run] = []
    try:
        for each in loaded:
            session = spark if len(loaded) == 1 else _session(spark, each)
            ship(session, each, py_files, remote=remote)
            run = Run(session, each.plan)
            run.start(once=once)
            runs.append(run)
    except StepFailed as failed:
        stop_together(runs, 0)
        raise _not_started(each.plan, failed) from None
    except BaseException:
        stop_together(runs, 0)
        raise
    return runs


def _not_started(plan: Plan, failed: StepFailed) -> CommandError:
    """The error of a start: a usage error if the file is wrong, a failure if a service is down."""
    said = f"{plan.file}: {failed.place}: {cause_of(str(failed.error))}"
    return CommandError(said, USAGE if is_file_fault(failed.error) else FAILED)


def _session(spark: SparkSession, loaded: LoadedPipeline) -> SparkSession:
    try:
        return session_for(spark, loaded.plan)
    except Exception as error:
        # A setting that Spark rejects, or a Spark Connect client without support for a second session.
        raise usage_error(f"{loaded.plan.file}: {cause_of(str(error))}") from None


class Runs:
    """Started runs."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self._runs = runs

    def _name(self, run: Run, query: str) -> str:
        return query if len(self._runs) == 1 else f"{run.plan.name}/{query}"

    @property
    def queries(self) -> dict[str, WatchedQuery]:
        return {self._name(run, name): watched for run in self._runs for name, watched in run.queries.items()}

    def watch(self, stop: Stop, line: ProgressLine) -> None:
        """Wait until all queries have ended, one has failed, or a signal asks to stop."""
        words = one_line if len(self._runs) == 1 else brief
        while self._look() and not stop.asked:
            if line.due():
                line.show(words({name: watched.progress for name, watched in self.queries.items()}))
            time.sleep(POLL_S)
        line.clear()
        if stop.asked:
            line.note("stopping after the running batch; press Ctrl-C again to stop at once")
        for run, ends in zip(self._runs, stop_together(self._runs), strict=True):
            for query, how in ends.items():
                torn = " in the middle of a batch; the next start repeats it" if how == "given up" else ""
                line.note(f"{self._name(run, query)}: {how}{torn}")

    def _look(self) -> bool:
        """Whether to continue: a query runs, and none has failed."""
        good = [run.look() for run in self._runs]
        return all(good) and any(run.running for run in self._runs)

    def print_summary(self, *, as_json: bool) -> None:
        """The summary."""
        if as_json:
            summaries = [
                {"pipeline": run.plan.name, "queries": {name: _ended(each) for name, each in run.queries.items()}}
                for run in self._runs
            ]  # fmt: skip
            print_json(summaries[0] if len(summaries) == 1 else {"pipelines": summaries})
            return
        for name, watched in self.queries.items():
            ended = _ended(watched)
            show(
                f"{name}: {ended['state']} after {ended['rows']:,} rows"
                + (f", batch {ended['batch']}" if ended["batch"] >= 0 else "")
            )

    def failures(self) -> str:
        """The failed queries with their causes; empty if none failed."""
        failed = {run: run.failed for run in self._runs if run.failed}
        if len(self._runs) == 1:
            said = "\n".join(
                f"{name} failed: {cause}" for each in failed.values() for name, cause in each.items()
            )
            return f"{self._runs[0].plan.name}: {said}" if said else ""
        return "\n".join(
            f"{self._name(run, name)} failed: {cause}"
            for run, each in failed.items()
            for name, cause in each.items()
        )


def _ended(watched: WatchedQuery) -> dict[str, Any]:
    return {
        "state": watched.state,
        "rows": watched.rows,
        "batch": watched.progress.batch if watched.progress else -1,
        "cause": watched.cause,
    }
