from ottla.spark.pipeline.progress import Progress, one_line, read_progress, size

SAID = {
    "batchId": 7,
    "timestamp": "2026-01-31T12:00:00.000Z",
    "numInputRows": 100,
    "inputRowsPerSecond": 200.44,
    "processedRowsPerSecond": "NaN",
    "durationMs": {"triggerExecution": 273, "addBatch": 200},
    "eventTime": {"watermark": "2026-01-31T11:59:50.000Z"},
    "stateOperators": [{"numRowsTotal": 6, "memoryUsedBytes": 3456}, {"numRowsTotal": 1, "memoryUsedBytes": 100}],
    "sources": [
        {"endOffset": {"orders": {"0": 5, "1": 7}}, "latestOffset": {"orders": {"0": 9, "1": 7, "2": 3}}},
        {"endOffset": 4, "latestOffset": 4},
        {"endOffset": None, "latestOffset": None},
    ],
}  # fmt: skip


def test_what_spark_says_becomes_figures() -> None:
    assert read_progress(SAID) == Progress(
        batch=7,
        at="2026-01-31T12:00:00.000Z",
        rows=100,
        rows_per_s_in=200.4,
        rows_per_s=0.0,
        batch_ms=273,
        lag={"orders-0": 4, "orders-1": 0},
        state_rows=7,
        state_bytes=3556,
        watermark="2026-01-31T11:59:50.000Z",
    )
    assert read_progress(SAID).as_json()["lag_total"] == 4


def test_a_query_that_says_little_is_read_too() -> None:
    assert read_progress({"batchId": 0}) == Progress(0, "", 0, 0.0, 0.0, 0)
    assert read_progress({"batchId": 0, "inputRowsPerSecond": float("inf")}).rows_per_s_in == 0


def test_all_queries_on_one_line() -> None:
    assert one_line({"totals": read_progress(SAID), "db": None}) == (
        "totals: batch 7  200 rows/s in  lag 4  273 ms  state 7 rows, 3.5 KiB  |  db: starting"
    )


def test_sizes() -> None:
    assert [size(each) for each in (5, 2048, 3 << 20, 5 << 40)] == ["5 B", "2.0 KiB", "3.0 MiB", "5.0 TiB"]
