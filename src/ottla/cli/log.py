"""`ottla log`: print the files of a data directory (`dump`), and find damage in them (`verify`)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ottla.cli.options import AsJson
from ottla.cli.outcome import FAILED, NOT_FOUND, USAGE, CommandError, print_json, say, show
from ottla.cli.text import Format, shown, time_text

if TYPE_CHECKING:
    from ottla.cli.dump import Row

app = typer.Typer(
    help="""Print and check the files of a data directory, ottla's or Kafka's.

\b
Example:
  ottla log dump ottla-data/orders-0/00000000000000000000.log
  ottla log verify ottla-data
""",
    no_args_is_help=True,
    rich_markup_mode=None,
)

#: Text files: entries of two or three columns, or names and values.
CHECKPOINT_SUFFIX = "-checkpoint"
PROPERTY_FILES = ("meta.properties", "partition.metadata")
JSON_FILES = ("quorum-state", ".kafka_cleanshutdown", "kafka-takeover")
JOURNAL = "metadata.journal"
#: Folders and files whose batches contain Kafka's metadata records.
KRAFT_FOLDER = "__cluster_metadata-0"
KRAFT_SUFFIX = ".checkpoint"
#: Second suffixes of files that are being created, cleaned or deleted.
PASSING = (".deleted", ".cleaned", ".swap", ".part", ".tmp")


def register(parent: typer.Typer) -> None:
    parent.add_typer(app, name="log")


@app.command()
def dump(
    files: Annotated[list[Path], typer.Argument(help="Files, partition folders, or a whole data directory.")],
    records: Annotated[
        bool, typer.Option("--records/--no-records", help="Include the records of each batch.")
    ] = True,
    form: Annotated[Format, typer.Option("--format", "-f", help="How keys and values are written.")] = "text",
    as_json: AsJson = False,
) -> None:
    """Print segments, indexes, snapshots, checkpoints and metadata, of ottla and of Kafka.

    Kafka's metadata log (__cluster_metadata-0) is decoded record by record. Folders are read recursively.
    Files are only read; a broker may be running on them. Every CRC and the order of the indexes are checked.
    Exits with 1 if a file is damaged.

    \b
    Example:
      ottla log dump ottla-data/orders-0 --no-records
      ottla log dump ottla-data/orders-0/00000000000000000000.index --json
    """
    problems = 0
    many = len(files) > 1 or any(file.is_dir() for file in files)
    for file in _expanded(files):
        if many and not as_json:
            show(f"== {file}")
        for row in rows_of(file, records):
            if "problem" in row:
                problems += 1
            if as_json:
                print_json({"file": str(file)} | _plain(row, form))
            else:
                _print_row(row, form)
    if problems:
        say(f"{problems} problem(s) found")
        raise typer.Exit(FAILED)


def _expanded(files: list[Path]) -> Iterator[Path]:
    for file in files:
        if file.is_dir():
            yield from (
                entry
                for entry in sorted(file.rglob("*"))
                if entry.is_file() and _kind(entry) and entry.stat().st_size
            )
        elif not file.exists():
            raise CommandError(f"{file}: no such file", NOT_FOUND)
        elif _kind(file):
            yield file
        else:
            raise CommandError(
                f"{file}: not a file of a data directory (.log, .index, .timeindex, .txnindex, .snapshot, "
                ".checkpoint, "
                f"…-checkpoint, {JOURNAL}, {', '.join((*PROPERTY_FILES, *JSON_FILES))})"
            )


def _kind(file: Path) -> str:
    if file.name in PROPERTY_FILES:
        return "properties"
    if file.name in JSON_FILES:
        return "json"
    if file.name == JOURNAL:
        return "journal"
    if file.name.endswith(CHECKPOINT_SUFFIX):
        return "checkpoint"
    # A segment that is being deleted or cleaned keeps its format under a second suffix.
    suffixes = [suffix for suffix in file.suffixes if suffix not in PASSING]
    last = suffixes[-1] if suffixes else ""
    return last if last in (".log", ".index", ".timeindex", ".txnindex", ".snapshot", KRAFT_SUFFIX) else ""


def rows_of(file: Path, records: bool) -> Iterator[Row]:
    """The rows of any file of a data directory."""
    from ottla.cli import dump, dump_metadata

    kind = _kind(file)
    if kind in ("checkpoint", "properties"):
        text = file.read_text(encoding="utf-8", errors="backslashreplace")
        yield from dump.checkpoint(text) if kind == "checkpoint" else dump.properties(text)
        return
    if kind in (".log", KRAFT_SUFFIX):
        rows = _batches(file, records)
        is_metadata = kind == KRAFT_SUFFIX or file.absolute().parent.name == KRAFT_FOLDER
        yield from dump_metadata.kraft(rows) if is_metadata else rows
        return
    data = file.read_bytes()
    base_offset = dump.base_offset_of(file.name)
    if kind == ".index":
        yield from dump.offset_index(data, base_offset)
    elif kind == ".timeindex":
        yield from dump.time_index(data, base_offset)
    elif kind == ".txnindex":
        yield from dump.txn_index(data)
    elif kind == "journal":
        yield from dump_metadata.journal(data)
    elif kind == "json":
        yield from dump_metadata.json_file(data)
    else:
        yield from dump.producer_snapshot(data)


def _batches(file: Path, records: bool) -> Iterator[Row]:
    import mmap

    from ottla.cli import dump

    if not file.stat().st_size:
        return
    with file.open("rb") as opened:
        # Mapped, not read: a segment may be larger than memory. It is unmapped with its last view.
        mapped = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
    yield from dump.batches(memoryview(mapped), records=records)


def _plain(row: Row, form: Format) -> dict[str, Any]:
    """The row with bytes as text."""
    plain = dict(row)
    if "records" in plain:
        plain["records"] = [
            record
            | {
                "key": shown(record["key"], form),
                "value": shown(record["value"], form),
                "headers": [[name, shown(value, form)] for name, value in record["headers"]],
            }
            for record in plain["records"]
        ]
    return plain


def _print_row(row: Row, form: Format) -> None:
    problem = f"  PROBLEM: {row['problem']}" if "problem" in row else ""
    if "magic" not in row:
        parts = [
            f"{name} {time_text(value) if name == 'timestamp' else value}"
            for name, value in row.items()
            if name not in ("problem", "entry")
        ]
        show("  ".join(parts) + problem)
        return
    flags = [name for name in ("transactional", "control", "delete_horizon") if row[name]]
    if row.get("control_type"):
        flags.append(row["control_type"])
    producer = (
        f"  producer {row['producer_id']} epoch {row['producer_epoch']} sequence {row['base_sequence']}"
        if row["producer_id"] >= 0
        else ""
    )
    show(
        f"batch {row['base_offset']}..{row['last_offset']}  at {row['position']}  {row['bytes']} bytes  "
        f"{row['count']} record(s)  {row['codec']}  epoch {row['leader_epoch']}  "
        f"{row['timestamp_type']} {time_text(row['max_timestamp'])}{producer}"
        f"{'  ' + ' '.join(flags) if flags else ''}{problem}"
    )
    for record in row.get("records", ()):
        if "metadata" in record:
            words = "  ".join(
                f"{name} {value}" for name, value in record["metadata"].items() if name != "type"
            )
            show(f"  {record['offset']}  {record['metadata']['type']}  {words}".rstrip())
            continue
        headers = "".join(f"  {name}={_or_null(value, form)}" for name, value in record["headers"])
        show(
            f"  {record['offset']}  {time_text(record['timestamp_ms'])}  key {_or_null(record['key'], form)}"
            f"  value {_or_null(record['value'], form)}{headers}"
        )


def _or_null(data: bytes | None, form: Format) -> str:
    return "null" if data is None else shown(data, form) or "''"


@app.command()
def verify(
    folders: Annotated[
        list[Path], typer.Argument(help="All data directories of a broker, or single partition folders.")
    ],
    deep: Annotated[bool, typer.Option("--deep", help="Decode every record as well.")] = False,
    as_json: AsJson = False,
) -> None:
    """Find damage in a data directory, ottla's or Kafka's, with its meaning and what to do.

    Reads every batch, index, snapshot and checkpoint; changes nothing. A broker may be running on the
    directory. Exits with 1 if something is damaged; a NOTE is no damage. Give all data directories of a
    broker in one call.

    \b
    Example:
      ottla log verify ottla-data
      ottla log verify ottla-data/orders-0 --deep --json
    """
    from ottla.cli.progress import ProgressLine
    from ottla.cli.verify import ReadOnlyFiles, in_use, worded
    from ottla.server.data_dir_check import verify as find

    for folder in folders:
        if not folder.is_dir():
            raise CommandError(f"{folder}: not a directory", USAGE if folder.exists() else NOT_FOUND)
    changing = any(in_use(str(place)) for folder in folders for place in (folder, folder.absolute().parent))
    counts = {"note": 0, "mend": 0, "loss": 0}
    progress = ProgressLine()
    paths = [str(folder) for folder in folders]
    for finding in find(ReadOnlyFiles(), paths, changing=changing, deep=deep, progress=progress.show):
        report = worded(finding)
        counts[report.level] += 1
        progress.clear()
        if as_json:
            print_json(report._asdict())
            continue
        place = report.file
        place += f", byte {report.position}" if report.position is not None else ""
        place += f", offset {report.offset}" if report.offset is not None else ""
        show(
            f"{report.level.upper()}  {place}",
            f"  {report.what}",
            f"  means: {report.means}",
            f"  do:    {report.do}",
        )
    progress.clear()
    damaged = counts["mend"] + counts["loss"]
    running = " (a broker is running on it)" if changing else ""
    say(
        f"{counts['loss']} with lost or doubtful records, {counts['mend']} repairable, {counts['note']} "
        f"note(s){running}"
        if damaged or counts["note"]
        else f"no damage found{running}"
    )
    if damaged:
        raise typer.Exit(FAILED)
