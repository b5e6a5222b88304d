"""Cluster-wide features: what ApiVersions says of them, and UpdateFeatures."""

from typing import Any

import pytest

INVALID_REQUEST, INVALID_UPDATE_VERSION = 42, 95

#: What Kafka's tool asks for: `kafka-features upgrade --release-version R`, without features at level 0.
RELEASE_4_0 = {"metadata.version": 25, "kraft.version": 1, "transaction.version": 2, "group.version": 1}
RELEASE_4_2 = RELEASE_4_0 | {
    "metadata.version": 29,
    "eligible.leader.replicas.version": 1,
    "share.version": 1,
    "streams.version": 1,
}


def update(
    client: Any, version: int, *features: tuple[str, int], **more: Any
) -> list[tuple[int, str | None]]:
    """The error and message of each feature, or of the whole request where the version has one result."""
    updates = [{"feature": name, "max_version_level": level} for name, level in features]
    answer = client.ask(57, version, feature_updates=updates, **more)
    if version == 2:
        return [(answer.error_code.value, answer.error_message)]
    assert answer.error_code.value == 0
    return [(row.error_code.value, row.error_message) for row in answer.results]


def features(client: Any, version: int) -> tuple[dict[str, tuple[int, int]], dict[str, int]]:
    """Supported ranges and finalized levels."""
    answer = client.ask(18, version, client_software_name="test", client_software_version="1")
    assert answer.finalized_features_epoch == 0
    return (
        {row.name: (row.min_version, row.max_version) for row in answer.supported_features},
        {row.name: row.max_version_level for row in answer.finalized_features},
    )


def test_the_features_that_tools_read(client: Any) -> None:
    supported, finalized = features(client, 4)
    assert finalized == RELEASE_4_0
    assert supported == {name: (level, level) for name, level in RELEASE_4_0.items()} | {
        "eligible.leader.replicas.version": (0, 0), "share.version": (0, 0), "streams.version": (0, 0),
    }  # fmt: skip


def test_a_feature_at_level_0_is_not_listed_for_older_clients(client: Any) -> None:
    """Clients before 4.0 ask version 3 and throw on a supported minimum of 0 (KAFKA-17011)."""
    supported, finalized = features(client, 3)
    assert supported.keys() == finalized.keys() == RELEASE_4_0.keys()


@pytest.mark.parametrize("version", range(3))
def test_an_upgrade_to_a_release_whose_levels_are_those_here(client: Any, version: int) -> None:
    for more in ({}, {"validate_only": True} if version else {}):
        assert {code for code, _message in update(client, version, *RELEASE_4_0.items(), **more)} == {0}


@pytest.mark.parametrize("version", range(3))
def test_an_upgrade_to_a_release_with_features_that_are_missing(client: Any, version: int) -> None:
    rows = update(client, version, *RELEASE_4_2.items())
    assert INVALID_UPDATE_VERSION in {code for code, _message in rows}
    text = " ".join(message or "" for _code, message in rows)
    assert "metadata.version" in text and "only level 25 is supported" in text
    if version == 2:
        assert text.startswith("The update failed for all features since the following feature had an error:")
    else:
        assert "there are no share groups" in text


@pytest.mark.parametrize("version", range(3))
def test_a_feature_that_is_off_stays_off(client: Any, version: int) -> None:
    assert update(client, version, ("share.version", 0)) == [(0, None)]
    [(code, message)] = update(client, version, ("share.version", 1))
    assert code == INVALID_UPDATE_VERSION and "only level 0" in (message or "")


@pytest.mark.parametrize("version", range(3))
def test_an_unknown_feature(client: Any, version: int) -> None:
    [(code, message)] = update(client, version, ("no.such.version", 1))
    assert code == INVALID_UPDATE_VERSION and "'no.such.version': it is not supported" in (message or "")


@pytest.mark.parametrize("version", range(3))
def test_a_feature_named_twice_or_not_at_all(client: Any, version: int) -> None:
    [(code, message)] = update(client, version, ("a", 1), ("a", 1))
    assert code == INVALID_REQUEST and "feature 'a' is named 2 times" in (message or "")
    assert update(client, version, ("", 1))[0][0] == INVALID_REQUEST


@pytest.mark.parametrize("version", range(3))
def test_transactions_have_one_level(client: Any, version: int) -> None:
    [(code, message)] = update(client, version, ("transaction.version", 1))
    assert code == INVALID_UPDATE_VERSION and "only level 2" in (message or "")


def test_no_update_is_no_failure(client: Any) -> None:
    assert update(client, 0) == update(client, 1) == []
    assert update(client, 2) == [(0, None)]
