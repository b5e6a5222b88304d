from typing import Any

import pytest

INVALID_REQUEST, INVALID_UPDATE_VERSION = 42, 95


def update(client: Any, version: int, *features: str) -> list[tuple[int, str | None]]:
    """What became of each feature, or of all at once where the version has one result."""
    updates = [{"feature": name, "max_version_level": 1} for name in features]
    answer = client.ask(57, version, feature_updates=updates)
    if version == 2:
        return [(answer.error_code.value, answer.error_message)]
    assert answer.error_code.value == 0
    return [(row.error_code.value, row.error_message) for row in answer.results]


@pytest.mark.parametrize("version", range(3))
def test_features_that_there_are_not(client: Any, version: int) -> None:
    rows = update(client, version, "metadata.version", "kraft.version")
    assert len(rows) == (1 if version == 2 else 2)
    assert {code for code, _message in rows} == {INVALID_UPDATE_VERSION}
    assert "metadata.version" in (rows[0][1] or "")


@pytest.mark.parametrize("version", range(3))
def test_a_feature_named_twice_or_not_at_all(client: Any, version: int) -> None:
    assert update(client, version, "a", "a")[0] == (INVALID_REQUEST, "feature 'a' is named 2 times")
    assert update(client, version, "")[0][0] == INVALID_REQUEST


@pytest.mark.parametrize("version", range(3))
def test_transactions_have_the_level_that_they_have(client: Any, version: int) -> None:
    answer = client.ask(18, 4, client_software_name="test", client_software_version="1")
    assert [(row.name, row.max_version_level) for row in answer.finalized_features] == [
        ("transaction.version", 2)
    ]
    assert answer.finalized_features_epoch == 0
    updates = [{"feature": "transaction.version", "max_version_level": 2}]
    answer = client.ask(57, version, feature_updates=updates)
    assert answer.error_code == 0 and not any(row.error_code for row in getattr(answer, "results", ()))
    [(code, message)] = update(client, version, "transaction.version")
    assert code == INVALID_UPDATE_VERSION and "level 2" in (message or "")


def test_no_update_is_no_failure(client: Any) -> None:
    assert update(client, 0) == update(client, 1) == []
    assert update(client, 2) == [(0, None)]
