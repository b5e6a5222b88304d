"""Decode metadata files: ottla's journal, Kafka's metadata log and its snapshots, small JSON files.

Pure functions from bytes or rows to rows, as in `dump.py`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ottla.metadata.kraft import Malformed, decode, decode_control, shown
from ottla.runtime.embedded_store import entry_after, read_journal

if TYPE_CHECKING:
    from ottla.cli.dump import Row


def kraft(rows: Iterator[Row]) -> Iterator[Row]:
    """The batches of Kafka's metadata log, with each decoded record under `metadata`."""
    for row in rows:
        for record in row.get("records", ()):
            key, value = record["key"] or b"", record["value"] or b""
            try:
                found = decode_control(key, value) if row["control"] else decode(value)
            except Malformed as error:
                # A record of a newer Kafka is no damage.
                record["metadata"] = {"type": "unknown", "reason": str(error)}
                continue
            if found is not None:
                record["metadata"] = {"type": found.name, "version": found.version, **shown(found)}
        yield row


def journal(data: bytes) -> Iterator[Row]:
    """One row per record of ottla's metadata journal."""
    records, end = read_journal(data)
    for number, record in enumerate(records):
        if record is None:
            yield {"record": number, "kind": "unknown (a newer version wrote it)"}
            continue
        fields = {
            name: value.hex() if isinstance(value, bytes) else value
            for name, value in record._asdict().items()
        }
        yield {"record": number, "kind": type(record).__name__, **fields}
    if end < len(data):
        rest = len(data) - end
        what = (
            "damaged, with whole entries after them" if entry_after(data, end) else "a truncated last entry"
        )
        yield {"position": end, "problem": f"{rest} bytes are {what}"}


def json_file(data: bytes) -> Iterator[Row]:
    """Names and values of a file with one JSON object, such as `quorum-state`. The file may be empty."""
    if not data.strip():
        return
    try:
        found = json.loads(data)
    except ValueError as error:
        yield {"problem": f"not JSON: {error}"}
        return
    if isinstance(found, dict):
        yield from ({"name": name, "value": value} for name, value in found.items())
    else:
        yield {"value": found}
