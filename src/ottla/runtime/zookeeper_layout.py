"""The znodes of a cluster in ZooKeeper: their paths and bytes. All are below the chroot.

    /cluster_id               persistent  the id of the cluster, created by its first broker
    /cluster_secret           persistent  64 hexadecimal digits for the authentication between brokers,
                                          created by the first broker
    /brokers/ids              persistent  empty; every registration increases its version, so that no two
                                          interleave
    /brokers/ids/<id>         ephemeral   {"host", "port", "rack", "directories", "incarnation", "clean",
                                          "damaged", "durable", "epoch"}
    /controller               ephemeral   {"node_id", "epoch"}
    /controller_epoch         persistent  a number; every write of the controller checks its version
    /metadata/end             persistent  {"end": N, "snapshot": S}; watched by all brokers. S is -1 if there is
                                          no snapshot
    /metadata/log/<first>     persistent  an entry: a head {"by", "epoch", "tag", "records"}, then one
                                          JSON record per line
    /metadata/snapshot/<S>    persistent  {"chunks": n}, empty until it is published by /metadata/end
    /metadata/snapshot/<S>/<chunk>        one JSON record per line

Offsets count records. They have 20 digits in names, chunks have 6, so that names sort as numbers. The tag of
an entry is unique to the attempt that wrote it: a writer that lost its connection recognizes its own entry by
the tag.
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

#: The cluster id of Apache Kafka. Other znodes of Kafka have the same names as ours.
KAFKAS: Final = "/cluster/id"

CHUNK_BYTES_MAX: Final = 512 * 1024


class Holder(NamedTuple):
    """The controller in /controller."""

    node_id: int
    epoch: int


class Control(NamedTuple):
    """The controller epoch, and the version of /controller_epoch that every write checks."""

    epoch: int
    version: int


class End(NamedTuple):
    """The end of the metadata log, the offset of the published snapshot, and the version of the znode."""

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
    """The znodes that the first broker of a cluster creates, parents first."""
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
    # The node id is the name of the znode.
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
        # Brokers without the handshake between brokers write no epoch: theirs is the czxid of the znode.
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
    """The head, and the encoded records: the writer of an entry need not decode them."""
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
    """The records of these lines, without kinds of a newer version."""
    return [record for record in map(decode, lines) if record is not None]


def chunks_of(records: Sequence[Record]) -> Iterator[bytes]:
    """The chunks of a snapshot, one at a time: encoding a large image at once would block the event loop."""
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
