import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ottla.cli.demo import free_port as port_for_demo
from ottla.cli.progress import percentile

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "pipelines"


def test_each_bench_prints_its_figures(run: Any, topic_name: str) -> None:
    (produced,) = run("bench", "produce", "-t", topic_name, "-n", "5000", "-s", "100", "--json").json
    assert produced["what"] == "produce" and produced["messages"] == 5000 and produced["messages_per_s"] > 0
    (consumed,) = run("bench", "consume", "-t", topic_name, "-n", "5000", "--json").json
    assert consumed["messages"] == 5000
    (latency,) = run("bench", "latency", "-t", f"{topic_name}-l", "-n", "50", "--json").json
    assert 0 < latency["p50_ms"] <= latency["p99_ms"] <= latency["p999_ms"]
    assert "MESSAGES/S" in run("bench", "latency", "-t", f"{topic_name}-l", "-n", "20").out


def test_an_empty_topic_cannot_be_consumed(run: Any, made: str) -> None:
    ended = run("bench", "consume", "-t", made)
    assert ended.code == 1 and "ottla bench produce" in ended.err


def test_the_demo_loses_nothing_and_exits_0_without_a_terminal(run_anywhere: Any) -> None:
    ended = run_anywhere("demo", "--seconds", "1.5", "--rate", "500", "--no-pipeline", "--json")
    assert ended.code == 0, ended.err
    assert ended.json["ok"] and ended.json["produced"] == ended.json["consumed"] > 0


def test_the_demo_takes_a_free_port_if_its_own_is_taken(run_anywhere: Any) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        ended = run_anywhere("demo", "--seconds", "0.5", "--port", str(port), "--no-pipeline")
    assert ended.code == 0, ended.err
    assert f"port {port} is in use" in ended.err
    assert "all in order, none lost" in ended.out


def test_without_spark_the_demo_says_how_to_get_it_and_goes_on(tmp_path: Path) -> None:
    """In a separate interpreter that cannot import Spark."""
    hidden = "import importlib.util as u\nfound = u.find_spec\nu.find_spec = lambda name: None if name == 'pyspark' else found(name)\n"
    (tmp_path / "sitecustomize.py").write_text(hidden)
    path = os.pathsep.join([str(tmp_path), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
    arguments = ["demo", "--seconds", "0.5", "--port", "0", "--json", "--examples", str(EXAMPLES)]
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-m", "ottla.cli", *arguments],
        capture_output=True, text=True, timeout=60, env={**os.environ, "PYTHONPATH": path}, check=False,
    )  # fmt: skip
    assert ended.returncode == 0 and "Traceback" not in ended.stderr, ended.stderr
    shown = json.loads(ended.stdout)
    assert shown["examples"] is None
    assert "no pipeline: pyspark is not installed: pip install 'ottla[spark]'" in ended.stderr
    assert shown["ok"] and shown["consumed"] > 0 and shown["pipeline"]["exactly_once"] is None


def test_the_demo_says_which_example_is_not_there(run_anywhere: Any, tmp_path: Path) -> None:
    for name in ("sessions.yaml", "wordcount.py", "generate.py"):
        (tmp_path / name).touch()
    ended = run_anywhere("demo", "--port", "0", "--examples", str(tmp_path))
    assert ended.code == 4 and f"{tmp_path}/orders.yaml: no such file" in ended.err
    assert "listens" not in ended.err


def test_a_free_port_is_kept(free_port: int) -> None:
    assert port_for_demo(free_port) == free_port


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_demo_stops_cleanly(free_port: int, number: signal.Signals) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "ottla.cli", "demo", "--port", str(free_port), "--no-pipeline"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    assert "listens on" in process.stderr.readline()
    process.send_signal(number)
    out, errors = process.communicate(timeout=30)
    assert process.returncode == 0, errors
    assert "stopping" in errors
    assert "none lost" in out


def test_percentiles() -> None:
    values = [float(number) for number in range(1, 101)]
    assert percentile(values, 0.5) == pytest.approx(50, abs=1)
    assert percentile(values, 0.99) == pytest.approx(99, abs=1)
    assert percentile([3.0], 0.999) == 3.0
