"""`ottla pipeline` from a shell. One test starts Spark in separate processes, and stops and restarts it."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import ottla
from tests.spark.pipeline.command import Call

PATIENCE_S = 110
FILE = """\
name: copy
brokers: ${BROKERS}
checkpoint: ./kept
trigger: 300 ms
sources:
  rows: {topic: "${TOPIC}", value: json, schema: "id BIGINT, name STRING", group: copying, records: 700}
steps:
  shouted: SELECT id, upper(name) AS name, length(name) AS size FROM rows
sinks:
  out: {from: shouted, topic: "${TOPIC}-out", key: id, value: json}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "copy.yaml"
    path.write_text(FILE)
    return path


SET = ("--set", "BROKERS=127.0.0.1:9", "--set", "TOPIC=t")


def test_a_good_file_is_0_and_a_bad_one_2_with_every_problem(call: Call, file: Path) -> None:
    code, out, _ = call("validate", file, *SET)
    assert code == 0 and out == f"{file}: 1 source, 1 step, 1 sink; no problems found\n"
    file.write_text(FILE.replace("from: shouted", "from: shoutd").replace("trigger:", "triger:"))
    code, out, err = call("validate", file, *SET)
    assert code == 2 and out == ""
    assert f"{file}:4: triger: a pipeline has no field triger: did you mean trigger?" in err
    assert f"{file}:10: sinks.out.from: shoutd is neither a source nor a step: did you mean shouted?" in err
    code, out, _ = call("validate", file, *SET, "--json")
    assert code == 2 and [each["line"] for each in json.loads(out)["problems"]] == [4, 10]
    for command in ("run", "explain", "status"):
        code, _, err = call(command, file, *SET)
        assert code == 2 and "did you mean shouted?" in err


def test_what_is_not_there_is_4_and_wrong_usage_2(call: Call, file: Path, tmp_path: Path) -> None:
    assert call("validate", tmp_path / "nothing.yaml")[0] == 4
    code, _, err = call("status", file, *SET)
    assert code == 4 and "copy has not run yet" in err
    code, _, err = call("run", file, *SET, "--master", "local[1]", "--remote", "sc://nowhere")
    assert code == 2 and "not both" in err
    code, _, err = call("validate", file)
    assert code == 2 and "BROKERS is not set" in err
    # Before Spark starts.
    code, _, err = call("run", file, *SET, "--py-files", f"{file}, {tmp_path}/gone.py")
    assert code == 4 and f"{tmp_path}/gone.py: no such file" in err and "starting Spark" not in err


def test_the_tree_needs_no_spark(call: Call, file: Path) -> None:
    code, out, _ = call("explain", file, *SET)
    assert code == 0 and "out → topic t-out, key id, json, exactly-once at 127.0.0.1:9" in out
    assert "   └─ rows  topic t, json at 127.0.0.1:9" in out
    assert json.loads(call("explain", file, *SET, "--json")[1])["tables"]["shouted"]["inputs"] == ["rows"]


def test_spark_and_the_brokers_are_asked_where_that_is_wanted(
    call: Call,
    file: Path,
    ottla_address: str,
    topic_name: str,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ottla.cli.pipeline.spark_for", lambda *_: contextlib.nullcontext(spark.newSession()))
    given = ("--set", f"BROKERS={ottla_address}", "--set", f"TOPIC={topic_name}")
    code, _, err = call("validate", file, *given, "--deep")
    assert code == 2 and f"sources.rows.topic: there is no topic {topic_name} at {ottla_address}" in err
    with ottla.Admin(ottla_address) as admin:
        admin.create_topic(topic_name, 2)
        admin.create_topic(f"{topic_name}-out", 2)
    assert call("validate", file, *given, "--deep")[0] == 0
    code, out, _ = call("explain", file, *given, "--schemas", "--plan")
    assert (
        code == 0
        and "(id bigint, name string, size int)" in out
        and "SubqueryAlias rows" in out.partition("== out\n")[2]
    )
    file.write_text(FILE.replace("upper(name)", "upper(nam)"))
    for command in (("validate", "--deep"), ("explain", "--schemas"), ("run",)):
        code, _, err = call(command[0], file, *given, *command[1:])
        assert code == 2 and "steps.shouted: A column" in err and "`nam` cannot be resolved" in err, command
        assert len(err.splitlines()) < 5, err
    code, out, _ = call("status", file, *given)
    assert code == 0 and "copy: failed" in out and "\nsteps.shouted: A column" in out
    # Something that is down is no fault of the file's.
    file.write_text(
        FILE.replace("shouted: SELECT", "shouted: {python: own.py:ask, inputs: rows}\n  x: SELECT")
    )
    file.with_name("own.py").write_text("def ask(rows):\n    raise ConnectionError('the registry is down')\n")
    for command in (("validate", "--deep"), ("explain", "--schemas"), ("run",)):
        code, _, err = call(command[0], file, *given, *command[1:])
        assert code == 1 and "steps.shouted: the registry is down" in err, (command, err)


def send(address: str, topic: str, numbers: range) -> None:
    with ottla.Producer(address) as producer:
        for number in numbers:
            value = json.dumps({"id": number, "name": f"n{number}"})
            producer.send(topic, value.encode(), partition=number % 2)


def copied(address: str, topic: str, count: int) -> list[Any]:
    """Committed values, until there are so many, and whatever comes with them."""
    found: list[Any] = []
    with ottla.Consumer(address, auto_offset_reset="earliest", isolation_level="read_committed") as consumer:
        consumer.assign([(topic, 0), (topic, 1)])
        deadline_s = time.monotonic() + PATIENCE_S
        while len(found) < count and time.monotonic() < deadline_s:
            found += [json.loads(record.value) for batch in consumer.poll(100).values() for record in batch]
        found += [json.loads(record.value) for batch in consumer.poll(200).values() for record in batch]
    return found


@pytest.mark.timeout(300)
def test_it_runs_tells_of_itself_stops_cleanly_goes_on_and_fails_in_a_few_lines(
    call: Call,
    file: Path,
    ottla_address: str,
    topic_name: str,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with ottla.Admin(ottla_address) as admin:
        admin.create_topic(topic_name, 2)
        admin.create_topic(f"{topic_name}-out", 2)
    given = ("--set", f"BROKERS={ottla_address}", "--set", f"TOPIC={topic_name}")
    command = [sys.executable, "-m", "ottla.cli", "pipeline", "run", str(file), *given, "--json"]
    send(ottla_address, topic_name, range(2000))
    process = subprocess.Popen(
        [*command, "--master", "local[2]"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        deadline_s = time.monotonic() + PATIENCE_S
        known: Any = {"queries": {"out": {}}}
        while known["queries"]["out"].get("rows", 0) < 2000:
            assert process.poll() is None and time.monotonic() < deadline_s, known
            time.sleep(0.2)
            code, out, _ = call("status", file, *given, "--json")
            known = json.loads(out) if code == 0 else known
        assert known["state"] == "running" and known["pid"] == process.pid
        last = known["queries"]["out"]["last"]
        assert last["batch"] >= 2 and last["lag"] == {f"{topic_name}-0": 0, f"{topic_name}-1": 0}
        # As Ctrl-C at a terminal: the whole group hears it, Java and the workers too.
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
    assert process.returncode == 0, err
    assert "stopping" in err and "out: stopped" in err and "Traceback" not in err
    # Spark's own words are in a file.
    assert "WARN" not in err and (file.parent / "kept" / "spark.log").is_file()
    ended = json.loads(out)["queries"]["out"]
    assert ended["state"] == "stopped" and ended["rows"] == 2000 and ended["cause"] is None
    code, out, _ = call("status", file, *given)
    assert code == 0 and "copy: stopped" in out and f"{topic_name}-1" in out
    with ottla.Admin(ottla_address) as admin:
        # The group hears of a batch when the next one is asked for, which the end may forestall.
        assert sum(admin.group_offsets("copying").values()) >= 1400

    # It goes on where it was, on the Spark that is here, and ends at a record that cannot be read.
    assert len(copied(ottla_address, f"{topic_name}-out", 2000)) == 2000
    send(ottla_address, topic_name, range(2000, 3000))
    with ottla.Producer(ottla_address) as producer:
        producer.send(topic_name, b"no json", partition=0)
    monkeypatch.setattr("ottla.cli.pipeline.spark_for", lambda *_: contextlib.nullcontext(spark.newSession()))
    code, out, err = call("run", file, *given, "--once")
    assert code == 1, err
    assert "out failed: the record at" in err and "not JSON of the schema: no json" in err
    assert len(err.splitlines()) < 12, err
    ids = sorted(each["id"] for each in copied(ottla_address, f"{topic_name}-out", 2700))
    # Batches before the bad one are there, none twice.
    assert len(ids) == len(set(ids)) and len(ids) == 2700
    assert json.loads(call("status", file, *given, "--json")[1])["state"] == "failed"
