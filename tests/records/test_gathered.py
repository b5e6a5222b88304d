"""Collected columns are encoded to the batch that `encode_batch` makes of the same records, byte for byte."""

from hypothesis import given
from hypothesis import strategies as st

from ottla.records.gathered import Gathered
from ottla.records.record import Record, decode_batch, encode_batch

NOW_MS = 1_790_000_000_000


def gathered(records: list[Record]) -> Gathered:
    found = Gathered()
    for index, (_, timestamp, key, value, headers) in enumerate(records):
        assert found.append(value, key, headers, timestamp) == index
    return found


def plain(count: int, *, length: int = 20, run: int = 100, keyed: bool = False) -> list[Record]:
    return [
        Record(0, NOW_MS + index // run, b"key-%d" % index if keyed else None, b"v" * length)
        for index in range(count)
    ]


def test_batches_that_are_encoded_by_columns() -> None:
    # Deltas and lengths of one, two and three bytes.
    for count in (8, 63, 64, 65, 8191, 8193, 9000):
        for keyed in (False, True):
            records = plain(count, keyed=keyed)
            found = gathered(records)
            assert found._payload() is not None
            assert found.encode() == encode_batch(records)
    for length in (0, 1, 63, 64, 8191, 8192, 20_000):
        records = plain(70, length=length)
        assert gathered(records).encode() == encode_batch(records)


def test_what_is_not_alike_is_encoded_one_by_one() -> None:
    alike = plain(16)
    for odd in (
        Record(0, NOW_MS, None, None),
        Record(0, NOW_MS, b"key", b"value"),
        Record(0, NOW_MS, None, b"value", (("name", b"content"),)),
    ):
        records = [*alike, odd, *alike]
        found = gathered(records)
        assert found._payload() is None
        assert found.encode() == encode_batch(records)
    # A different timestamp for each.
    records = plain(16, run=1)
    assert gathered(records)._payload() is None
    assert gathered(records).encode() == encode_batch(records)


def test_what_the_producer_says_is_in_the_header() -> None:
    records = plain(100)
    for codec in range(5):
        for transactional in (False, True):
            batch = gathered(records).encode(
                codec=codec,
                transactional=transactional,
                producer_id=7,
                producer_epoch=3,
                base_sequence=11,
            )
            assert batch == encode_batch(
                records,
                codec=codec,
                transactional=transactional,
                producer_id=7,
                producer_epoch=3,
                base_sequence=11,
            )


def test_times_go_back_and_forth() -> None:
    records = [Record(0, NOW_MS - index // 50 * 1000, None, b"value") for index in range(200)]
    records += [Record(0, NOW_MS, None, b"value")] * 20
    assert gathered(records)._payload() is not None
    assert gathered(records).encode() == encode_batch(records)


def test_a_part_is_a_batch_of_its_own() -> None:
    records = [*plain(70, run=7), Record(0, NOW_MS, b"key", None, (("name", None),)), *plain(70, keyed=True)]
    whole = gathered(records)
    assert list(whole) == records
    assert [whole.timestamp_of(index) for index in range(len(whole))] == [row.timestamp_ms for row in records]
    for start, stop in ((0, 70), (60, 80), (71, 141)):
        assert whole.part(start, stop).encode() == encode_batch(records[start:stop])


content = st.one_of(st.none(), st.binary(max_size=80))
record = st.builds(
    Record,
    st.just(0),
    st.one_of(st.just(NOW_MS), st.integers(-(1 << 40), 1 << 40)),
    content,
    content,
    st.one_of(st.just(()), st.lists(st.tuples(st.text(max_size=5), content), max_size=2).map(tuple)),
)


@given(st.lists(st.one_of(record, st.just(Record(0, NOW_MS, None, b"value"))), min_size=1, max_size=40))
def test_any_records(records: list[Record]) -> None:
    batch = gathered(records).encode()
    assert batch == encode_batch(records)
    assert [row._replace(offset=0) for row in decode_batch(batch)] == records


@given(st.lists(st.binary(max_size=300), min_size=8, max_size=80), st.booleans())
def test_any_values_and_keys_of_one_time(contents: list[bytes], keyed: bool) -> None:
    records = [Record(0, NOW_MS, each[::-1] if keyed else None, each) for each in contents]
    assert gathered(records)._payload() is not None
    assert gathered(records).encode() == encode_batch(records)
