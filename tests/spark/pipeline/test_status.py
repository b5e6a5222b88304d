import json
import os
import subprocess
import sys
from pathlib import Path

from ottla.spark.pipeline import Pipeline
from ottla.spark.pipeline.model import Plan
from ottla.spark.pipeline.status import checkpoint, read_status, this_run, write_status


def plan(tmp_path: Path) -> Plan:
    pipeline = Pipeline("p", checkpoint="kept")
    pipeline.source("ticks", format="rate")
    pipeline.sink("out", from_="ticks", format="noop")
    return pipeline.plan(str(tmp_path / "p.py"))


def spark_has_written(folder: Path, *, begun: int, done: int) -> None:
    for kind, last in (("offsets", begun), ("commits", done)):
        (folder / kind).mkdir(parents=True)
        for batch in range(last + 1):
            lines = ["v1", '{"batchWatermarkMs":0}', json.dumps({"orders": {"0": batch * 10, "1": 3}}), "-"]
            (folder / kind / str(batch)).write_text("\n".join(lines if kind == "offsets" else lines[:1]))
            (folder / kind / f".{batch}.crc").write_text("")


def test_what_a_checkpoint_tells(tmp_path: Path) -> None:
    assert checkpoint(tmp_path / "nothing") is None
    spark_has_written(tmp_path / "q", begun=11, done=10)
    assert checkpoint(tmp_path / "q") == {
        "begun": 11,
        "done": 10,
        "offsets": {"orders-0": 100, "orders-1": 3},
    }


def test_a_pipeline_that_never_ran_has_no_status(tmp_path: Path) -> None:
    assert read_status(plan(tmp_path)) is None


def test_the_status_file_and_the_checkpoint_are_put_together(tmp_path: Path) -> None:
    own = plan(tmp_path)
    spark_has_written(tmp_path / "kept" / "out", begun=1, done=1)
    assert (read_status(own) or {})["state"] == "unknown"
    path = Path(own.status_path or "")
    assert path == tmp_path / "kept" / "status.json"
    write_status(path, {**this_run(own), "state": "running", "queries": {"out": {"rows": 5}}})
    known = read_status(own) or {}
    assert known["state"] == "running" and known["pid"] == os.getpid()
    assert known["queries"]["out"]["rows"] == 5 and known["queries"]["out"]["checkpoint"]["done"] == 1


def test_a_runner_that_is_gone_does_not_run(tmp_path: Path) -> None:
    own = plan(tmp_path)
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    write_status(
        Path(own.status_path or ""), {**this_run(own), "pid": gone.pid, "state": "running", "queries": {}}
    )
    assert (read_status(own) or {})["state"] == "died"


def test_a_checkpoint_elsewhere_has_no_status_file_unless_one_is_named(tmp_path: Path) -> None:
    pipeline = Pipeline("p", checkpoint="hdfs://cluster/kept")
    pipeline.source("ticks", format="rate")
    pipeline.sink("out", from_="ticks", format="noop")
    own = pipeline.plan(str(tmp_path / "p.py"))
    assert own.checkpoint_path == "hdfs://cluster/kept" and own.status_path is None
    assert read_status(own) is None
