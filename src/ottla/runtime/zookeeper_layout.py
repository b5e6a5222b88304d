"""What the cluster keeps in ZooKeeper: paths, and the bytes of each znode. All under the chroot.

    /cluster_id               persistent  the id of the cluster, made by its first broker
    /cluster_secret           persistent  64 hexadecimal digits: what brokers prove themselves to each other with, made by the first
    /brokers/ids              persistent  empty; its version counts registrations, so that two cannot cross
    /brokers/ids/<id>         ephemeral   {"host", "port", "rack", "directories", "incarnation", "clean", "damaged",
                                          "durable", "epoch"}
    /controller               ephemeral   {"node_id", "epoch"}
    /controller_epoch         persistent  a number; its version is what every write of the controller checks
    /metadata/end             persistent  {"end": N, "snapshot": S}; what brokers watch. S is -1 if there is none
    /metadata/log/<first>     persistent  an entry: a head {"by", "epoch", "tag", "records"}, then one JSON record a line
    /metadata/snapshot/<S>    persistent  {"chunks": n}, empty until it is published by /metadata/end
    /metadata/snapshot/<S>/<chunk>        one JSON record a line

Offsets count records and have 20 digits in names, chunks have 6, so that names sort as numbers. The tag of an entry is
unique to the attempt that wrote it: by it a writer that lost its connection recognises its own work.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from ottla.metadata.records import Record, decode, encode
from ottla.ports.store import Registration

CLUSTER_ID: Final = "/cluster_id"
CLUSTER_SECRET: Final = "/cluster_secret"  # noqa: S105  # a path
IDS: Final = "/brokers/ids"
CONTROLLER: Final = "/controller"
CONTROLLER_EPOCH: Final = "/controller_epoch"
END: Final = "/metadata/end"
LOG: Final = "/metadata/log"
SNAPSHOTS: Final = "/metadata/snapshot"

#: Here Kafka keeps the id of its cluster; other znodes of its own bear the same names as ours.
KAFKAS: Final = "/cluster/id"

CHUNK_BYTES_MAX: Final = 512 * 1024


class Holder(NamedTuple):
    """Who holds /controller."""

    node_id: int
    epoch: int


class Control(NamedTuple):
    """A hold on the cluster: the epoch, and the version of /controller_epoch that every write checks."""

    epoch: int
    version: int


class End(NamedTuple):
    """Where the log ends, and the offset of the published snapshot. `version` is the znode's."""

    end: int
    snapshot: int
    version: int


class Entry(NamedTuple):
    tag: str
    size: int
    lines: list[bytes]

    def records(self) -> list[Record]:
        return decoded(self.lines)


def broker(node_id: int) -> str:
    return f"{IDS}/{node_id}"


def entry(first: int) -> str:
    return f"{LOG}/{first:020d}"


def snapshot(offset: int) -> str:
    return f"{SNAPSHOTS}/{offset:020d}"


def chunk(offset: int, number: int) -> str:
    return f"{SNAPSHOTS}/{offset:020d}/{number:06d}"


def first_znodes() -> list[tuple[str, bytes]]:
    """What the first broker of a cluster makes, parents first."""
    return [
        ("/brokers", b""),
        (IDS, b""),
        (CONTROLLER_EPOCH, b"0"),
        ("/metadata", b""),
        (LOG, b""),
        (SNAPSHOTS, b""),
        (END, encode_end(0, -1)),
    ]


def _json(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode()


def encode_registration(registration: Registration) -> bytes:
    fields = registration._asdict()
    # The number is the znode's name.
    del fields["node_id"]
    return _json(fields)


def decode_registration(node_id: int, data: bytes, czxid: int) -> Registration:
    fields = json.loads(data)
    return Registration(
        node_id=node_id,
        host=fields["host"],
        port=fields["port"],
        rack=fields["rack"],
        directories=tuple(fields["directories"]),
        incarnation=fields["incarnation"],
        clean=fields["clean"],
        damaged=fields.get("damaged", False),
        durable=fields.get("durable", True),
        # A broker before the handshake between brokers has none: its znode's czxid was its epoch.
        epoch=fields.get("epoch", czxid),
    )


def encode_holder(holder: Holder) -> bytes:
    return _json(holder._asdict())


def decode_holder(data: bytes) -> Holder:
    fields = json.loads(data)
    return Holder(fields["node_id"], fields["epoch"])


def encode_end(end: int, snapshot_offset: int) -> bytes:
    return _json({"end": end, "snapshot": snapshot_offset})


def decode_end(data: bytes, version: int) -> End:
    fields = json.loads(data)
    return End(fields["end"], fields["snapshot"], version)


def encode_entry(*, by: int, epoch: int, tag: str, size: int, body: bytes) -> bytes:
    head = _json({"by": by, "epoch": epoch, "tag": tag, "records": size})
    return head + b"\n" + body if body else head


def decode_entry(data: bytes) -> Entry:
    """The head, and the records as they are: who wrote them need not decode them."""
    head, *lines = data.split(b"\n")
    fields = json.loads(head)
    return Entry(fields["tag"], fields["records"], lines)


def encode_snapshot(chunks: int) -> bytes:
    return _json({"chunks": chunks})


def decode_snapshot(data: bytes) -> int:
    chunks: int = json.loads(data)["chunks"]
    return chunks


def encode_records(records: Sequence[Record]) -> bytes:
    return b"\n".join(encode(record) for record in records)


def decoded(lines: Sequence[bytes]) -> list[Record]:
    """The records of these lines without those of a kind that only a newer version knows."""
    return [record for record in map(decode, lines) if record is not None]


def chunks_of(records: Sequence[Record]) -> Iterator[bytes]:
    """Chunks for a snapshot, one at a time: encoding a large image in one go would hold up the event loop."""
    lines: list[bytes] = []
    size = 0
    for record in records:
        line = encode(record)
        if lines and size + len(line) >= CHUNK_BYTES_MAX:
            yield b"\n".join(lines)
            lines, size = [], 0
        lines.append(line)
        size += len(line) + 1
    if lines:
        yield b"\n".join(lines)
