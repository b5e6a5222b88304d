import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.log import checkpoints

OFFSETS = {("orders", 0): 12, ("orders", 10): 0, ("a.b_c-d", 3): 2**63 - 1}
TOPIC_ID = bytes(range(16))


def lines_of(offsets: dict[checkpoints.Partition, int]) -> checkpoints.OffsetLines:
    lines = checkpoints.OffsetLines()
    for (topic, partition), offset in offsets.items():
        lines.put(topic, partition, offset)
    return lines


def test_offset_checkpoints_are_kafkas() -> None:
    data = lines_of(OFFSETS).render()
    assert data == b"0\n3\norders 0 12\norders 10 0\na.b_c-d 3 9223372036854775807\n"
    assert checkpoints.parse_offsets(data) == OFFSETS
    assert checkpoints.parse_offsets(lines_of({}).render()) == {}


def test_a_checkpoint_follows_what_has_changed() -> None:
    lines = lines_of(OFFSETS)
    lines.put("orders", 10, 7)
    lines.drop("orders", 0)
    lines.drop("never", 0)
    assert len(lines) == 2
    assert checkpoints.parse_offsets(lines.render()) == {("orders", 10): 7, ("a.b_c-d", 3): 2**63 - 1}


def test_a_torn_checkpoint_is_none_at_every_byte() -> None:
    data = lines_of(OFFSETS).render()
    assert checkpoints.parse_offsets(None) is None
    for size in range(len(data)):
        assert checkpoints.parse_offsets(data[:size]) is None, data[:size]
        assert checkpoints.parse_offsets(data[:size] + bytes(len(data) - size)) is None


@pytest.mark.parametrize(
    "data",
    [
        b"1\n0\n",
        b"0\n1\na b 1\n",
        b"0\n1\na 1\n",
        b"0\n2\na 0 1\n",
        b"0\n0\na 0 1\n",
        b"0\nx\n",
        b"\xff\n0\n",
    ],
)
def test_other_files_are_none(data: bytes) -> None:
    assert checkpoints.parse_offsets(data) is None


@given(st.binary(max_size=60))
def test_anything_can_be_parsed(data: bytes) -> None:
    checkpoints.parse_offsets(data)
    checkpoints.parse_epochs(data)
    checkpoints.parse_properties(data)
    checkpoints.parse_partition_metadata(data)


def test_meta_properties() -> None:
    properties = {"version": "1", "cluster.id": "abc_-", "node.id": "4", "directory.id": "xyz"}
    data = checkpoints.render_properties(properties)
    assert data == b"version=1\ncluster.id=abc_-\nnode.id=4\ndirectory.id=xyz\n"
    assert checkpoints.parse_properties(data) == properties
    assert checkpoints.parse_properties(b"#\n# Sun Nov 15\nversion=1\n\nnode.id = 4\n") == {
        "version": "1",
        "node.id": "4",
    }
    assert checkpoints.parse_properties(None) == {}


def test_partition_metadata() -> None:
    data = checkpoints.render_partition_metadata(TOPIC_ID)
    assert data == b"version: 0\ntopic_id: AAECAwQFBgcICQoLDA0ODw"
    assert checkpoints.parse_partition_metadata(data) == TOPIC_ID


@pytest.mark.parametrize(
    "data", [None, b"", b"version: 0\n", b"version: 0\ntopic_id: short", b"topic_id: !!!"]
)
def test_partition_metadata_that_is_torn_is_none(data: bytes | None) -> None:
    assert checkpoints.parse_partition_metadata(data) is None
