import struct
import sys
from array import array
from typing import Any

import pytest

from ottla.client.consumer.columns import BytesColumn, Columns
from ottla.records import pieces
from ottla.records.batch import with_append_time
from ottla.records.record import Record, encode_batch


@pytest.fixture(params=["compiled", "pure with numpy", "pure without numpy"])
def twin(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    if request.param == "compiled":
        return pytest.importorskip("ottla.records.compiled", reason="numba is not here")
    if request.param == "pure without numpy":
        monkeypatch.setitem(sys.modules, "numpy", None)
    else:
        pytest.importorskip("numpy")
    return pieces


def columns(twin: Any, *batches: list[Record], codec: int = 0) -> Columns:
    offset = 0
    found = []
    for records in batches:
        # Views, as they come from the network.
        found.append(twin.piece(memoryview(encode_batch(records, base_offset=offset, codec=codec))))
        offset += len(records)
    return Columns("t", 0, found)


def numbered(first: int, count: int, form: str = ">q") -> list[Record]:
    return [Record(0, 1000 + n, None, struct.pack(form, n * n)) for n in range(first, first + count)]


@pytest.mark.parametrize("codec", [0, 4])
def test_columns_span_batches(twin: Any, codec: int) -> None:
    found = columns(
        twin,
        [Record(0, 5, b"k", None), Record(0, 6, None, b"")],
        [Record(0, 7, b"", b"value", (("h", b"x"),))],
        [Record(0, 8, b"kk", b"v")],
        codec=codec,
    )
    assert len(found) == 4
    assert found.offsets.tolist() == [0, 1, 2, 3]
    assert found.timestamps.tolist() == [5, 6, 7, 8]
    assert list(found.keys) == [b"k", None, b"", b"kk"]
    assert list(found.values) == [None, b"", b"value", b"v"]
    assert found.headers == [(), (), (("h", b"x"),), ()]
    assert repr(found) == "<4 records of t-0, offsets 0 to 3>"


def test_a_column_is_a_sequence(twin: Any) -> None:
    values = columns(twin, [Record(0, 0, None, b"%d" % n if n else None) for n in range(5)]).values
    assert isinstance(values, BytesColumn) and len(values) == 5
    assert (values[0], values[3], values[-1]) == (None, b"3", b"4")
    assert type(values[3]) is bytes
    assert values[1:3] == [b"1", b"2"] and b"4" in values
    with pytest.raises(IndexError):
        values[5]


@pytest.mark.parametrize("form", [">i8", "<i8", ">f8", "<u4", "i2", ">u1"])
def test_values_of_one_width_are_read_as_numbers(twin: Any, form: str) -> None:
    layout = {"i8": "q", "f8": "d", "u4": "I", "i2": "h", "u1": "B"}[form.lstrip("<>")]
    order = form[0] if form[0] in "<>" else "="
    found = columns(twin, numbered(0, 5, order + layout), numbered(5, 9, order + layout))
    assert found.values_as(form).tolist() == [n * n for n in range(14)]


def test_numbers_are_in_the_order_of_the_machine(twin: Any) -> None:
    found = columns(twin, numbered(1, 3)).values_as(">i8")
    assert array("q", found.tobytes()).tolist() == [1, 4, 9]


def test_what_is_no_number_is_named(twin: Any) -> None:
    found = columns(twin, [*numbered(0, 2), Record(0, 0, None, None), Record(0, 0, None, b"123")])
    with pytest.raises(ValueError, match="row 2 is null, not 8 bytes"):
        found.values_as(">i8")
    with pytest.raises(ValueError, match="row 0 is null"):
        found.keys_as(">i8")
    with pytest.raises(ValueError, match="row 1 is 3 bytes wide, not 8 bytes"):
        found.values[2:].__class__(b"12345678123", array("q", [0, 8]), array("q", [8, 11])).numbers(">i8")
    with pytest.raises(ValueError, match="unknown number format"):
        found.values_as("complex")


@pytest.mark.parametrize("name", ["pieces", "compiled"])
def test_arrow(name: str) -> None:
    pa = pytest.importorskip("pyarrow")
    twin = pytest.importorskip(f"ottla.records.{name}", reason="numba is not here")
    first, second = (
        encode_batch([Record(0, 5, b"k", None)]),
        encode_batch([Record(0, 6, None, b"v")], base_offset=1),
    )
    found = Columns("t", 0, [twin.piece(first), twin.piece(second)], twin.pack)
    batch = found.to_arrow()
    assert batch.column_names == ["offset", "timestamp", "key", "value"]
    assert batch.column("value").to_pylist() == [None, b"v"]
    assert batch.column("key").to_pylist() == [b"k", None]
    assert batch.schema.field("timestamp").type == pa.timestamp("ms", "UTC")
    assert batch.column("offset").to_pylist() == [0, 1]


@pytest.mark.parametrize("name", ["pieces", "compiled"])
def test_runs_of_times_by_who_wrote_them(name: str) -> None:
    twin = pytest.importorskip(f"ottla.records.{name}", reason="numba is not here")
    of_producer = encode_batch([Record(0, 5, None, b"v"), Record(1, 5, None, b"v")])
    of_broker = bytes(with_append_time(of_producer, 9))
    pieces_ = [twin.piece(batch) for batch in (of_producer, of_producer, of_broker)]
    pieces_[-1] = pieces_[-1].since(1)
    found = Columns("t", 0, pieces_)
    assert found.append_times == [(4, False), (1, True)]
    assert found.timestamps.tolist() == [5, 5, 5, 5, 9]
