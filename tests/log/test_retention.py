from ottla.log.partition_log import PartitionLog
from ottla.log.retention import expired_segments
from tests.log.log_bench import NOW, Bench, batch, config, fill, records

ONE = len(batch(b"v" * 40))


def expired(log: PartitionLog, now_ms: int = NOW, high_watermark: int | None = None) -> int:
    return expired_segments(log, now_ms, log.next_offset if high_watermark is None else high_watermark)


def test_segments_go_when_their_newest_record_is_too_old(bench: Bench) -> None:
    log = bench.create(segment_bytes=5 * ONE, retention_ms=1000)
    fill(log, 20, step_ms=100)
    assert log.bases == [0, 5, 10, 15]
    assert expired(log, NOW + 400 + 1000) == 0
    assert expired(log, NOW + 400 + 1001) == 1
    assert expired(log, NOW + 900 + 1001) == 2


def test_the_active_segment_too_goes_when_it_is_too_old(bench: Bench) -> None:
    log = bench.create(segment_bytes=5 * ONE, retention_ms=1000)
    fill(log, 12)
    assert expired(log, NOW + 1001) == len(log.segments)
    log.roll(NOW)
    bench.remove(log.drop_segments(3))
    assert log.bases == [12]
    assert log.log_start_offset == log.next_offset == 12
    assert expired(log, NOW + 10**9) == 0, "an empty segment stays"


def test_one_young_segment_protects_those_after_it(bench: Bench) -> None:
    """Whole segments from the start only: the log has no gaps."""
    log = bench.create(segment_bytes=2 * ONE, retention_ms=1000)
    for timestamp in (0, 0, NOW, NOW, 0, 0):
        log.append(batch(b"v" * 40, timestamp=timestamp), 0, NOW)
    assert expired(log) == 1


def test_segments_go_while_the_log_is_larger_than_allowed_without_them(bench: Bench) -> None:
    log = bench.create(segment_bytes=5 * ONE, retention_bytes=12 * ONE, retention_ms=-1)
    fill(log, 22)
    # 22 batches less two segments of 5 are 12.
    assert expired(log) == 2
    fill(log, 1)
    assert expired(log) == 2


def test_no_bytes_at_all_means_the_active_segment_too(bench: Bench) -> None:
    log = bench.create(segment_bytes=5 * ONE, retention_bytes=0, retention_ms=-1)
    fill(log, 7)
    assert expired(log) == 2


def test_without_limits_nothing_goes(bench: Bench) -> None:
    log = bench.create(segment_bytes=5 * ONE, retention_bytes=-1, retention_ms=-1)
    fill(log, 22)
    assert expired(log, NOW + 10**12) == 0


def test_nothing_above_the_high_watermark_goes(bench: Bench) -> None:
    log = bench.create(segment_bytes=5 * ONE, retention_ms=1)
    fill(log, 20)
    assert expired(log, NOW + 100, high_watermark=10) == 2
    assert expired(log, NOW + 100, high_watermark=9) == 1
    assert expired(log, NOW + 100, high_watermark=0) == 0


def test_what_is_before_the_start_goes_whatever_the_policy(bench: Bench) -> None:
    log = bench.create(segment_bytes=5 * ONE)
    fill(log, 12)
    log.config = config(cleanup_policy="compact", retention_ms=1, retention_bytes=0)
    assert expired(log, NOW + 10**9) == 0
    log.delete_before(7)
    assert expired(log) == 1


def test_records_without_timestamps_are_as_old_as_their_segment(bench: Bench) -> None:
    log = bench.create(retention_ms=1000)
    log.append(batch(b"v", timestamp=-1), 0, NOW)
    assert expired(log, NOW + 1000) == 0
    assert expired(log, NOW + 1001) == 1


def test_what_is_left_can_be_read(bench: Bench) -> None:
    log = bench.create(segment_bytes=5 * ONE, retention_ms=1000)
    fill(log, 23, step_ms=100)
    bench.remove(log.drop_segments(expired(log, NOW + 2500)))
    assert [record.offset for record in records(log)] == list(range(15, 23))
    bench.stop(log)
    again = bench.recover(clean=True).log
    assert again.log_start_offset == 15
    assert [record.offset for record in records(again)] == list(range(15, 23))
