from ottla.metadata import records as r
from ottla.metadata.appends import in_appends
from ottla.ports.store import APPEND_BYTES_MAX
from tests.controller.making import part


def test_a_large_change_is_cut_into_appends_in_order() -> None:
    records: list[r.Record] = [part()._replace(partition=number) for number in range(10_000)]
    records.append(r.BrokerRegistration(1, 5, "h", 1))
    appends = in_appends(records)
    assert [record for append in appends for record in append] == records
    sizes = [len(b"\n".join(map(r.encode, append))) for append in appends]
    assert max(sizes) <= APPEND_BYTES_MAX
    # No more of them than needed.
    assert min(sizes[:-1]) > APPEND_BYTES_MAX - 1000


def test_a_small_change_is_one_append_and_so_is_none() -> None:
    assert in_appends([part()]) == [[part()]]
    assert in_appends([]) == [[]]
    assert in_appends([part(), part()], bytes_max=1) == [[part()], [part()]]
