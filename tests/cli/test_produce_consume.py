import os
import pty
import signal
import subprocess
import sys
import time
from typing import Any

import pytest


def test_lines_in_lines_out(run: Any, made: str) -> None:
    ended = run("produce", made, "--partition", "0", stdin="one\ntwo\r\n\nthree")
    assert ended.code == 0 and "4 message(s)" in ended.err
    assert run("consume", made, "-B", "-e").out == "one\ntwo\n\nthree\n"


def test_keys_headers_times_and_nulls(run: Any, made: str) -> None:
    arguments = (
        "-K",
        ":",
        "-H",
        "a=1",
        "-H",
        "b=2",
        "-t",
        "2023-11-14T22:13:20Z",
        "--null",
        "gone",
        "-p",
        "1",
    )
    assert run("produce", made, *arguments, stdin="k1:v1\nk2:gone\n").code == 0
    text = run("consume", made, "-B", "-e", "--key", "--headers", "--timestamp", "--offsets").out
    assert text == (
        "2023-11-14T22:13:20.000Z\t1:0\ta=1,b=2\tk1\tv1\n2023-11-14T22:13:20.000Z\t1:1\ta=1,b=2\tk2\tnull\n"
    )
    rows = run("consume", made, "-B", "-e", "--json").json_lines
    assert rows[1] == {
        "topic": made,
        "partition": 1,
        "offset": 1,
        "timestamp": 1_700_000_000_000,
        "timestamp_type": "CreateTime",
        "key": "k2",
        "value": None,
        "headers": [["a", "1"], ["b", "2"]],
    }


def test_one_message_prints_its_partition_and_offset(run: Any, made: str) -> None:
    ended = run("produce", made, "--value", "hello", "--key", "k", "--json")
    assert ended.json["topic"] == made
    assert ended.json["offset"] == 0


def test_json_lines_of_consume_can_be_produced(run: Any, made: str) -> None:
    line = '{"key": "k", "value": "v", "headers": [["h", "1"]], "partition": 1, "timestamp": 1700000000000}'
    assert run("produce", made, "--input", "json", stdin=line).code == 0
    (row,) = run("consume", made, "-B", "-e", "--json").json_lines
    assert (row["key"], row["value"], row["headers"], row["partition"]) == ("k", "v", [["h", "1"]], 1)
    ended = run("produce", made, "--input", "json", stdin="{nonsense")
    assert ended.code == 1 and "not JSON" in ended.err


@pytest.mark.parametrize("form", ["hex", "base64"])
def test_binary_goes_both_ways(run: Any, made: str, form: str) -> None:
    text = {"hex": "00ff10", "base64": "AP8Q"}[form]
    assert run("produce", made, "--value", text, "--format", form).code == 0
    assert run("consume", made, "-B", "-e", "--format", form).out == f"{text}\n"
    assert run("consume", made, "-B", "-e").out == "\x00\\xff\x10\n"
    assert run("produce", made, "--value", "???", "--format", form).code == 2


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("acks", ["all", "1"])
def test_every_codec(run: Any, made: str, codec: str, acks: str) -> None:
    lines = "".join(f"line {number}\n" for number in range(300))
    assert run("produce", made, "-z", codec, "--acks", acks, "-p", "0", stdin=lines).code == 0
    assert run("consume", made, "-B", "-e").out == lines


def test_from_an_offset_from_the_end_and_from_a_time(run: Any, made: str) -> None:
    for number in range(5):
        stamp = str(1_700_000_000_000 + number * 1000)
        assert run("produce", made, "-v", str(number), "-p", "0", "-t", stamp).code == 0
    assert run("consume", made, "-p", "0", "--offset", "3", "-e").out == "3\n4\n"
    assert run("consume", made, "-p", "0", "--offset", "-2", "-e").out == "3\n4\n"
    assert run("consume", made, "-p", "0", "--time", "1700000001500", "-e").out == "2\n3\n4\n"
    assert run("consume", made, "-p", "0", "--time", "2023-11-14T22:13:24Z", "-e").out == "4\n"
    assert run("consume", made, "-p", "0", "--time", "-1h", "-e").out == ""
    assert run("consume", made, "-p", "0", "-B", "-n", "2").out == "0\n1\n"
    assert run("consume", made, "-p", "1", "-B", "-e").out == ""


def test_a_time_without_messages_ends_it(run: Any, made: str) -> None:
    ended = run("consume", made, "--timeout", "0.3")
    assert ended.code == 0
    assert "no message for 0.3 s" in ended.err


def test_what_is_not_there_is_4(run: Any, made: str) -> None:
    assert run("consume", "no-such-topic").code == 4
    ended = run("consume", made, "--partition", "9")
    assert ended.code == 4 and "its partitions are 0 to 1" in ended.err
    assert run("produce", made, "-v", "x", "-p", "9").code == 4


def test_a_group_continues_at_its_committed_offsets(run: Any, made: str) -> None:
    run("produce", made, "--partition", "0", stdin="a\nb\nc\n")
    arguments = ["consume", made, "--group", made, "--from-beginning", "--max-messages"]
    assert run(*arguments, "2").out == "a\nb\n"
    assert run(*arguments, "1").out == "c\n"
    assert run("group", "describe", made).code == 0
    refused = run("consume", made, "--group", made, "--offset", "1")
    assert refused.code == 2 and "--group cannot be used with --offset" in refused.err


def test_wrong_usage_is_2(run: Any, made: str) -> None:
    assert run("consume", made, "-B", "--offset", "3").code == 2
    assert run("consume", made, "--time", "yesterday").code == 2
    assert run("produce", made, "-K", ":", stdin="no separator\n").code == 2
    assert run("produce", made, "-v", "x", "-K", ":").code == 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_consume_stops_cleanly_and_says_so(
    run: Any, ottla_address: str, made: str, number: signal.Signals
) -> None:
    assert run("produce", made, "-v", "first").code == 0
    process = subprocess.Popen(
        [sys.executable, "-m", "ottla.cli", "consume", made, "-B", "-b", ottla_address],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "first\n"
    process.send_signal(number)
    errors = process.communicate(timeout=30)[1]
    assert process.returncode == 0
    assert "stopped" in errors and "1 message(s)" in errors


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_produce_has_all_messages_that_it_reports(
    run: Any, ottla_address: str, made: str, number: signal.Signals
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "ottla.cli", "produce", made, "-p", "0", "-b", ottla_address],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdin is not None
    os.set_blocking(process.stdin.fileno(), False)
    # Written until some messages arrived, so that the signal hits a working command.
    deadline = time.monotonic() + 30
    while run("topic", "describe", made, "--json").json[0]["partitions"][0]["end"] == 0:
        assert time.monotonic() < deadline
        for _ in range(50):
            try:
                os.write(process.stdin.fileno(), b"line\n" * 500)
            except BlockingIOError:
                break
    process.send_signal(number)
    assert process.stderr is not None
    errors = process.stderr.read().decode()
    assert process.wait(30) == 130
    process.stderr.close()
    process.stdin.close()
    assert "all acknowledged" in errors
    counted = int(errors.partition("after ")[2].split()[0])
    end = run("topic", "describe", made, "--json").json[0]["partitions"][0]["end"]
    assert counted == end > 0


def test_at_a_terminal_a_line_is_acknowledged_when_it_is_typed(
    run: Any, ottla_address: str, made: str
) -> None:
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "ottla.cli", "produce", made, "-p", "0", "--json", "-b", ottla_address],
        stdin=slave,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    os.close(slave)
    os.write(master, b"typed\n")
    assert process.stdout is not None
    assert '"offset": 0' in process.stdout.readline()
    os.write(master, b"\x04")
    assert "end with Ctrl-D" in process.communicate(timeout=30)[1]
    assert process.returncode == 0
    os.close(master)
