"""`ottla log dump`: what is in the files of a log directory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ottla.cli.options import AsJson
from ottla.cli.outcome import FAILED, NOT_FOUND, CommandError, print_json, say
from ottla.cli.text import Format, shown, time_text

if TYPE_CHECKING:
    from ottla.cli.dump import Row

app = typer.Typer(
    help="""Look into the files of a log directory.

\b
Example:
  ottla log dump ottla-data/orders-0/00000000000000000000.log
""",
    no_args_is_help=True,
    rich_markup_mode=None,
)

#: Files that are text: entries of two or three columns, or names and values.
CHECKPOINT_SUFFIX = "-checkpoint"
PROPERTY_FILES = ("meta.properties", "partition.metadata")


def register(parent: typer.Typer) -> None:
    parent.add_typer(app, name="log")


@app.callback()
def log() -> None:
    """Keeps `dump` a command of its own, however many there are."""


@app.command()
def dump(
    files: Annotated[list[Path], typer.Argument(help="Files of a log directory, or partition folders.")],
    records: Annotated[
        bool, typer.Option("--records/--no-records", help="The records in each batch too.")
    ] = True,
    form: Annotated[Format, typer.Option("--format", "-f", help="How keys and values are written.")] = "text",
    as_json: AsJson = False,
) -> None:
    """Print batches, records and indexes of a segment, producer snapshots and checkpoints.

    Reads the files only; a broker may be running on them. Checks every CRC and the order of the indexes; exits with 1
    when something is wrong with a file.

    \b
    Example:
      ottla log dump ottla-data/orders-0 --no-records
      ottla log dump ottla-data/orders-0/00000000000000000000.index --json
    """
    problems = 0
    many = len(files) > 1 or any(file.is_dir() for file in files)
    for file in _expanded(files):
        if many and not as_json:
            print(f"== {file}")
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
                for entry in sorted(file.iterdir())
                if entry.is_file() and _kind(entry) and entry.stat().st_size
            )
        elif not file.exists():
            raise CommandError(f"{file}: no such file", NOT_FOUND)
        elif _kind(file):
            yield file
        else:
            raise CommandError(
                f"{file}: not a file of a log directory (.log, .index, .timeindex, .txnindex, .snapshot, …-checkpoint, "
                "meta.properties, partition.metadata)"
            )


def _kind(file: Path) -> str:
    if file.name in PROPERTY_FILES:
        return "properties"
    if file.name.endswith(CHECKPOINT_SUFFIX):
        return "checkpoint"
    # A segment that is being deleted or cleaned keeps its format under a second suffix.
    suffixes = [suffix for suffix in file.suffixes if suffix not in (".deleted", ".cleaned", ".swap")]
    last = suffixes[-1] if suffixes else ""
    return last if last in (".log", ".index", ".timeindex", ".txnindex", ".snapshot") else ""


def rows_of(file: Path, records: bool) -> Iterator[Row]:
    """The rows of any file of a log directory."""
    from ottla.cli import dump

    kind = _kind(file)
    if kind in ("checkpoint", "properties"):
        text = file.read_text(encoding="utf-8", errors="backslashreplace")
        yield from dump.checkpoint(text) if kind == "checkpoint" else dump.properties(text)
        return
    base_offset = dump.base_offset_of(file.name)
    if kind == ".log":
        import mmap

        if not file.stat().st_size:
            return
        with file.open("rb") as opened:
            # Mapped, not read: a segment may be larger than memory. It is unmapped when the last view has gone.
            mapped = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
        yield from dump.batches(memoryview(mapped), records=records)
        return
    data = file.read_bytes()
    if kind == ".index":
        yield from dump.offset_index(data, base_offset)
    elif kind == ".timeindex":
        yield from dump.time_index(data, base_offset)
    elif kind == ".txnindex":
        yield from dump.txn_index(data)
    else:
        yield from dump.producer_snapshot(data)


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
        print("  ".join(parts) + problem)
        return
    flags = [name for name in ("transactional", "control", "delete_horizon") if row[name]]
    if row.get("control_type"):
        flags.append(row["control_type"])
    producer = (
        f"  producer {row['producer_id']} epoch {row['producer_epoch']} sequence {row['base_sequence']}"
        if row["producer_id"] >= 0
        else ""
    )
    print(
        f"batch {row['base_offset']}..{row['last_offset']}  at {row['position']}  {row['bytes']} bytes  "
        f"{row['count']} record(s)  {row['codec']}  epoch {row['leader_epoch']}  "
        f"{row['timestamp_type']} {time_text(row['max_timestamp'])}{producer}"
        f"{'  ' + ' '.join(flags) if flags else ''}{problem}"
    )
    for record in row.get("records", ()):
        headers = "".join(f"  {name}={_or_null(value, form)}" for name, value in record["headers"])
        print(
            f"  {record['offset']}  {time_text(record['timestamp_ms'])}  key {_or_null(record['key'], form)}"
            f"  value {_or_null(record['value'], form)}{headers}"
        )


def _or_null(data: bytes | None, form: Format) -> str:
    return "null" if data is None else shown(data, form) or "''"
