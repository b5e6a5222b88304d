"""`ottla pipeline`: run, validate, explain and show the status of Spark pipelines, each one YAML or Python
file.

Only `run`, `validate --deep` and `explain` with `--schemas` or `--plan` start Spark. Spark and its workers
log to `spark.log` in the checkpoint, not to the terminal.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ottla.cli.options import AsJson
from ottla.cli.outcome import (
    FAILED,
    NOT_FOUND,
    USAGE,
    CommandError,
    Stop,
    pairs,
    print_json,
    print_table,
    say,
    show,
    show_text,
    usage_error,
)
from ottla.cli.progress import ProgressLine
from ottla.cli.with_spark import log_path, spark_for

if TYPE_CHECKING:
    from ottla.spark.pipeline.loader import LoadedPipeline
    from ottla.spark.pipeline.model import Plan, Problem

app = typer.Typer(
    help="""Run data pipelines on Spark: one file with sources, steps and sinks.

\b
Example:
  ottla pipeline validate orders.yaml
  ottla pipeline run orders.yaml
  ottla pipeline status orders.yaml
""",
    no_args_is_help=True,
    rich_markup_mode=None,
)

File = Annotated[Path, typer.Argument(help="The pipeline file: .yaml, .yml or .py.")]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="The value of ${NAME} in the file; overrides the environment. Repeat for several.",
    ),
]
Master = Annotated[
    str | None,
    typer.Option(
        "--master", help="As for spark-submit: spark://HOST:7077, yarn, …; default: Spark on this machine."
    ),
]
Remote = Annotated[
    str | None, typer.Option("--remote", help="A Spark Connect server, such as sc://HOST:15002.")
]


def register(parent: typer.Typer) -> None:
    parent.add_typer(app, name="pipeline")


@app.command()
def run(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...",
            help="Pipeline files: .yaml, .yml or .py. Several run in one Spark.",
        ),
    ],
    master: Master = None,
    remote: Remote = None,
    once: Annotated[bool, typer.Option("--once", help="Process all available records, then stop.")] = False,
    settings: Set = None,
    py_files: Annotated[
        list[str] | None,
        typer.Option(
            "--py-files",
            metavar="FILE",
            help="A .py, .zip or .egg for the workers; separate several by commas, or repeat.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run one or more pipelines until Ctrl-C, or with --once until all available records are processed.

    A stop waits for the running batch; the next start continues after it. If a query fails, all queries stop.
    Exits with 1 if a query failed or a service that a file names is down, with 2 if a file is invalid.

    \b
    Example:
      ottla pipeline run orders.yaml
      ottla pipeline run orders.yaml --once --set BROKERS=127.0.0.1:9092
      ottla pipeline run orders.yaml sessions.yaml wordcount.py
      ottla pipeline run orders.py --master spark://127.0.0.1:7077
    """
    from ottla.cli.pipeline_runs import Runs, started

    if master is not None and remote is not None:
        raise usage_error("give --master or --remote, not both")
    py_files = _py_files(py_files or (), remote)
    stop = Stop()
    loaded = _load_together(files, settings)
    plans = [each.plan for each in loaded]
    whole = _whole(plans)
    called = ", ".join(plan.name for plan in plans)
    say(f"{called}: starting Spark ({remote or master or 'on this machine'})")
    with spark_for(whole, master, remote) as spark:
        runs = Runs(started(spark, loaded, py_files, once=once, remote=remote is not None))
        say(f"{called}: {', '.join(runs.queries)} running; Ctrl-C stops")
        runs.watch(stop, ProgressLine())
    runs.print_summary(as_json=as_json)
    if failures := runs.failures():
        raise CommandError(f"{failures}\nSee {log_path(plans[0])} for details", FAILED)


def _py_files(given: Iterable[str], remote: str | None) -> list[str]:
    """The files of --py-files, as spark-submit takes them. A missing file is reported before Spark starts."""
    found = [each.strip() for text in given for each in text.split(",") if each.strip()]
    for each in found:
        if "://" not in each and not Path(each).is_file():
            raise FileNotFoundError(2, "no such file", each)
    if found and remote is not None:
        say(
            "--py-files: Spark Connect may not send these files to the workers of a stream. Modules that "
            "the pipeline file "
            "imports at its top from its own folder are sent"
        )
    return found


def _whole(plans: Sequence[Plan]) -> Plan:
    """The plan that Spark starts with: the first pipeline, with the Spark start settings of all."""
    if len(plans) == 1:
        return plans[0]
    from ottla.spark.pipeline.shared_spark import at_start, clashes

    if found := clashes(plans):
        raise usage_error("\n".join(found))
    return dataclasses.replace(plans[0], spark=at_start(plans))


@app.command()
def validate(
    file: File,
    deep: Annotated[
        bool,
        typer.Option("--deep", help="Also check the topics on the brokers, and the steps with Spark."),
    ] = False,
    master: Master = None,
    remote: Remote = None,
    settings: Set = None,
    as_json: AsJson = False,
) -> None:
    """Check a pipeline file and report all problems at once.

    Without --deep neither Spark nor a broker is needed. Exits with 2 if the file has problems, with 1 if a
    broker or another service was unreachable.

    \b
    Example:
      ottla pipeline validate orders.yaml
      ottla pipeline validate orders.yaml --deep
    """
    from ottla.spark.pipeline.model import PipelineError

    problems: list[Problem] = []
    plan = None
    try:
        loaded = _load(file, settings, complain=False)
        plan = loaded.plan
        if deep:
            problems = _deep_problems(loaded, master, remote)
    except PipelineError as error:
        problems = error.problems
    if as_json:
        found = [
            {"file": each.file, "line": each.line, "place": each.place, "message": each.message}
            for each in problems
        ]
        print_json({"ok": not problems, "problems": found})
    elif plan is not None and not problems:
        counts = ((len(plan.sources), "source"), (len(plan.steps), "step"), (len(plan.sinks), "sink"))
        words = ", ".join(f"{count} {word}{'' if count == 1 else 's'}" for count, word in counts)
        show(f"{file}: {words}; no problems found")
    else:
        for each in problems:
            say(str(each))
    if problems:
        raise typer.Exit(_code(problems))


def _code(problems: Iterable[Problem]) -> int:
    """The exit code of a check with problems: FAILED if all of them may be outages."""
    return FAILED if all(each.is_outage for each in problems) else USAGE


def _deep_problems(loaded: LoadedPipeline, master: str | None, remote: str | None) -> list[Any]:
    from ottla.spark.pipeline.plan_check import analyse, check_topics

    problems = check_topics(loaded.plan)
    with spark_for(loaded.plan, master, remote) as spark:
        return problems + analyse(spark, loaded.plan)[1]


@app.command()
def explain(
    file: File,
    schemas: Annotated[
        bool, typer.Option("--schemas", help="Include the columns of every table (starts Spark).")
    ] = False,
    plan: Annotated[
        bool, typer.Option("--plan", help="Include Spark's analyzed plan of every sink (starts Spark).")
    ] = False,
    master: Master = None,
    remote: Remote = None,
    settings: Set = None,
    as_json: AsJson = False,
) -> None:
    """Show a pipeline as a tree from each sink to its sources.

    \b
    Example:
      ottla pipeline explain orders.yaml
      ottla pipeline explain orders.yaml --schemas --plan
    """
    from ottla.spark.pipeline.explain import as_json as tree_json
    from ottla.spark.pipeline.explain import tree

    loaded = _load(file, settings)
    columns: dict[str, str] = {}
    plans: dict[str, str] = {}
    if schemas or plan:
        from ottla.spark.pipeline.plan_check import analyse

        with spark_for(loaded.plan, master, remote) as spark:
            frames, problems = analyse(spark, loaded.plan)
            if problems:
                raise CommandError("\n".join(map(str, problems)), _code(problems))
            columns = {name: _columns(frame) for name, frame in frames.items()}
            if plan:
                plans = {sink.name: _plan_text(frames[sink.input]) for sink in loaded.plan.sinks.values()}
    if as_json:
        print_json(tree_json(loaded.plan, columns) | ({"plans": plans} if plans else {}))
        return
    for text in tree(loaded.plan, columns):
        show(text)
    for name, text in plans.items():
        show("", f"== {name}")
        show_text(text.rstrip())


def _columns(frame: Any) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in frame.dtypes)


def _plan_text(frame: Any) -> str:
    """Spark's analyzed plan. A stream has no other plan before it starts, and `explain` refuses it."""
    java = getattr(frame, "_jdf", None)
    if java is not None:
        return str(java.queryExecution().analyzed().toString())
    import io

    from ottla.spark.pipeline.causes import cause_of

    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            frame.explain()
    except Exception as error:
        # Spark Connect offers no other way.
        return cause_of(str(error))
    return printed.getvalue()


@app.command()
def status(file: File, settings: Set = None, as_json: AsJson = False) -> None:
    """Show the state of a pipeline: last batch, rows per second, lag per partition, state size.

    Needs no Spark: it reads the status file of the run, and the checkpoints.

    \b
    Example:
      ottla pipeline status orders.yaml
      ottla pipeline status orders.yaml --json
    """
    from ottla.spark.pipeline.progress import size
    from ottla.spark.pipeline.status import read_status

    plan = _load(file, settings).plan
    known = read_status(plan)
    if known is None:
        raise CommandError(
            f"{plan.name} has not run yet ({plan.checkpoint_path} is empty): start it with `ottla pipeline "
            f"run {file}`",
            NOT_FOUND,
        )
    if as_json:
        print_json(known)
        return
    about = (
        f" (process {known['pid']} on {known['host']}), last update {known['updated']}"
        if "pid" in known
        else ""
    )
    show(f"{plan.name}: {known['state']}{about}")
    if known.get("cause"):
        show_text(known["cause"])
    rows, lags = [], []
    for name, query in known["queries"].items():
        last, kept = query.get("last", {}), query.get("checkpoint", {})
        rows.append(
            (name, query.get("state", ""), kept.get("done", last.get("batch")), query.get("rows"), last.get("rows_per_s_in"), last.get("lag_total"),
             last.get("batch_ms"), last.get("state_rows"), size(last.get("state_bytes", 0)))
        )  # fmt: skip
        places = {**kept.get("offsets", {}), **last.get("lag", {})}
        lags += [
            (name, place, kept.get("offsets", {}).get(place), last.get("lag", {}).get(place))
            for place in sorted(places)
        ]
    print_table(
        ("QUERY", "STATE", "BATCH", "ROWS", "ROWS/S", "LAG", "BATCH MS", "STATE ROWS", "STATE SIZE"), rows
    )
    if lags:
        show("")
        print_table(("QUERY", "PARTITION", "OFFSET", "LAG"), lags)
    for name, query in known["queries"].items():
        if query.get("cause"):
            show_text(f"\n{name} failed: {query['cause']}")


# --- shared by the commands ---------------------------------------------------------------------------------


def _load(file: Path, settings: list[str] | None, *, complain: bool = True) -> LoadedPipeline:
    return _load_together([file], settings, complain=complain)[0]


def _load_together(
    files: Sequence[Path], settings: list[str] | None, *, complain: bool = True
) -> list[LoadedPipeline]:
    from ottla.spark.pipeline.loader import load_together
    from ottla.spark.pipeline.model import PipelineError

    try:
        return load_together(files, pairs(settings or (), "--set"))
    except PipelineError as error:
        if not complain:
            raise
        raise usage_error(str(error)) from None
    except ModuleNotFoundError as error:
        raise CommandError(f"{error.name} is not installed: pip install 'ottla[spark]'") from None
