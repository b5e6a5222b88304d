import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from ottla.spark import table_sinks
from ottla.spark.table_sinks.folders import (
    CHANGES,
    STATE,
    arriving_folder,
    commit_folder,
    folder_of,
    list_table,
    local_path,
    remove_leftovers,
    remove_superseded,
)

RECORDS = "key string, value string, topic string, partition int, offset bigint"


def records(spark: SparkSession, *rows: tuple[Any, ...]) -> DataFrame:
    """Each with a key, a value and an offset."""
    made = [(key, value, "t", 0, offset) for key, value, offset in rows]
    return spark.createDataFrame(made, RECORDS).coalesce(1)


def values(frame: DataFrame) -> dict[str, str]:
    found = [(row["key"], row["value"]) for row in frame.collect()]
    assert len(found) == len(dict(found))
    return dict(found)


def test_a_current_table_has_the_last_row_of_each_key(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "table")
    with pytest.raises(table_sinks.SinkError, match="has no table"):
        table_sinks.read_table(spark, path)
    sink = table_sinks.parquet_table(path, key="key", sink_id="s", merge_every=2)
    sink(records(spark, ("a", "new", 5), ("a", "old", 1), ("b", "1", 2), ("c", "1", 3)), 0)
    assert values(table_sinks.read_table(spark, path)) == {"a": "new", "b": "1", "c": "1"}
    begun = table_sinks.read_table(spark, path)
    sink(records(spark, ("b", None, 6), ("c", "2", 7)), 1)
    assert values(begun) == {"a": "new", "b": "1", "c": "1"}
    sink(records(spark, ("b", "back", 8)), 2)
    assert values(table_sinks.read_table(spark, path)) == {"a": "new", "b": "back", "c": "2"}
    # The second batch was followed by a state, which stands for both; they stay for whoever has begun to read.
    listing = list_table(Path(path))
    assert [state.number for state in listing.states] == [1] and [each.number for each in listing.read] == [
        1,
        2,
    ]
    sink(records(spark), 3)
    assert [each.number for each in list_table(Path(path)).read] == [3]
    assert values(table_sinks.read_table(spark, path)) == {"a": "new", "b": "back", "c": "2"}
    assert listing.last is not None and listing.last.mark()["offsets"] == {"t": {"0": 9}}


def test_a_batch_that_comes_again_is_passed_over_and_others_are_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    sink = table_sinks.parquet_table(str(tmp_path), sink_id="s")
    for _ in range(2):
        sink(records(spark, ("a", "1", 0)), 0)
    sink(records(spark, ("a", "1", 1)), 1)
    # What is still on its way is seen by nobody.
    shutil.copytree(tmp_path / "ottla_batch=0", arriving_folder(tmp_path), dirs_exist_ok=True)
    assert (
        spark.read.parquet(str(tmp_path)).count() == table_sinks.read_table(spark, str(tmp_path)).count() == 2
    )
    with pytest.raises(table_sinks.BatchRefused, match="another driver"):
        sink(records(spark, ("a", "1", 1)), 0)
    with pytest.raises(table_sinks.BatchRefused, match="t-0 ended at 2, now at 8"):
        sink(records(spark, ("a", "1", 7)), 1)
    with pytest.raises(table_sinks.BatchRefused, match="a table has one writer"):
        table_sinks.parquet_table(str(tmp_path), sink_id="other")(records(spark), 2)
    with pytest.raises(table_sinks.SchemaMismatch, match=r"value is missing, more is new"):
        sink(records(spark).withColumnRenamed("value", "more"), 2)
    with pytest.raises(table_sinks.SchemaMismatch, match="is a plain table"):
        table_sinks.parquet_table(str(tmp_path), key="key", sink_id="s")(records(spark), 2)
    # A query that takes over goes on behind what is there.
    table_sinks.parquet_table(str(tmp_path), sink_id="s", reset=True)(records(spark, ("a", "1", 9)), 0)
    sink(records(spark, ("a", "1", 10)), 1)
    assert sorted(row["ottla_batch"] for row in spark.read.parquet(str(tmp_path)).collect()) == [0, 1, 2, 3]


def test_what_has_arrived_counts_only_by_its_name(tmp_path: Path) -> None:
    for expected in ("first", "second"):
        arriving = arriving_folder(tmp_path)
        (arriving / "rows.parquet").write_text(expected)
        if expected == "first":
            assert list_table(tmp_path).last is None
            commit_folder(arriving, folder_of(tmp_path, "ottla_batch=", 0), {"batch_id": 0})
        else:
            with pytest.raises(table_sinks.BatchRefused, match="stop this one"):
                commit_folder(arriving, folder_of(tmp_path, "ottla_batch=", 0), {"batch_id": 0})
    last = list_table(tmp_path).last
    assert last is not None and last.mark() == {"batch_id": 0}
    assert (last.path / "rows.parquet").read_text() == "first"


def test_what_another_driver_has_removed_does_not_come_to_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arriving, folder = arriving_folder(tmp_path), folder_of(tmp_path, "ottla_batch=", 0)
    (arriving / "first.parquet").touch()
    removed: list[Path] = []

    def remove(path: Path, **_: Any) -> None:
        """Its driver comes just then: nothing may count of which a part is gone already."""
        removed.append(path)
        with pytest.raises(table_sinks.BatchRefused, match="were removed"):
            commit_folder(arriving, folder, {})
        # And a task of its makes the folder anew, as Spark's tasks do.
        arriving.mkdir(exist_ok=True)
        (arriving / "second.parquet").touch()
        with pytest.raises(table_sinks.BatchRefused, match="were removed"):
            commit_folder(arriving, folder, {})

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", remove)
        remove_leftovers(tmp_path)
    assert removed and list_table(tmp_path).last is None
    # What somebody began to remove is removed by the next one.
    remove_leftovers(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_batch_is_refused_whose_files_another_driver_has_removed(
    spark: SparkSession, tmp_path: Path
) -> None:
    def lose(_frame: DataFrame, _batch_id: int) -> None:
        """The rows are written, and do not count yet."""
        remove_leftovers(tmp_path)

    sink = table_sinks.parquet_table(str(tmp_path), sink_id="s", offsets=lose)
    with pytest.raises(table_sinks.BatchRefused, match="were removed, because another driver"):
        sink(records(spark, ("a", "1", 0)), 0)
    assert not list(tmp_path.iterdir())


def test_rows_alike_in_their_order_are_told_apart_and_a_repetition_finds_the_same_ones(
    spark: SparkSession, tmp_path: Path
) -> None:
    with_position, without = str(tmp_path / "with"), str(tmp_path / "without")
    rows = records(spark, ("a", "1", 4), ("a", "2", 9), ("b", "5", 10), ("b", "3", 11), ("a", "2", 8))
    rows = rows.withColumn("rank", f.col("value").cast("int"))
    for _ in range(2):
        table_sinks.parquet_table(with_position, key="key", order_by="rank", sink_id="s")(rows, 0)
    assert sorted(
        (row["key"], row["offset"]) for row in table_sinks.read_table(spark, with_position).collect()
    ) == [
        ("a", 9),
        ("b", 10),
    ]
    alike = spark.createDataFrame(
        [("a", n, 7) for n in range(20)], "key string, value int, rank int"
    ).coalesce(1)
    given = {"t": {"0": 3}}
    sink = table_sinks.parquet_table(
        without, key="key", order_by="rank", sink_id="s", offsets=lambda _, __: given
    )
    sink(alike, 0)
    assert [row["value"] for row in table_sinks.read_table(spark, without).collect()] == [19]
    given = {"t": {"0": 4}}
    with pytest.raises(table_sinks.BatchRefused, match="t-0 ended at 3, now at 4"):
        sink(alike, 0)


def test_a_state_is_marked_with_the_batch_that_it_reaches_to(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = table_sinks.parquet_table(str(tmp_path), key="key", sink_id="s", merge_every=1)
    write_state = slow._write_state

    def pause(*given: Any) -> None:
        """Another driver writes the next batch."""
        first = list_table(tmp_path).changes[0]
        arriving = arriving_folder(tmp_path)
        shutil.copytree(first.path, arriving, dirs_exist_ok=True)
        commit_folder(arriving, folder_of(tmp_path, CHANGES, 1), {**first.mark(), "batch_id": 1})
        write_state(*given)

    monkeypatch.setattr(slow, "_write_state", pause)
    slow(records(spark, ("a", "1", 0)), 0)
    listing = list_table(tmp_path)
    assert [each.number for each in listing.states] == [1]
    assert listing.last is not None and listing.last.mark()["batch_id"] == 1


def test_what_a_state_replaces_stays_for_readers_that_have_begun(tmp_path: Path) -> None:
    for name in ("changes-0000000000", "changes-0000000001", "changes-0000000002"):
        (tmp_path / name).mkdir()
    for number, time_s in ((0, 100), (1, 200)):
        state = folder_of(tmp_path, STATE, number)
        state.mkdir()
        os.utime(state, (time_s, time_s))
    remove_superseded(tmp_path, before_s=150)
    assert [each.number for each in list_table(tmp_path).changes] == [1, 2]
    remove_superseded(tmp_path, before_s=250)
    listing = list_table(tmp_path)
    assert [each.number for each in listing.changes] == [2] and [each.number for each in listing.states] == [
        1
    ]


@pytest.mark.parametrize(
    ("path", "local"),
    [
        ("/a/b#c?d", "/a/b#c?d"),
        ("a/b:c", "a/b:c"),
        ("file:///a/b", "/a/b"),
        ("file:/a/b", "/a/b"),
        ("s3://bucket/a", None),
        ("hdfs:/a", None),
    ],
)
def test_where_a_path_leads(path: str, local: str | None) -> None:
    assert local_path(path) == (None if local is None else Path(local))


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"path": "s3://bucket/table"}, "atomic rename"),
        ({"merge_every": 0}, "merge_every"),
        ({"delete_when": "gone"}, "need key="),
    ],
)
def test_settings_of_no_sense(settings: dict[str, Any], says: str) -> None:
    given = {"path": "/nowhere", "sink_id": "s", **settings}
    with pytest.raises(table_sinks.SinkError, match=says):
        table_sinks.parquet_table(given.pop("path"), **given)


def test_a_row_without_a_key_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    sink = table_sinks.parquet_table(str(tmp_path), key="key", sink_id="s")
    with pytest.raises(Exception, match="key column key is null"):
        sink(records(spark, (None, "1", 0)), 0)
    assert list_table(tmp_path).last is None


def test_without_an_order_a_key_has_one_row_a_batch(spark: SparkSession, tmp_path: Path) -> None:
    """As an aggregate in update mode gives them."""
    path = tmp_path / "table"
    sink = table_sinks.parquet_table(str(path), key="key", sink_id="s")
    with pytest.raises(table_sinks.SchemaMismatch, match="no column 'id'"):
        table_sinks.parquet_table(str(path), key="id", sink_id="s")(records(spark), 0)
    with pytest.raises(Exception, match=r"a key \(key\) has several rows in one batch.*order_by"):
        sink(records(spark, ("a", "1", 1), ("b", "1", 2), ("a", "2", 3)).select("key", "value"), 0)
    assert list_table(path).last is None
    sink(records(spark, ("a", "1", 1), ("b", "1", 2)).select("key", "value"), 0)
    sink(records(spark, ("a", "2", 3)).select("key", "value"), 1)
    assert values(table_sinks.read_table(spark, str(path))) == {"a": "2", "b": "1"}


def test_a_checkpoint_that_was_used_with_another_table_is_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    context = spark.sparkContext
    context.setLocalProperty("sql.streaming.queryId", "q")
    try:
        with pytest.raises(table_sinks.BatchRefused, match="nothing has been written here under sink_id 's'"):
            table_sinks.parquet_table(str(tmp_path / "new"), sink_id="s")(records(spark, ("a", "1", 1)), 57)
        assert not (tmp_path / "new").exists()
        # Batches without rows leave their number.
        sink = table_sinks.parquet_table(str(tmp_path / "table"), sink_id="s")
        for batch_id in range(2):
            sink(records(spark), batch_id)
        sink(records(spark, ("a", "1", 1)), 2)
        table_sinks.parquet_table(str(tmp_path / "new"), sink_id="s", reset=True)(records(spark), 57)
    finally:
        context.setLocalProperty("sql.streaming.queryId", None)
