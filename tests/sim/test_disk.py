from collections.abc import Callable
from contextlib import suppress
from random import Random

import pytest

from ottla.ports.disk import DiskError
from testkit.sim.disk import PowerCut, SimDisk


def made(*, strict: bool = True, seed: int = 0) -> SimDisk:
    disk = SimDisk(Random(seed), strict=strict)
    disk.make_dir("/d")
    disk.sync_dir("/")
    return disk


def named(disk: SimDisk, path: str, data: bytes) -> None:
    """A file whose name and bytes are durable."""
    file = disk.open(path, create=True)
    disk.write(file, 0, (data,))
    disk.sync(file)
    disk.sync_dir(path.rpartition("/")[0])


def outcomes(change: Callable[[SimDisk], object], look: Callable[[SimDisk], object]) -> set[object]:
    """What may remain of an unsynced change after a power cut of a nasty disk."""
    seen = set()
    for seed in range(300):
        disk = made(strict=False, seed=seed)
        named(disk, "/d/a", b"old")
        change(disk)
        disk.crash()
        seen.add(look(disk))
    return seen


def test_bytes_are_durable_after_sync_alone() -> None:
    disk = made()
    named(disk, "/d/a", b"one")
    file = disk.open("/d/a")
    assert disk.write(file, 3, (b"t", memoryview(b"wo"))) == 6
    assert disk.read(file, 2, 10) == b"etwo" and disk.size(file) == 6
    disk.sync_dir("/d")
    disk.crash()
    assert disk.read_file("/d/a") == b"one"
    disk.write(disk.open("/d/a"), 3, (b"two",))
    disk.sync(disk.open("/d/a"))
    disk.crash()
    assert disk.read_file("/d/a") == b"onetwo"


def test_a_name_is_durable_after_sync_dir_alone() -> None:
    disk = made()
    file = disk.open("/d/a", create=True)
    disk.write(file, 0, (b"x",))
    disk.sync(file)
    disk.crash()
    assert disk.read_file("/d/a") is None and disk.list("/d") == []


def test_removals_and_renames_come_back_without_sync_dir() -> None:
    disk = made()
    named(disk, "/d/a", b"a")
    named(disk, "/d/b", b"b")
    disk.remove("/d/a")
    disk.rename("/d/b", "/d/c")
    assert disk.list("/d") == ["c"]
    disk.crash()
    assert disk.list("/d") == ["a", "b"]
    disk.rename("/d/b", "/d/a")
    disk.sync_dir("/d")
    disk.crash()
    assert disk.list("/d") == ["a"] and disk.read_file("/d/a") == b"b"


def test_truncation_is_durable_after_sync() -> None:
    disk = made()
    named(disk, "/d/a", b"long")
    disk.truncate(disk.open("/d/a"), 1)
    disk.crash()
    assert disk.read_file("/d/a") == b"long"
    disk.truncate(disk.open("/d/a"), 1)
    disk.sync(disk.open("/d/a"))
    disk.crash()
    assert disk.read_file("/d/a") == b"l"


def test_directories_are_names_too() -> None:
    disk = made()
    disk.make_dir("/d/e/f")
    named(disk, "/d/e/f/a", b"a")
    disk.crash()
    assert disk.list("/d") == []
    disk.make_dir("/d/e/f")
    named(disk, "/d/e/f/a", b"a")
    disk.sync_dir("/d/e")
    disk.sync_dir("/d")
    disk.crash()
    assert disk.read_file("/d/e/f/a") == b"a"
    disk.remove_dir("/d/e")
    assert disk.list("/d/e") == [] and disk.list("/d") == []


@pytest.mark.parametrize("site", [None, "replace_file:sync", "replace_file:sync_dir"])
def test_replacing_a_file_is_durable_unless_one_of_its_syncs_is_left_out(site: str | None) -> None:
    disk = made()
    named(disk, "/d/a", b"old")
    disk.ignored_site = site
    disk.replace_file("/d/a", b"new")
    disk.crash()
    expected = {None: b"new", "replace_file:sync": b"", "replace_file:sync_dir": b"old"}
    assert disk.read_file("/d/a") == expected[site]


def test_a_replacement_is_old_or_new_at_every_step() -> None:
    for step in range(1, 10):
        for seed in range(20):
            disk = made(strict=False, seed=seed)
            named(disk, "/d/a", b"old")
            disk.cut_after = disk.steps + step
            with suppress(PowerCut):
                disk.replace_file("/d/a", b"new content")
            disk.heal()
            disk.crash()
            assert disk.read_file("/d/a") in (b"old", b"new content")


def test_a_nasty_cut_may_keep_drop_or_tear_a_write() -> None:
    data = bytes(range(1, 201))
    seen = outcomes(
        lambda disk: disk.write(disk.open("/d/a"), 3, (data,)),
        lambda disk: disk.read_file("/d/a"),
    )
    assert b"old" in seen and b"old" + data in seen
    torn = [
        content for content in seen if isinstance(content, bytes) and content not in (b"old", b"old" + data)
    ]
    assert any(len(content) == 203 and b"\0" in content for content in torn), "a hole"
    for content in torn:
        assert content.startswith(b"old")
        assert all(byte in (0, expected) for byte, expected in zip(content[3:], data, strict=False))


def test_a_nasty_cut_never_touches_what_was_synced() -> None:
    seen = outcomes(
        lambda disk: disk.sync(disk.open("/d/a")),
        lambda disk: (disk.read_file("/d/a"), tuple(disk.list("/d"))),
    )
    assert seen == {(b"old", ("a",))}


def test_a_nasty_cut_may_keep_any_part_of_the_names() -> None:
    def change(disk: SimDisk) -> None:
        for name in "bcd":
            disk.open(f"/d/{name}", create=True)

    seen = outcomes(change, lambda disk: "".join(disk.list("/d")))
    assert seen == {"a", "ab", "ac", "ad", "abc", "abd", "acd", "abcd"}


def test_a_handle_outlives_its_name() -> None:
    disk = made()
    named(disk, "/d/a", b"a")
    file = disk.open("/d/a")
    assert disk.read(file, 0, 9) == b"a"
    disk.remove("/d/a")
    assert disk.read(file, 0, 9) == b"a"
    with pytest.raises(DiskError):
        disk.read(disk.open("/d/a"), 0, 1)


def test_a_failed_sync_is_final() -> None:
    disk = made()
    named(disk, "/d/a", b"old")
    file = disk.open("/d/a")
    disk.write(file, 3, (b"new",))
    disk.failing_sync = "/d/a"
    with pytest.raises(DiskError) as failed:
        disk.sync(file)
    assert not failed.value.full
    disk.heal()
    disk.sync(file)
    assert disk.read(file, 0, 9) == b"oldnew", "what it covered is seen …"
    disk.crash()
    assert disk.read_file("/d/a") == b"old", "… and lost, although a later sync succeeded"


def test_a_full_disk_takes_nothing_new_and_keeps_what_it_has() -> None:
    disk = made()
    named(disk, "/d/a", b"old")
    file = disk.open("/d/a")
    disk.full = True
    for attempt in (lambda: disk.write(file, 3, (b"x",)), lambda: disk.open("/d/b", create=True)):
        with pytest.raises(DiskError) as failed:
            attempt()
        assert failed.value.full
    assert disk.read_file("/d/a") == b"old"
    assert disk.free_bytes("/d")[1] == 0
    disk.full = False
    assert 0 < disk.free_bytes("/d")[1] <= disk.free_bytes("/d")[0]
    assert disk.write(file, 3, (b"x",)) == 4


def test_a_cut_comes_before_the_chosen_step_and_before_the_chosen_sync() -> None:
    disk = made()
    disk.cut_after = disk.steps + 2
    file = disk.open("/d/a", create=True)
    with pytest.raises(PowerCut):
        disk.write(file, 0, (b"x",))
    assert disk.size(file) == 0
    disk.heal()
    disk.write(file, 0, (b"x",))
    disk.cut_before_sync = (2, "/d/a")
    disk.sync_dir("/d")
    disk.sync(file)
    disk.write(file, 1, (b"y",))
    with pytest.raises(PowerCut):
        disk.sync(file)
    disk.heal()
    disk.crash()
    assert disk.read_file("/d/a") == b"x"


def test_each_sync_knows_who_asked() -> None:
    disk = made()
    disk.sites.clear()
    file = disk.open("/d/a", create=True)
    disk.sync(file)
    with disk.at("elsewhere"):
        disk.sync_dir("/d")
    here, elsewhere = disk.sites
    assert "test_each_sync_knows_who_asked" in here and elsewhere == "elsewhere"
