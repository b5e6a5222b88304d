"""`ottla up --brokers N`: a whole cluster as one command."""

import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.cluster.running_cluster import PATIENCE_S, free_ports, wait_until
from tests.crash.broker_process import BrokerProcess, Wire


class Up:
    """The command as a person runs it."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        command = [
            sys.executable,
            "-m",
            "ottla.cli",
            "up",
            "--listen",
            "127.0.0.1:0",
            "--data-dir",
            str(directory),
        ]
        self.process = subprocess.Popen([*command, *arguments], stderr=subprocess.PIPE, text=True)
        self.said: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        self.said.extend(iter(self.process.stderr.readline, ""))

    def words(self) -> str:
        return "".join(self.said)

    def wait_for(self, words: str) -> str:
        def is_said() -> bool:
            return any(words in line for line in list(self.said)) or self.process.poll() is not None

        wait_until(is_said, words)
        found = [line for line in list(self.said) if words in line]
        assert found, self.words()
        return found[0]

    def rows(self) -> dict[str, list[str]]:
        """The table: what is in a line behind the name of a broker or of ZooKeeper."""
        self.wait_for("stop all with Ctrl-C")
        found = (re.match(r"(broker \d+|ZooKeeper)  +(.*)", line) for line in self.said)
        return {row[1]: row[2].split() for row in found if row}

    def end(self) -> int:
        code = self.process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)
        return code


@contextmanager
def up(directory: Path, *arguments: str) -> Iterator[Up]:
    running = Up(directory, *arguments)
    try:
        yield running
    finally:
        if running.process.poll() is None:
            running.process.kill()
        running.end()
        assert running.process.stderr is not None
        running.process.stderr.close()


def is_alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        if os.path.isdir("/proc/self"):
            return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def api_versions(address: str) -> Any:
    with Wire(address) as wire:
        return wire.ask(18, 0)


def test_a_cluster_is_shown_in_one_table_and_stopped_by_one_signal(tmp_path: Path) -> None:
    with up(tmp_path / "data", "--brokers", "3") as cluster:
        rows = cluster.rows()
        assert sorted(rows) == ["ZooKeeper", "broker 1", "broker 2", "broker 3"]
        for number in (1, 2, 3):
            address, pid, data = rows[f"broker {number}"]
            assert api_versions(address).api_keys
            assert Path(data, "ottla.pid").read_text() == f"{pid}\n"
        cluster.process.send_signal(signal.SIGINT)
        assert cluster.end() == 0
        assert cluster.said[-1] == "stopped cleanly\n"
        assert not any(is_alive(int(pid)) for _address, pid, _data in rows.values())
        for number in (1, 2, 3):
            assert (tmp_path / "data" / f"broker-{number}" / ".kafka_cleanshutdown").exists()
    # The folders in it look like partitions of a topic "broker": no broker alone may touch them.
    alone = BrokerProcess(tmp_path / "data", 0).spawn()
    assert alone.end() == 1
    assert (
        f"{tmp_path / 'data'} is the directory of a local cluster: start it with --brokers 3" in alone.words
    )


def test_a_broker_that_dies_is_told_of_and_left_dead(tmp_path: Path) -> None:
    with up(tmp_path / "data", "--brokers", "2") as cluster:
        address, pid, data = cluster.rows()["broker 2"]
        os.kill(int(pid), signal.SIGKILL)
        line = cluster.wait_for(
            f"broker 2 (pid {pid}) was killed by signal 9; restart it with: ottla broker "
        )
        with restarted(line) as again:
            # On the port that clients know, and on its own data.
            assert api_versions(address).api_keys
            assert Path(data, "ottla.pid").read_text() == f"{again.pid}\n"
            again.terminate()
            assert again.wait(PATIENCE_S) == 0
        cluster.process.terminate()
        assert cluster.end() == 0


@contextmanager
def restarted(line: str) -> Iterator[subprocess.Popen[str]]:
    """A broker started by the command that the supervisor printed, once it listens."""
    command = line.partition("restart it with: ottla ")[2].split()
    again = subprocess.Popen([sys.executable, "-m", "ottla.cli", *command], stderr=subprocess.PIPE, text=True)
    assert again.stderr is not None
    said = []
    try:
        for words in again.stderr:
            said.append(words)
            if " listens on " in words:
                break
        else:
            raise AssertionError(f"it does not start: {said}")
        reader = threading.Thread(target=again.stderr.read, daemon=True)
        reader.start()
        yield again
        again.wait(PATIENCE_S)
        reader.join(PATIENCE_S)
    finally:
        if again.poll() is None:
            again.kill()
            again.wait()
        again.stderr.close()


def test_brokers_that_were_restarted_by_hand_keep_the_cluster_alive(tmp_path: Path) -> None:
    with up(tmp_path / "data", "--brokers", "2") as cluster:
        rows = cluster.rows()
        zookeeper = int(rows["ZooKeeper"][1])
        os.kill(int(rows["broker 2"][1]), signal.SIGKILL)
        with restarted(cluster.wait_for("broker 2 (pid ")) as again:
            cluster.wait_for(f"broker 2 runs again (pid {again.pid})")
            # The last one that the supervisor started itself.
            os.kill(int(rows["broker 1"][1]), signal.SIGKILL)
            cluster.wait_for("broker 1 (pid ")
            # It looks once a second: several looks later all is as it was.
            wait_until(lambda: leader_is(rows["broker 2"][0], 2), "broker 2 controls")
            assert cluster.process.poll() is None and is_alive(zookeeper)
            os.kill(again.pid, signal.SIGKILL)
        assert cluster.end() == 1
        assert "no broker is left: stopping ZooKeeper\n" in cluster.said
        assert not is_alive(zookeeper)


def leader_is(address: str, node_id: int) -> bool:
    with Wire(address) as wire:
        answer = wire.ask(3, 9, topics=None, allow_auto_topic_creation=False)
        return bool(answer.controller_id == node_id)


def test_brokers_that_were_restarted_by_hand_are_stopped_with_the_others(tmp_path: Path) -> None:
    with up(tmp_path / "data", "--brokers", "2") as cluster:
        rows = cluster.rows()
        os.kill(int(rows["broker 2"][1]), signal.SIGKILL)
        with restarted(cluster.wait_for("broker 2 (pid ")) as again:
            cluster.wait_for(f"broker 2 runs again (pid {again.pid})")
            cluster.process.send_signal(signal.SIGINT)
            assert cluster.end() == 0, cluster.words()
            assert again.wait(PATIENCE_S) == 0
        for number in (1, 2):
            assert (tmp_path / "data" / f"broker-{number}" / ".kafka_cleanshutdown").exists()


def test_settings_are_in_no_processs_arguments(tmp_path: Path, zookeeper_connect: str) -> None:
    """Everybody on the machine can read those of any process."""
    secret = "ottla:not-for-your-eyes"
    with up(
        tmp_path / "data", "-n", "1", "-z", zookeeper_connect, "-s", f"zookeeper.digest={secret}"
    ) as cluster:
        pid = cluster.rows()["broker 1"][1]
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes() + Path(f"/proc/{pid}/environ").read_bytes()
        assert b"--config" in arguments and b"not-for-your-eyes" not in arguments
        config = tmp_path / "data" / "broker-1.properties"
        assert f"zookeeper.digest={secret}\n" in config.read_text()
        assert config.stat().st_mode & 0o777 == 0o600
        cluster.process.terminate()
        assert cluster.end() == 0
        assert "not-for-your-eyes" not in cluster.words()


def test_brokers_say_at_once_that_zookeeper_is_gone(tmp_path: Path) -> None:
    with up(tmp_path / "data", "--brokers", "2") as cluster:
        os.kill(int(cluster.rows()["ZooKeeper"][1]), signal.SIGKILL)
        for number in (1, 2):
            cluster.wait_for(f"broker {number}: the cluster store cannot be reached (ZooKeeper at 127.0.0.1:")
        cluster.process.send_signal(signal.SIGINT)
        cluster.process.send_signal(signal.SIGTERM)
        cluster.end()


def test_nothing_outlives_a_parent_that_is_killed(tmp_path: Path) -> None:
    with up(tmp_path / "data", "--brokers", "2") as cluster:
        pids = [int(pid) for _address, pid, _data in cluster.rows().values()]
        assert all(map(is_alive, pids))
        cluster.process.kill()
        wait_until(lambda: not any(map(is_alive, pids)), "all processes end with their parent")
    # The brokers have ended in order all the same.
    assert (tmp_path / "data" / "broker-1" / ".kafka_cleanshutdown").exists()


def test_a_cluster_on_a_zookeeper_that_is_there(tmp_path: Path, zookeeper_connect: str) -> None:
    with up(tmp_path / "data", "-n", "1", "-z", zookeeper_connect, "--set", "num.partitions=3") as cluster:
        assert cluster.rows()["ZooKeeper"] == [zookeeper_connect]
        assert not (tmp_path / "data" / "zookeeper").exists()
        cluster.process.terminate()
        assert cluster.end() == 0


def test_a_broker_that_cannot_start_stops_all(tmp_path: Path, zookeeper_connect: str) -> None:
    port = next(free_ports())
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port + 1))
        arguments = ("-n", "2", "--listen", f"127.0.0.1:{port}", "--zookeeper", zookeeper_connect)
        with up(tmp_path / "data", *arguments) as cluster:
            assert cluster.end() == 1
            assert f"broker 2: ottla: cannot listen on 127.0.0.1:{port + 1}" in cluster.words()
            assert "broker 2 ended with status 1 before it could serve" in cluster.words()
    assert not (tmp_path / "data" / "broker-1" / "ottla.pid").exists()


def test_what_cannot_be_is_said_at_once(tmp_path: Path) -> None:
    for arguments, words in (
        (["--brokers", "0"], "--brokers 0 is not possible"),
        (["--brokers", "2", "--set", "node.id=4"], "--set node.id cannot be used with --brokers"),
        (["--brokers", "2", "--set", "num.partition=4"], "did you mean num.partitions?"),
    ):
        with up(tmp_path / "data", *arguments) as cluster:
            assert cluster.end() in (1, 2)
            assert words in cluster.words()
    BrokerProcess(tmp_path / "single", 0).start().stop()
    with up(tmp_path / "single", "--brokers", "2") as cluster:
        assert cluster.end() == 1
        assert "has the data of a single broker" in cluster.words()
