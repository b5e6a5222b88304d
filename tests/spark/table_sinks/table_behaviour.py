"""What the sinks promise of every database: these tests run on SQLite by default, and on MariaDB and PostgreSQL in `make interop`.

The fixture `place` is an empty database: `place.url`, and `place.ask(statement)`.
"""

import datetime
import json
from decimal import Decimal
from typing import Any

import pytest

from ottla.spark import table_sinks
from ottla.spark.table_sinks.database import staging_prefix
from tests.spark.table_sinks.rows import QUERY, Rows

PEOPLE = "id bigint, name string, age int"
RECORDS = "id bigint, name string, topic string, partition int, offset bigint"


def people(place: Any, **settings: Any) -> Any:
    return table_sinks.upsert(place.url, table="people", key="id", sink_id="people", **settings)


def table(place: Any, columns: str = "*") -> list[tuple[Any, ...]]:
    return sorted(place.ask(f"SELECT {columns} FROM people"))


def progress(place: Any, sink_id: str = "people") -> tuple[Any, ...]:
    [(batch_id, query_id, offsets)] = place.ask(
        f"SELECT batch_id, query_id, source_offsets FROM ottla_progress WHERE sink_id = '{sink_id}'"
    )
    return batch_id, query_id, None if offsets is None else json.loads(offsets)


# --- rows ---------------------------------------------------------------------------------------------------------


def test_the_last_row_of_each_key_is_in_the_table(place: Any) -> None:
    sink = people(place)
    sink(Rows(PEOPLE, [(1, "Aino", 30), (2, "Elias", 40)], [(1, "Aino Maria", 31)]), 0)
    assert table(place) == [(1, "Aino Maria", 31), (2, "Elias", 40)]
    sink(Rows(PEOPLE, [(2, "Elias", 41), (3, "Otso", 5)], []), 1)
    assert table(place) == [(1, "Aino Maria", 31), (2, "Elias", 41), (3, "Otso", 5)]


def test_the_offset_tells_which_row_is_the_last(place: Any) -> None:
    rows = Rows(RECORDS, [(1, "newer", "t", 0, 9)], [(1, "older", "t", 0, 3), (2, "other", "t", 1, 4)])
    people(place)(rows, 0)
    assert table(place) == [(1, "newer"), (2, "other")]
    assert progress(place) == (0, QUERY, {"t": {"0": 10, "1": 5}})


def test_a_column_tells_which_row_is_the_last(place: Any) -> None:
    people(place, order_by="age")(Rows(PEOPLE, [(1, "b", 9), (1, "a", None), (1, "c", 3)]), 0)
    assert table(place) == [(1, "b", 9)]


def test_a_decimal_tells_which_row_is_the_last(place: Any) -> None:
    """By its size, though SQLite keeps it as a text."""
    rows = [(1, Decimal("9.5")), (1, Decimal("10.5")), (1, None), (2, Decimal("-9.5")), (2, Decimal("-10.5"))]
    rows += [(3, Decimal("-0.00001")), (3, Decimal("0.00001")), (3, Decimal("-999999999999999.99999"))]
    people(place, order_by="n")(Rows("id bigint, n decimal(20,5)", rows), 0)
    assert [Decimal(n) for _, n in table(place)] == [Decimal("10.5"), Decimal("-9.5"), Decimal("0.00001")]


def test_a_tombstone_deletes(place: Any) -> None:
    sink = people(place)
    sink(Rows(RECORDS, [(1, "a", "t", 0, 0), (2, "b", "t", 0, 1), (3, "c", "t", 0, 2)]), 0)
    sink(Rows(RECORDS, [(1, None, "t", 0, 3), (2, None, "t", 0, 4), (2, "again", "t", 0, 5)]), 1)
    assert table(place) == [(2, "again"), (3, "c")]


def test_a_row_of_nulls_stays_without_tombstones(place: Any) -> None:
    people(place, tombstones=False)(Rows(PEOPLE, [(1, None, None)]), 0)
    assert table(place) == [(1, None, None)]


def test_a_column_says_what_is_deleted(place: Any) -> None:
    schema = f"{PEOPLE}, gone boolean"
    sink = people(place, delete_when="gone")
    sink(Rows(schema, [(1, "a", 1, False), (2, "b", 2, None), (3, None, None, False)]), 0)
    sink(Rows(schema, [(1, "a", 1, True)]), 1)
    assert sorted(place.ask("SELECT id FROM people")) == [(2,), (3,)]


def test_append_has_every_row(place: Any) -> None:
    sink = table_sinks.append(place.url, table="people", sink_id="people")
    sink(Rows(PEOPLE, [(1, "a", 1), (1, "a", 1)], [(None, None, None)]), 0)
    sink(Rows(PEOPLE, [(1, "a", 1)]), 1)
    assert sorted(place.ask("SELECT count(*), count(id) FROM people")) == [(4, 3)]


def test_every_type_comes_back(place: Any) -> None:
    schema = (
        "k string, bo boolean, b tinyint, s smallint, i int, l bigint, f float, d double, de decimal(20,5), st string, bi binary, "
        "da date, ts timestamp, nt timestamp_ntz"
    )
    utc = datetime.datetime(2026, 3, 4, 5, 6, 7, 890123, tzinfo=datetime.UTC)
    local = utc.replace(tzinfo=None)
    text = 'it\'s "quoted" \\ , \t\n %s ä 🐻'
    row = (
        "ä", True, -128, -32768, -(2**31), -(2**63), 1.5, 0.1, Decimal("123456789012345.67890"), text, bytes(range(256)),
        datetime.date(1969, 12, 31), utc, local,
    )  # fmt: skip
    empty = ("empty", None, None, None, None, None, None, None, None, "", b"", None, None, None)
    table_sinks.upsert(place.url, table="people", key="k", sink_id="types")(Rows(schema, [row, empty]), 0)
    found = {each[0]: each for each in place.ask("SELECT * FROM people")}
    assert found["ä"][1:8] == (True, -128, -32768, -(2**31), -(2**63), 1.5, 0.1)
    assert Decimal(found["ä"][8]) == row[8]
    assert found["ä"][9] == text and bytes(found["ä"][10]) == row[10]
    assert str(found["ä"][11]) == "1969-12-31"
    assert [str(each).replace("+00:00", "").rstrip("Z") for each in found["ä"][12:]] == [
        "2026-03-04 05:06:07.890123"
    ] * 2
    assert found["empty"][9] == "" and bytes(found["empty"][10]) == b"" and found["empty"][1] is None


def test_keys_that_look_alike_are_different(place: Any) -> None:
    keys = [("a",), ("A",), ("a ",), ("ä",), ("",)]
    schema = "id string, n int"
    people(place)(Rows(schema, [(*key, 1) for key in keys]), 0)
    assert table(place, "id") == sorted(keys)


def test_a_key_may_have_several_columns_with_any_name(place: Any) -> None:
    sink = table_sinks.upsert(place.url, table="people", key=["order", 'a"b`c'], sink_id="names")
    schema = 'order int, `a"b``c` string, `x.y` int'
    sink(Rows(schema, [(1, "a", 1), (1, "b", 2)]), 0)
    sink(Rows(schema, [(1, "a", None), (1, "b", 3)]), 1)
    assert table(place) == [(1, "b", 3)]


def test_a_table_of_keys_alone(place: Any) -> None:
    sink = people(place)
    for batch in range(2):
        sink(Rows("id bigint", [(1,), (2,), (1,)]), batch)
    assert table(place) == [(1,), (2,)]


# --- exactly once -------------------------------------------------------------------------------------------------


def test_a_task_that_ran_twice_counts_once(place: Any) -> None:
    rows = Rows(PEOPLE, [(1, "a", 1), (2, "b", 2), (3, "c", 3)], [(4, "d", 4)])
    rows.tried_twice = {0, 1}
    table_sinks.append(place.url, table="people", sink_id="people")(rows, 0)
    assert table(place, "id") == [(1,), (2,), (3,), (4,)]


def test_a_batch_that_comes_again_is_passed_over(place: Any) -> None:
    for _ in range(2):
        table_sinks.append(place.url, table="people", sink_id="people")(Rows(PEOPLE, [(1, "a", 1)]), 0)
    assert table(place, "id") == [(1,)]


def test_an_empty_batch_moves_the_progress(place: Any) -> None:
    sink = people(place)
    sink(Rows(PEOPLE, []), 0)
    sink(Rows(PEOPLE), 1)
    assert progress(place)[0] == 1


def test_a_driver_that_comes_back_is_refused(place: Any) -> None:
    """It staged its batch, and meanwhile another did that batch and the next."""
    sink, other = people(place), people(place)
    rows = Rows(PEOPLE, [(1, "old", 1)])

    def go_on() -> None:
        other(Rows(PEOPLE, [(1, "same", 1)]), 0)
        other(Rows(PEOPLE, [(1, "new", 1)]), 1)

    rows.then = go_on
    # The other has dropped what it found, as a driver does when it starts; this one's staging table among it.
    with pytest.raises(table_sinks.BatchRefused, match=r"batch 0 .* batch 1 is already in the table"):
        sink(rows, 0)
    assert table(place) == [(1, "new", 1)]


def test_two_drivers_of_one_batch_write_it_once(place: Any) -> None:
    first, second = (table_sinks.append(place.url, table="people", sink_id="people") for _ in range(2))
    rows = Rows(PEOPLE, [(1, "a", 1)])
    rows.then = lambda: second(Rows(PEOPLE, [(1, "a", 1)]), 0)
    first(rows, 0)
    assert table(place, "id") == [(1,)]


def test_a_new_checkpoint_with_an_old_sink_id_is_refused(place: Any) -> None:
    sink = people(place)
    sink(Rows(PEOPLE, [(1, "a", 1)]), 0)
    again = Rows(PEOPLE, [(2, "b", 2)], query_id="22222222-query")
    with pytest.raises(
        table_sinks.BatchRefused, match=rf"22222222-query.*'people' belongs to query {QUERY}.*reset=True"
    ):
        people(place)(again, 0)
    assert table(place) == [(1, "a", 1)]
    people(place, reset=True)(again, 0)
    assert table(place, "id") == [(1,), (2,)]
    assert progress(place)[:2] == (0, "22222222-query")
    # And the first one, come back, is no longer the owner, whatever it was told at its start.
    with pytest.raises(table_sinks.BatchRefused, match="belongs to query 22222222-query"):
        people(place, reset=True)(Rows(PEOPLE, [(3, "c", 3)]), 1)


def test_a_checkpoint_that_was_used_with_another_table_is_refused(place: Any) -> None:
    with pytest.raises(
        table_sinks.BatchRefused, match=rf"batch 57 of query {QUERY} is refused: nothing has been written"
    ):
        people(place)(Rows(PEOPLE, [(1, "a", 1)]), 57)
    people(place, reset=True)(Rows(PEOPLE, [(1, "a", 1)]), 57)
    people(place)(Rows(PEOPLE, [(2, "b", 1)]), 58)
    assert table(place, "id") == [(1,), (2,)]


def test_a_database_that_was_set_back_is_noticed(place: Any) -> None:
    sink = people(place)
    sink(Rows(PEOPLE, [(1, "a", 1)]), 0)
    with pytest.raises(
        table_sinks.BatchRefused, match="the table has batch 0, and the batches between are missing"
    ):
        sink(Rows(PEOPLE, [(1, "a", 2)]), 4)


def test_staged_rows_that_are_lost_are_noticed(place: Any) -> None:
    rows = Rows(PEOPLE, [(1, "a", 1), (2, "b", 2)])

    def lose() -> None:
        for name in place.staging(staging_prefix("people")):
            place.ask(f"DELETE FROM {name} WHERE id = 1")

    rows.then = lose
    with pytest.raises(table_sinks.SinkError, match="only 1 of 2 staged rows are in the database"):
        people(place)(rows, 0)
    assert table(place) == []


def test_nothing_is_left_behind(place: Any) -> None:
    prefix = staging_prefix("people")
    place.ask(f"CREATE TABLE {prefix}7_leftover (x INTEGER)")
    failing = Rows(PEOPLE, [(1, "a", 1)])
    failing.then = lambda: 1 / 0  # type: ignore[assignment, return-value]
    with pytest.raises(ZeroDivisionError):
        people(place)(failing, 0)
    assert place.staging(prefix) == []
    people(place)(Rows(PEOPLE, [(1, "a", 1)]), 0)
    assert place.staging(prefix) == []


def test_offsets_may_be_given(place: Any) -> None:
    people(place, offsets=lambda _, batch_id: {"my": {"0": batch_id}})(Rows(PEOPLE, []), 0)
    assert progress(place)[2] == {"my": {"0": 0}}


# --- tables that do not fit ---------------------------------------------------------------------------------------


def test_a_table_that_does_not_fit_is_refused_before_any_row_is_staged(place: Any) -> None:
    place.ask("CREATE TABLE people (id INTEGER, name INTEGER, must VARCHAR(9) NOT NULL)")
    rows = Rows(PEOPLE, [(1, "a", 1)])
    rows.then = lambda: pytest.fail("rows were staged")
    with pytest.raises(table_sinks.SchemaMismatch) as failed:
        people(place)(rows, 0)
    said = str(failed.value)
    assert "no column age" in said and "column name is int" in said.lower()
    assert "column must is NOT NULL" in said and "its key is not (id)" in said


def test_a_table_with_other_columns_that_may_be_left_out_fits(place: Any) -> None:
    place.ask(
        "CREATE TABLE people (age BIGINT, name VARCHAR(9), id BIGINT PRIMARY KEY, extra INTEGER DEFAULT 7)"
    )
    sink = people(place)
    sink(Rows(PEOPLE, [(1, "a", 1)]), 0)
    place.ask("UPDATE people SET extra = 8")
    sink(Rows(PEOPLE, [(1, "b", 1), (2, "c", 2)]), 1)
    assert table(place) == [(1, "b", 1, 8), (2, "c", 2, 7)]


def test_another_unique_column_is_not_taken_for_the_key(place: Any) -> None:
    place.ask("CREATE TABLE people (id BIGINT PRIMARY KEY, name VARCHAR(9) UNIQUE, age INTEGER)")
    sink = people(place)
    sink(Rows(PEOPLE, [(1, "a", 1), (2, "b", 2)]), 0)
    with pytest.raises(Exception, match=r"(?i)unique|duplicate"):
        sink(Rows(PEOPLE, [(3, "a", 9)]), 1)
    assert table(place) == [(1, "a", 1), (2, "b", 2)]
    assert progress(place)[0] == 0


# --- rows that are refused ----------------------------------------------------------------------------------------


class Letters:
    """Takes what is sent to it."""

    def __init__(self) -> None:
        self.sent: list[Any] = []

    def send(self, refused: Any) -> None:
        self.sent += refused


def test_rows_that_the_database_refuses_are_sent_away_and_the_rest_is_written(place: Any) -> None:
    place.ask("CREATE TABLE people (id BIGINT PRIMARY KEY, name VARCHAR(99), age INTEGER CHECK (age < 200))")
    letters = Letters()
    schema = "id bigint, name string, age int, topic string, partition int, offset bigint"
    rows = [(n, f"n{n}", 300 if n in (3, 17) else n, "t", n % 2, n) for n in range(20)]
    rows += [(None, "nobody", 1, "t", 0, 20), (4, None, None, "t", 0, 21)]
    people(place, dead_letters=letters)(Rows(schema, rows[:9], rows[9:]), 0)
    assert table(place, "id") == [(n,) for n in range(20) if n not in (3, 4, 17)]
    assert [each["row"]["id"] for each in letters.sent] == [None, 3, 17]
    assert [each["position"] for each in letters.sent] == [["t", 0, 20], ["t", 1, 3], ["t", 1, 17]]
    assert "key column id is null" in letters.sent[0]["reason"]
    assert all(
        "check" in each["reason"].lower() or "constraint" in each["reason"].lower()
        for each in letters.sent[1:]
    )
    assert progress(place) == (0, QUERY, {"t": {"0": 22, "1": 20}})
    assert place.staging(staging_prefix("people")) == []


def test_without_a_place_for_them_such_rows_fail_the_batch(place: Any) -> None:
    place.ask("CREATE TABLE people (id BIGINT PRIMARY KEY, name VARCHAR(99), age INTEGER CHECK (age < 200))")
    with pytest.raises(Exception, match=r"(?i)check|constraint"):
        people(place)(Rows(PEOPLE, [(1, "a", 1), (2, "b", 300)]), 0)
    with pytest.raises(table_sinks.RowsRefused, match="key column id is null"):
        people(place)(Rows(PEOPLE, [(1, "a", 1), (None, "b", 3)]), 0)
    assert table(place) == []


def test_refused_rows_are_counted_over_all_tasks(place: Any) -> None:
    letters = Letters()
    tasks = [[(None, "a", 1), (None, "b", 2)] for _ in range(2)]
    with pytest.raises(
        table_sinks.RowsRefused, match=r"more than 3 rows of a batch .* key column id is null"
    ):
        people(place, dead_letters=letters, refused_max=3)(Rows(PEOPLE, *tasks), 0)
    assert letters.sent == []
    people(place, dead_letters=letters, refused_max=4)(Rows(PEOPLE, *tasks), 0)
    assert len(letters.sent) == 4


def test_a_foreign_key_that_may_wait_for_the_end_is_looked_at_in_time(place: Any) -> None:
    """MySQL has none that wait, and leaves the word out."""
    waits = "" if "mariadb" in place.url else "DEFERRABLE INITIALLY DEFERRED"
    place.ask("CREATE TABLE towns (town BIGINT PRIMARY KEY)")
    place.ask("INSERT INTO towns VALUES (7)")
    place.ask(
        "CREATE TABLE people (id BIGINT PRIMARY KEY, town BIGINT, "
        f"FOREIGN KEY (town) REFERENCES towns (town) {waits})"
    )
    letters = Letters()
    rows = [(number, 8 if number in (2, 5) else 7) for number in range(8)]
    people(place, dead_letters=letters)(Rows("id bigint, town bigint", rows), 0)
    assert table(place, "id") == [(number,) for number in range(8) if number not in (2, 5)]
    assert [each["row"] for each in letters.sent] == [{"id": 2, "town": 8}, {"id": 5, "town": 8}]
    assert all("foreign key" in each["reason"].lower() for each in letters.sent)


def test_too_many_refused_rows_are_no_bad_rows_but_a_bad_table(place: Any) -> None:
    place.ask("CREATE TABLE people (id BIGINT PRIMARY KEY, name VARCHAR(99), age INTEGER CHECK (age < 0))")
    letters = Letters()
    with pytest.raises(table_sinks.RowsRefused, match="more than 3 rows"):
        people(place, dead_letters=letters, refused_max=3)(Rows(PEOPLE, [(n, "a", n) for n in range(9)]), 0)
    assert table(place) == [] and letters.sent == []
