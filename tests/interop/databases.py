"""Redis, MariaDB and PostgreSQL, each in a process of its own on the loopback, with its data in a folder that goes away.

The machine's own programs are taken if it has them. Else Debian's packages are fetched and unpacked beside this file, without
root and without installing anything: `apt-get` says what is missing, `dpkg-deb -x` unpacks it.
"""

import getpass
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pymysql
import pytest
import redis

from bench.process import free_port
from tests.interop.programs import CACHE, run

START_S_MAX = 60
_DEBIAN = CACHE / "debian"
#: They begin with `mysql_` or, in newer versions, with `mariadb_`.
_SCRIPTS = ("*_system_tables.sql", "*_performance_tables.sql", "*_system_tables_data.sql")


# --- Debian's packages ------------------------------------------------------------------------------------------


def fetch(package: str) -> Path:
    """The folder that a package and whatever it needs, and the machine lacks, are unpacked in."""
    home = _DEBIAN / package
    if home.is_dir():
        return home
    arriving = _DEBIAN / f"{package}-arriving"
    shutil.rmtree(arriving, ignore_errors=True)
    (arriving / "packages").mkdir(parents=True)
    apt = ["apt-get", "-q"]
    try:
        said = run([*apt, "install", "--print-uris", "--yes", "--no-install-recommends", package])
    except AssertionError:
        # The machine has thrown its lists away: get some of our own.
        lists = arriving / "lists"
        (lists / "partial").mkdir(parents=True)
        apt += ["-o", f"Dir::State::Lists={lists}", "-o", f"Dir::Cache={arriving}/cache"]
        run([*apt, "update"])
        said = run([*apt, "install", "--print-uris", "--yes", "--no-install-recommends", package])
    names = re.findall(r"^'\S+' ([^\s_]+)_", said.out, re.MULTILINE)
    run([*apt, "download", *names], folder=arriving / "packages")
    for archive in (arriving / "packages").glob("*.deb"):
        run(["dpkg-deb", "-x", str(archive), str(arriving)])
    shutil.rmtree(arriving / "packages")
    shutil.rmtree(arriving / "lists", ignore_errors=True)
    # Renamed at the end, so that an interrupted fetch is not taken for a whole one.
    arriving.rename(home)
    return home


def find(program: str, package: str, lacking: str) -> tuple[Path, dict[str, str]]:
    """A program and the environment that it needs; skips the test if it can be had nowhere."""
    found = shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin")
    if found is not None:
        return Path(found), {}
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        pytest.skip(lacking)
    home = fetch(package)
    libraries = ":".join(str(folder) for folder in (home / "usr" / "lib").glob("*-linux-gnu*"))
    [path] = [
        path for path in (home / "usr" / "bin" / program, home / "usr" / "sbin" / program) if path.exists()
    ]
    return path, {"LD_LIBRARY_PATH": libraries}


# --- servers ----------------------------------------------------------------------------------------------------


@contextmanager
def serving(
    command: list[str],
    environment: dict[str, str],
    directory: Path,
    is_ready: Callable[[], bool],
    user: str | None = None,
) -> Iterator[None]:
    """The server runs within; what it says is in the folder."""
    with (directory / "said").open("wb") as said:
        process = subprocess.Popen(
            command,
            cwd=directory,
            stdout=said,
            stderr=subprocess.STDOUT,
            env={**os.environ, **environment},
            user=user,
        )
    try:
        deadline = time.monotonic() + START_S_MAX
        while not is_ready():
            words = (directory / "said").read_text(errors="replace")
            assert process.poll() is None, f"{command[0]} ended:\n{words}"
            assert time.monotonic() < deadline, f"{command[0]} does not answer:\n{words}"
            time.sleep(0.02)
        yield
    finally:
        process.kill()
        process.wait(START_S_MAX)


@contextmanager
def redis_server(directory: Path) -> Iterator[int]:
    """The port of a Redis that has everything on the disk before it answers."""
    program, environment = find("redis-server", "redis-server", "neither redis-server nor apt-get is here")
    port = free_port()
    command = [
        str(program), "--port", str(port), "--bind", "127.0.0.1", "--dir", str(directory), "--save", "",
        "--appendonly", "yes", "--appendfsync", "always",
    ]  # fmt: skip

    def is_ready() -> bool:
        with redis.Redis(port=port) as client:
            try:
                return bool(client.ping())
            except redis.exceptions.ConnectionError:
                return False

    with serving(command, environment, directory, is_ready):
        yield port


@contextmanager
def mariadb_server(directory: Path) -> Iterator[int]:
    """The port of a MariaDB with an empty database `totals` and a root without a password."""
    program, environment = find("mariadbd", "mariadb-server-core", "neither MariaDB nor apt-get is here")
    base, data, port = program.parents[1], directory / "data", free_port()
    data.mkdir()
    common = [
        str(program),
        "--no-defaults",
        f"--basedir={base}",
        f"--datadir={data}",
        f"--user={getpass.getuser()}",
    ]
    scripts = "".join(next((base / "share" / "mysql").glob(name)).read_text() for name in _SCRIPTS)
    first = "create database mysql;\nuse mysql;\nset @auth_root_socket=null;\nset @skip_auth_anonymous=1;\n"
    run(
        [*common, "--bootstrap", "--skip-networking"], environment=environment, folder=directory,
        text=f"{first}{scripts}\ncreate database totals;\n",
    )  # fmt: skip

    def is_ready() -> bool:
        try:
            pymysql.connect(host="127.0.0.1", port=port, user="root").close()
        except pymysql.err.OperationalError:
            return False
        return True

    command = [*common, f"--port={port}", "--bind-address=127.0.0.1", f"--socket={directory}/socket"]
    with serving(command, environment, directory, is_ready):
        yield port


def find_postgresql() -> tuple[Path, dict[str, str]]:
    """The folder of PostgreSQL's programs, which Debian does not put on the path, and the environment that they need."""
    found = shutil.which("postgres")
    if found is not None:
        return Path(found).resolve().parent, {}
    homes = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    if homes:
        return homes[-1].parent, {}
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        pytest.skip("neither PostgreSQL nor apt-get is here")
    home = fetch("postgresql")
    libraries = ":".join(str(folder) for folder in (home / "usr" / "lib").glob("*-linux-gnu*"))
    [program] = (home / "usr" / "lib" / "postgresql").glob("*/bin/postgres")
    return program.parent, {"LD_LIBRARY_PATH": libraries}


@contextmanager
def postgresql_server(directory: Path) -> Iterator[int]:
    """The port of a PostgreSQL with a user and a database `totals`, without a password. It does not run as root: then it is nobody."""
    programs, environment = find_postgresql()
    port = free_port()
    user = "nobody" if os.geteuid() == 0 else None
    # Beside the test's folder, which belongs to its user alone.
    with tempfile.TemporaryDirectory(prefix="postgresql-", ignore_cleanup_errors=True) as home:
        if user is not None:
            shutil.chown(home, user)
        data = Path(home) / "data"
        made = subprocess.run(
            [str(programs / "initdb"), "-D", str(data), "-U", "totals", "-A", "trust", "--no-sync", "-E", "UTF8"],
            check=False, capture_output=True, text=True, timeout=START_S_MAX, user=user, cwd=home,
            env={**os.environ, **environment},
        )  # fmt: skip
        assert made.returncode == 0, made.stdout + made.stderr

        def is_ready() -> bool:
            try:
                with psycopg.connect(
                    f"host=127.0.0.1 port={port} user=totals dbname=postgres", autocommit=True
                ) as made:
                    made.execute("CREATE DATABASE totals")
            except psycopg.OperationalError:
                return False
            return True

        command = [
            str(programs / "postgres"), "-D", str(data), "-p", str(port), "-c", "listen_addresses=127.0.0.1",
            "-c", f"unix_socket_directories={home}",
        ]  # fmt: skip
        with serving(command, environment, directory, is_ready, user):
            yield port
