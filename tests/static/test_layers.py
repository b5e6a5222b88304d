"""The contracts of import-linter name rooms that exist: these tests say when a new room is missing from one."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CONTRACTS = {
    contract["id"]: contract
    for contract in tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
}
ROOMS = {path.name for path in (ROOT / "src" / "ottla").iterdir() if any(path.rglob("*.py"))}

PURE = {
    "broker",
    "replication",
    "controller",
    "metadata",
    "groups",
    "transactions",
    "security",
    "log",
    "records",
    "wire",
    "config",
    "metrics",
    "ports",
    "model",
}
UNKNOWN_TO_THE_CLIENT = {"broker", "replication", "controller", "metadata", "groups", "transactions", "log"}


def rooms(contract: str, key: str) -> set[str]:
    return {name.removeprefix("ottla.") for name in CONTRACTS[contract][key] if name.startswith("ottla.")}


def test_the_pure_rooms_are_broker_and_everything_beneath_it() -> None:
    layers = [{name.strip(" ()") for name in layer.split("|")} for layer in CONTRACTS["layers"]["layers"]]
    beside_broker = next(index for index, layer in enumerate(layers) if "broker" in layer)
    assert set().union(*layers[beside_broker:]) - {"runtime"} == PURE


def test_purity_is_held_for_every_pure_room_that_exists() -> None:
    assert rooms("purity", "source_modules") == PURE & ROOMS


def test_the_client_is_kept_from_every_room_of_the_broker_that_exists() -> None:
    assert rooms("client", "forbidden_modules") == UNKNOWN_TO_THE_CLIENT & ROOMS
