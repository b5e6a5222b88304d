from ottla.metadata import records as r
from ottla.ports.store import Registration
from ottla.runtime import zookeeper_layout as layout

RECORDS: list[r.Record] = [
    r.Cluster("c"),
    r.Topic("ü", bytes(16)),
    r.Partition(bytes(16), 0, (1, 2), (1,), 1),
]


def test_names_sort_as_numbers() -> None:
    offsets = [0, 9, 10, 99, 10**18]
    assert sorted(map(layout.entry, offsets)) == [layout.entry(offset) for offset in offsets]
    assert [int(layout.entry(offset).rpartition("/")[2]) for offset in offsets] == offsets
    assert layout.chunk(7, 3) == layout.snapshot(7) + "/000003"


def test_everything_reads_back() -> None:
    registration = Registration(3, "h", 1, "r", ("a", "b"), "i", clean=False, epoch=1 << 45)
    data = layout.encode_registration(registration)
    assert layout.decode_registration(3, data, 77) == registration
    assert layout.decode_holder(layout.encode_holder(layout.Holder(1, 2))) == (1, 2)
    assert layout.decode_end(layout.encode_end(5, -1), 9) == (5, -1, 9)
    body = layout.encode_records(RECORDS)
    entry = layout.decode_entry(layout.encode_entry(by=1, epoch=2, tag="t", size=3, body=body))
    assert (entry.tag, entry.size, entry.records()) == ("t", 3, RECORDS)
    assert layout.decode_snapshot(layout.encode_snapshot(4)) == 4


def test_a_registration_without_an_epoch_has_its_czxid() -> None:
    """The format of brokers without the handshake between brokers."""
    data = layout.encode_registration(Registration(3, "h", 1, None, (), "i", clean=True, epoch=5))
    assert layout.decode_registration(3, data.replace(b',"epoch":5', b""), 77).epoch == 77


def test_records_of_a_newer_version_are_passed_over_but_counted() -> None:
    body = layout.encode_records(RECORDS[:1]) + b'\n{"kind":"of-the-future","x":1}'
    entry = layout.decode_entry(layout.encode_entry(by=1, epoch=1, tag="t", size=2, body=body))
    assert entry.records() == RECORDS[:1]
    assert entry.size == 2, "offsets count them, or brokers of two versions would disagree"


def test_chunks_have_all_records_within_their_size() -> None:
    records = [r.Topic("x" * 1000, number.to_bytes(16, "big")) for number in range(2000)]
    chunks = list(layout.chunks_of(records))
    assert len(chunks) > 3 and all(len(chunk) <= layout.CHUNK_BYTES_MAX for chunk in chunks)
    assert [record for chunk in chunks for record in layout.decoded(chunk.split(b"\n"))] == records
    assert list(layout.chunks_of([])) == []
