"""The cost of opening a log: a node has ten thousand of them."""

import os
from pathlib import Path

from tests.log.log_bench import NOW, Bench, batch, fill, records, sequenced

ONE = len(batch(b"v" * 40))


def times_of_change(directory: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in directory.iterdir()}


def descriptors(directory: Path) -> list[str]:
    targets = []
    for name in os.listdir("/proc/self/fd"):
        try:
            targets.append(os.readlink(f"/proc/self/fd/{name}"))
        except OSError:
            continue
    return [target for target in targets if target.startswith(str(directory))]


def test_after_a_clean_stop_no_file_is_changed(bench: Bench) -> None:
    log = bench.create(segment_bytes=5 * ONE)
    fill(log, 3)
    log.append(sequenced(0, b"v"), 0, NOW)
    fill(log, 9)
    bench.stop(log)
    before = times_of_change(bench.path)
    again = bench.recover(clean=True).log
    assert times_of_change(bench.path) == before
    assert [record.offset for record in records(again)] == list(range(13))
    assert again.append(sequenced(0, b"v"), 0, NOW).duplicate


def test_indexes_that_are_there_stay_closed(bench: Bench) -> None:
    log = bench.create(segment_bytes=5 * ONE)
    fill(log, 23)
    bench.stop(log)
    assert not descriptors(bench.path)
    again = bench.recover(clean=True).log
    assert len(again.segments) == 5
    # Small segments have no entry in their offset index, which its size shows.
    assert not [path for path in descriptors(bench.path) if path.endswith(".index")]
