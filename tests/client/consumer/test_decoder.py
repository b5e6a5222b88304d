import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

import ottla
from ottla.client.consumer import decoder
from ottla.client.consumer.decoder import AUTO_RECORDS, DecoderSelector
from ottla.client.errors import SettingError
from ottla.records import pieces

PATIENCE_S = 60


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> decoder._Loader:
    """A process that has loaded nothing yet."""
    loader = decoder._Loader()
    monkeypatch.setattr(decoder, "_loader", loader)
    return loader


def wait_for(loader: decoder._Loader) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not loader._tried or loader._lock.locked():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_the_compiled_twin_comes_after_enough_records(fresh: decoder._Loader) -> None:
    compiled = pytest.importorskip("ottla.records.compiled", reason="numba is not here")
    mine = DecoderSelector("auto")
    mine.read(AUTO_RECORDS - 1)
    assert fresh._thread is None and mine.twin is pieces
    mine.read(1)
    wait_for(fresh)
    mine.read(1)
    assert mine.twin is compiled
    # Another consumer of the process waits for its own volume, and for nothing else.
    other = DecoderSelector("auto")
    other.read(AUTO_RECORDS)
    assert other.twin is compiled


def test_who_wants_pure_python_keeps_it(fresh: decoder._Loader) -> None:
    mine = DecoderSelector("pure")
    mine.read(AUTO_RECORDS * 10)
    assert mine.twin is pieces and fresh._thread is None


def test_who_wants_the_compiled_one_has_it_at_once_or_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ottla.records.compiled", None)
    with pytest.raises(SettingError, match=r"needs numba: install ottla\[fast\]"):
        DecoderSelector("compiled")


def test_without_numba_it_is_looked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []
    monkeypatch.setattr(decoder, "find_spec", looked.append)
    mine = DecoderSelector("auto")
    for _ in range(5):
        mine.read(AUTO_RECORDS)
    assert looked == ["numba"] and mine.twin is pieces


def test_a_compiler_that_fails_is_told_once_and_done_without(
    fresh: decoder._Loader, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("numba")
    monkeypatch.delitem(sys.modules, "ottla.records.compiled", raising=False)
    monkeypatch.setattr("numba.njit", lambda *_, **__: 1 / 0)
    for _ in range(2):
        mine = DecoderSelector("auto")
        mine.read(AUTO_RECORDS)
        wait_for(fresh)
        mine.read(1)
        assert mine.twin is pieces
    assert [record.message for record in caplog.records] == [
        "numba cannot be used (division by zero): records are decoded in pure Python"
    ]


def test_a_package_that_cannot_be_written_to_is_compiled_all_the_same(tmp_path: Path) -> None:
    """The cache goes to the user's own folder; where there is none either, nothing is kept."""
    pytest.importorskip("numba")
    package = tmp_path / "ottla"
    shutil.copytree(
        Path(ottla.__file__).parent,
        package,
        ignore=shutil.ignore_patterns("__pycache__", "broker"),
    )
    # Numba tries by writing: a file in the way of its folder is a folder that cannot be written, for root as well.
    (package / "records" / "__pycache__").write_text("")
    home = tmp_path / "home"
    home.write_text("")
    code = (
        "from ottla.records import compiled, record\n"
        "batch = record.encode_batch([record.Record(0, 0, None, b'v')] * 20)\n"
        "print(compiled.__file__, len(list(compiled.open_rows(batch).take(99, 't', 0, ''))))"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "HOME": str(home), "XDG_CACHE_HOME": str(home)}
    environment.pop("NUMBA_CACHE_DIR", None)
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.stdout.split() == [str(package / "records" / "compiled.py"), "20"], done.stderr


def test_no_broker_loads_what_only_consumers_need() -> None:
    code = (
        "import sys, ottla\n"
        "with ottla.Broker() as broker:\n"
        "    with ottla.Producer(broker.address) as producer: producer.send('t', b'v').result(30)\n"
        "    with ottla.Consumer(broker.address, auto_offset_reset='earliest') as consumer:\n"
        "        consumer.assign([('t', 0)])\n"
        "        assert consumer.poll(30_000)\n"
        "print({'numpy', 'numba', 'pyarrow'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.stdout.strip() == "set()", done.stderr
