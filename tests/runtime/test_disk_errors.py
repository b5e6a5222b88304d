"""The errno table: each errno at each call site of the disk, and the reaction of a broker."""

import errno
import itertools
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ottla.broker.storage import checkpoint_writer, log_maintenance
from ottla.metadata import records as r
from ottla.ports.disk import DiskError
from ottla.records.record import Record, encode_batch
from ottla.runtime import disk as module
from ottla.runtime.disk import SystemDisk
from ottla.runtime.disk_errors import CALL_SITES, ERRNO_CLASSES, ErrnoClass, errno_class, render
from ottla.runtime.embedded_store import EmbeddedStore
from ottla.server.embedded import Broker
from tests.peer import CREATE_TOPICS, DELETE_TOPICS, PATIENCE_S, PRODUCE, Peer

ERRNOS = [name for name in ERRNO_CLASSES if hasattr(errno, name)]
STORAGE_ERROR = 56


class Injected:
    """The `os` module as `runtime/disk.py` sees it, with one function that fails for chosen paths."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self.met = 0

    def fail(
        self, name: str, number: int, when: Callable[..., bool] = lambda *_: True, times: int = 1 << 30
    ) -> None:
        """`name` is a function of os, or one that disk.py imports."""
        owner: Any = module if hasattr(module, name) and name != "open" else os
        real = getattr(owner, name)
        left = itertools.count()

        def call(*arguments: Any, **more: Any) -> Any:
            if when(*arguments) and next(left) < times:
                self.met += 1
                raise OSError(number, os.strerror(number))
            return real(*arguments, **more)

        if owner is os:
            # Only for disk.py: the test itself, and asyncio, use the real ones.
            proxy = self._proxy()
            setattr(proxy, name, call)
        else:
            self._monkeypatch.setattr(module, name, call)

    def _proxy(self) -> Any:
        if not isinstance(module.os, _Proxy):
            self._monkeypatch.setattr(module, "os", _Proxy())
        return module.os

    def heal(self) -> None:
        self._monkeypatch.undo()


class _Proxy:
    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)


@pytest.fixture
def injected(monkeypatch: pytest.MonkeyPatch) -> Injected:
    return Injected(monkeypatch)


#: How each call site is reached, and which function of the system fails there.
SITES: dict[str, list[tuple[str, str, Callable[[SystemDisk, Any, str], Any]]]] = {
    "open": [
        ("create", "open", lambda disk, _file, at: disk.open(f"{at}/new", create=True)),
        ("reopen", "open", lambda disk, file, _at: (disk._release(file), disk.read(file, 0, 1))),
        ("copy", "open", lambda disk, file, at: disk.copy(file.path, f"{at}/copy", start=0, end=1)),
        ("list", "listdir", lambda disk, _file, at: disk.list(at)),
    ],
    "open for sync": [
        ("file", "open", lambda disk, file, _at: (disk._release(file), disk.sync(file))),
        ("directory", "open", lambda disk, _file, at: disk.sync_dir(at)),
    ],
    "sync": [
        ("file", "sync_data", lambda disk, file, _at: disk.sync(file)),
        ("directory", "sync_all", lambda disk, _file, at: disk.sync_dir(at)),
        ("device", "sync_data", lambda disk, _file, at: disk.sync_device(at)),
    ],
    "write": [("append", "write_parts", lambda disk, file, _at: disk.write(file, 1, (b"ab", b"cd")))],
    "read": [("pread", "pread", lambda disk, file, _at: disk.read(file, 0, 1))],
    "truncate": [("ftruncate", "ftruncate", lambda disk, file, _at: disk.truncate(file, 0))],
    "stat": [
        ("size", "fstat", lambda disk, file, _at: disk.size(file)),
        ("free", "statvfs", lambda disk, _file, at: disk.free_bytes(at)),
    ],
    "replace": [
        ("open", "open", lambda disk, _file, at: disk.replace_file(f"{at}/r", b"new")),
        ("write", "write", lambda disk, _file, at: disk.replace_file(f"{at}/r", b"new")),
        ("sync", "sync_data", lambda disk, _file, at: disk.replace_file(f"{at}/r", b"new")),
        ("rename", "replace", lambda disk, _file, at: disk.replace_file(f"{at}/r", b"new")),
    ],
    "mkdir": [("makedirs", "makedirs", lambda disk, _file, at: disk.make_dir(f"{at}/d/e"))],
    "rename": [("rename", "replace", lambda disk, file, at: disk.rename(file.path, f"{at}/other"))],
    "remove": [("unlink", "unlink", lambda disk, file, _at: disk.remove(file.path))],
}  # fmt: skip
#: Tested elsewhere: sendfile in test_transport.py, the start below.
NOT_OF_THE_DISK = {"sendfile", "start"}


def test_the_page_is_the_table() -> None:
    page = Path(__file__).parents[2] / "docs" / "disk-errors.md"
    assert page.read_text(encoding="utf-8") == render(), (
        "run `python -m ottla.runtime.disk_errors > docs/disk-errors.md`"
    )


def test_every_call_site_of_the_table_is_reached() -> None:
    assert SITES.keys() | NOT_OF_THE_DISK == CALL_SITES.keys()


@pytest.mark.parametrize("name", ERRNOS)
@pytest.mark.parametrize(
    ("site", "function", "act"),
    [pytest.param(site, function, act, id=f"{site}, {how}") for site, ways in SITES.items() for how, function, act in ways],
)  # fmt: skip
def test_each_errno_at_each_call_site(
    injected: Injected, tmp_path: Path, site: str, function: str, act: Any, name: str
) -> None:
    number = getattr(errno, name)
    disk = SystemDisk()
    file = disk.open(str(tmp_path / "f"), create=True)
    disk.write(file, 0, (b"x",))
    (tmp_path / "r").write_bytes(b"old")
    injected.fail(function, number)
    if name == "ENOENT" and (function in ("listdir", "unlink") or act is SITES["open for sync"][1][2]):
        # A missing file is no error for these.
        act(disk, file, str(tmp_path))
        return
    with pytest.raises(DiskError) as raised:
        act(disk, file, str(tmp_path))
    assert injected.met
    error, kind = raised.value, errno_class(number)
    if site == "sync":
        # R11
        assert error.broken == (name != "EINTR") and error.short == (name == "EINTR") and not error.full
    else:
        assert (error.short, error.full, error.broken) == (
            kind is ErrnoClass.SHORTAGE, kind is ErrnoClass.FULL, kind is ErrnoClass.DEVICE,
        )  # fmt: skip
    assert not error.torn
    injected.heal()
    # Nothing is left half written.
    assert (tmp_path / "f").read_bytes() == b"x"
    assert (tmp_path / "r").read_bytes() == b"old" and not list(tmp_path.glob("*.tmp"))
    disk.release()


def test_an_append_that_cannot_be_cut_back_is_torn(injected: Injected, tmp_path: Path) -> None:
    disk = SystemDisk()
    file = disk.open(str(tmp_path / "f"), create=True)
    injected.fail("write_parts", errno.EFBIG)
    injected.fail("ftruncate", errno.EPERM)
    with pytest.raises(DiskError) as raised:
        disk.write(file, 0, (b"x",))
    assert raised.value.torn and not raised.value.broken and not raised.value.passing
    injected.fail("ftruncate", errno.EIO)
    with pytest.raises(DiskError) as raised:
        disk.write(file, 0, (b"x",))
    assert raised.value.torn and raised.value.broken


def test_an_unlisted_errno_affects_one_path() -> None:
    assert errno_class(9999) is errno_class(None) is ErrnoClass.PATH


@pytest.mark.parametrize("name", ["EMFILE", "ENFILE"])
def test_idle_files_are_closed_before_a_new_one_is_refused(
    injected: Injected, tmp_path: Path, name: str
) -> None:
    disk = SystemDisk()
    files = [disk.open(str(tmp_path / f"{at}"), create=True) for at in range(4)]
    injected.fail("open", getattr(errno, name), times=1)
    assert disk.open(str(tmp_path / "new"), create=True).fd >= 0
    assert [file.fd == -1 for file in files] == [True, True, False, False]
    disk.release()


# --- a broker that meets them -------------------------------------------------------------------------------


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def broker(tmp_path: Path, said: list[str]) -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        # Retry soon.
        for each in (checkpoint_writer, log_maintenance):
            patch.setattr(each, "_RETRY_MS", 100)
        with Broker(str(tmp_path / "data"), say=said.append) as running:
            yield running


def offline(broker: Any) -> list[str]:
    return [each.path for each in broker._node._broker.directories.offline]


def produce(peer: Peer, topic: str, value: bytes, *, timeout_ms: int = 30_000) -> int:
    """The error code of one produce."""
    answer = peer.ask(PRODUCE, 12, **produce_fields(topic, value, timeout_ms))
    return int(answer.responses[0].partition_responses[0].error_code.value)


def of(topic: str) -> Callable[..., bool]:
    """For paths of one topic's directory, or descriptors of its files."""

    def matches(target: Any, *_more: Any) -> bool:
        if isinstance(target, int):
            try:
                target = os.readlink(f"/proc/self/fd/{target}")
            except OSError:
                return False
        return f"/{topic}-0" in str(target)

    return matches


#: One errno of each class, and the call of an append that fails with it.
CLASSES = [("EMFILE", False), ("ENOMEM", False), ("ENOSPC", False), ("ENAMETOOLONG", False), ("EACCES", False), ("EIO", True), ("EROFS", True)]  # fmt: skip


@pytest.mark.parametrize(("name", "is_device"), CLASSES)
@pytest.mark.parametrize("function", ["write_parts", "open", "makedirs"])
def test_an_error_of_one_topic_leaves_the_others_alone(
    broker: Any, injected: Injected, function: str, name: str, is_device: bool
) -> None:
    """An append to an open log, and the creation of a log. No acknowledged record is lost."""
    with Peer(broker.address) as peer:
        peer.create("other")
        peer.create("hit")
        assert produce(peer, "other", b"1") == 0
        if function == "write_parts":
            assert produce(peer, "hit", b"1") == 0
        else:
            peer.ask(DELETE_TOPICS, topics=[{"name": "hit"}], timeout=1000)
        injected.fail(function, getattr(errno, name), of("hit"))
        if function != "write_parts":
            peer.ask(CREATE_TOPICS, topics=[{"name": "hit", "num_partitions": 1, "replication_factor": 1}])
        assert produce(peer, "hit", b"2") == STORAGE_ERROR
        assert injected.met
        if is_device:
            assert offline(broker) and produce(peer, "other", b"2") == STORAGE_ERROR
            return
        assert offline(broker) == []
        assert produce(peer, "other", b"2") == 0
        assert peer.fetch("other", 0) == [b"1", b"2"]
        injected.heal()
        # Afterwards everything works again.
        assert produce(peer, "hit", b"3") == 0
        assert peer.fetch("hit", 0) == ([b"1", b"3"] if function == "write_parts" else [b"3"])


@pytest.mark.parametrize("name", ["EMFILE", "ENFILE", "ENOMEM", "EAGAIN"])
def test_a_sync_whose_file_cannot_be_opened_is_retried(broker: Any, injected: Injected, name: str) -> None:
    """Nothing is acknowledged meanwhile, another topic goes on, then the waiting produce is answered."""
    with Peer(broker.address) as peer, Peer(broker.address) as other:
        peer.create("hit")
        other.create("other")
        assert produce(other, "other", b"1") == 0 and produce(peer, "hit", b"1") == 0
        disk = broker._node._disk
        real = disk.sync

        def sync(file: Any) -> None:
            if "/hit-0/" in file.path:
                with disk._lock:
                    # As if its descriptor had been closed.
                    if not file.pins:
                        disk._release(file)
            real(file)

        disk.sync = sync
        injected.fail(
            "open",
            getattr(errno, name),
            lambda path, flags, *_: of("hit")(path) and not flags & os.O_CREAT,
            times=7,
        )
        peer.send(PRODUCE, 12, **produce_fields("hit", b"2", 30_000))
        assert produce(other, "other", b"2") == 0
        row = peer.receive().responses[0].partition_responses[0]
        assert row.error_code.value == 0 and injected.met == 7
        del disk.sync
        assert offline(broker) == []
        assert peer.fetch("hit", 0) == [b"1", b"2"]


def produce_fields(topic: str, value: bytes, timeout_ms: int) -> dict[str, Any]:
    rows = [{"index": 0, "records": encode_batch([Record(0, 0, b"k", value)])}]
    return {"acks": -1, "timeout": timeout_ms, "topic_data": [{"name": topic, "partition_data": rows}]}


@pytest.mark.parametrize("name", ["EACCES", "ELOOP"])
def test_a_file_that_cannot_be_opened_for_its_sync_takes_its_partition_offline(
    broker: Any, injected: Injected, said: list[str], name: str
) -> None:
    with Peer(broker.address) as peer:
        peer.create("hit")
        peer.create("other")
        assert produce(peer, "other", b"1") == 0
        injected.fail(
            "open",
            getattr(errno, name),
            lambda path, flags, *_: of("hit")(path) and not flags & os.O_CREAT,
        )
        assert produce(peer, "hit", b"1") == STORAGE_ERROR
        assert offline(broker) == [] and produce(peer, "other", b"2") == 0
    assert any("hit-0 is offline until the next start" in text for text in said)


@pytest.mark.parametrize("name", ["EIO", "ENOSPC", "EMFILE", "EINVAL"])
def test_a_sync_itself_that_fails_is_final_whatever_the_errno(
    broker: Any, injected: Injected, name: str
) -> None:
    with Peer(broker.address) as peer:
        peer.create("hit")
        injected.fail("sync_data", getattr(errno, name), of("hit"))
        assert produce(peer, "hit", b"1") == STORAGE_ERROR
        injected.heal()
        assert offline(broker) and produce(peer, "hit", b"2") == STORAGE_ERROR


@pytest.mark.parametrize("suffix", [".log", ".index", ".timeindex", ".snapshot"])
def test_a_roll_without_a_descriptor_leaves_the_log_unchanged(
    tmp_path: Path, injected: Injected, suffix: str
) -> None:
    data = str(tmp_path / "data")
    value = bytes(900)
    with Broker(data) as broker, Peer(broker.address) as peer:
        peer.create("t", segment_bytes="2048")
        assert [produce(peer, "t", value) for _ in range(2)] == [0, 0]
        injected.fail("open", errno.EMFILE, lambda path, *_: str(path).endswith(f"{2:020}{suffix}"))
        assert produce(peer, "t", value) == STORAGE_ERROR and injected.met
        assert offline(broker) == []
        # A smaller one still fits.
        assert produce(peer, "t", b"small") == 0
        injected.heal()
        assert produce(peer, "t", value) == 0
        expected = [value, value, b"small", value]
        assert peer.fetch("t", 0) + peer.fetch("t", 3) == expected
    os.remove(f"{data}/.kafka_cleanshutdown")
    with Broker(data) as broker, Peer(broker.address) as peer:
        assert peer.fetch("t", 0) + peer.fetch("t", 3) == expected


@pytest.mark.parametrize(("name", "starts"), [("EMFILE", False), ("EACCES", True)])
def test_a_start_that_meets_an_error(tmp_path: Path, injected: Injected, name: str, starts: bool) -> None:
    """Without descriptors the start fails and nothing is lost; an error of one partition affects no other."""
    data = str(tmp_path / "data")
    with Broker(data) as broker, Peer(broker.address) as peer:
        for topic in ("hit", "other"):
            peer.create(topic)
            assert produce(peer, topic, b"1") == 0
    os.remove(f"{data}/.kafka_cleanshutdown")
    injected.fail("open", getattr(errno, name), of("hit"))
    if starts:
        with Broker(data) as broker, Peer(broker.address) as peer:
            assert offline(broker) == [] and peer.fetch("other", 0) == [b"1"]
            assert produce(peer, "hit", b"2") == STORAGE_ERROR
        # Its log was not read: the next start must do so.
        assert not os.path.exists(f"{data}/.kafka_cleanshutdown")
    else:
        with pytest.raises(Exception, match="Too many open files"):
            Broker(data)
    injected.heal()
    with Broker(data) as broker, Peer(broker.address) as peer:
        assert peer.fetch("hit", 0) == peer.fetch("other", 0) == [b"1"]


@pytest.mark.parametrize("name", ["EMFILE", "EACCES", "EBUSY"])
def test_a_deletion_that_cannot_rename_is_repeated_and_the_next_topic_waits(
    broker: Any, injected: Injected, name: str
) -> None:
    with Peer(broker.address) as peer:
        peer.create("hit")
        peer.create("other")
        assert produce(peer, "hit", b"old") == 0
        injected.fail("replace", getattr(errno, name), of("hit"))
        peer.ask(DELETE_TOPICS, topics=[{"name": "hit"}], timeout=1000)
        peer.create("hit")
        assert produce(peer, "hit", b"new") == STORAGE_ERROR
        assert offline(broker) == [] and produce(peer, "other", b"1") == 0
        injected.heal()
        while produce(peer, "hit", b"new") == STORAGE_ERROR:
            # Until the rename is retried. The timeout of the test bounds this, not PATIENCE_S of the socket.
            threading.Event().wait(0.02)
        assert peer.fetch("hit", 0) == [b"new"]


@pytest.mark.parametrize("name", ["EMFILE", "EACCES", "ENOSPC"])
def test_a_checkpoint_that_cannot_be_written_is_repeated(
    broker: Any, injected: Injected, said: list[str], name: str
) -> None:
    core = broker._node._broker
    with Peer(broker.address) as peer:
        peer.create("t")
        assert produce(peer, "t", b"1") == 0
        injected.fail("open", getattr(errno, name), lambda path, *_: ".tmp" in str(path), times=1)
        done = threading.Event()

        def ask() -> None:
            core.log_maintenance.checkpoints_in(core.directories.all[0]).want(after=done.set)
            broker._node._runner.turn(broker._node._runner.clock.now_ms())

        broker._loop.call_soon_threadsafe(ask)
        assert done.wait(PATIENCE_S) and injected.met == 1
        assert offline(broker) == [] and produce(peer, "t", b"2") == 0


def test_the_journal_goes_on_after_a_shortage(tmp_path: Path, injected: Injected) -> None:
    disk = SystemDisk()
    store = EmbeddedStore(disk, str(tmp_path))
    store.load()
    store.append([r.Cluster("a")])
    disk._release(store._file)  # type: ignore[arg-type]
    injected.fail("open", errno.EMFILE, times=2)
    with pytest.raises(DiskError):
        store.append([r.Cluster("b")])
    store.append([r.Cluster("c")])
    assert EmbeddedStore(disk, str(tmp_path)).load() == [r.Cluster("a"), r.Cluster("c")]
    injected.fail("sync_data", errno.EIO)
    for _ in range(2):
        with pytest.raises(DiskError):
            store.append([r.Cluster("d")])
    disk.release()


def test_files_are_readable_by_their_owner_only(tmp_path: Path) -> None:
    given = tmp_path / "given"
    given.mkdir(mode=0o755)
    with Broker(str(given)) as broker, Peer(broker.address) as peer:
        peer.create("t")
        assert produce(peer, "t", b"1") == 0
        for above, directories, files in os.walk(given):
            for name in directories:
                assert os.stat(f"{above}/{name}").st_mode & 0o777 == 0o700, name
            for name in files:
                assert os.stat(f"{above}/{name}").st_mode & 0o777 == 0o600, name
    # An existing file is not changed.
    assert given.stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize("garbage", [b"\0\xff garbage", b"version=1\ncluster.id=\n"])
def test_garbage_in_meta_properties_is_logged_and_kept(
    tmp_path: Path, garbage: bytes, said: list[str]
) -> None:
    data = tmp_path / "data"
    with Broker(str(data)) as broker, Peer(broker.address) as peer:
        peer.create("t")
        assert produce(peer, "t", b"1") == 0
        cluster_id = broker._node._broker.cluster_id
    garbage = garbage.replace(b"cluster.id=", b"cluster.id=" + cluster_id.encode())
    (data / "meta.properties").write_bytes(garbage)
    with Broker(str(data), say=said.append) as broker, Peer(broker.address) as peer:
        assert peer.fetch("t", 0) == [b"1"]
    [line] = [text for text in said if "meta.properties" in text]
    assert f"its {len(garbage)} bytes are kept in {data}/meta.properties.damaged" in line
    assert (data / "meta.properties.damaged").read_bytes() == garbage
