from collections import Counter
from pathlib import Path

from tools.run_tests import GROUPS

TESTS = Path(__file__).resolve().parent.parent
SOURCE = TESTS.parent / "src" / "ottla"


def is_code_folder(path: Path) -> bool:
    return path.is_dir() and any(path.rglob("*.py"))


def test_every_folder_of_tests_belongs_to_exactly_one_group() -> None:
    owners = Counter(folder for group in GROUPS for folder in group.folders)
    assert [folder for folder, count in owners.items() if count > 1] == []
    folders = {path.name for path in TESTS.iterdir() if is_code_folder(path)}
    assert folders - set(owners) == set(), "add the folder to a group in tools/run_tests.py"


def test_no_test_lies_outside_the_folders() -> None:
    assert sorted(path.name for path in TESTS.glob("test_*.py")) == []


def test_every_room_has_a_place_for_its_tests() -> None:
    folders = {
        folder for group in GROUPS if group.name in ("unit", "sdk", "spark") for folder in group.folders
    }
    rooms = {path.name for path in SOURCE.iterdir() if is_code_folder(path)}
    assert rooms - folders == set(), "add the room to a group in tools/run_tests.py"


def test_long_tests_exist_and_belong_to_their_group() -> None:
    for group in GROUPS:
        for each in group.long:
            path, _, name = each.partition("::")
            assert path.partition("/")[0] in group.folders, each
            assert (TESTS / path).exists(), each
            assert name.partition("[")[0] in (TESTS / path).read_text() if name else True, each


def test_short_and_long_tests_are_all_tests() -> None:
    [spark] = [group for group in GROUPS if group.name == "spark"]
    assert (spark.selection("short"), spark.selection("long")) == (
        ["--deselect=tests/spark"],
        ["tests/spark"],
    )
    [cluster] = [group for group in GROUPS if group.name == "cluster"]
    assert cluster.selection("all") == ["tests/cluster"]
    assert cluster.selection("short") == [
        "tests/cluster",
        *(f"--deselect={each}" for each in cluster.selection("long")),
    ]
