"""ACLs, client quotas and SCRAM credentials on a broker that has none of them: what Kafka's tools and MirrorMaker ask."""

from typing import Any

import pytest

from ottla.model.errors import ErrorCode

DESCRIBE_ACLS, CREATE_ACLS, DELETE_ACLS = 29, 30, 31
DESCRIBE_QUOTAS, ALTER_QUOTAS, DESCRIBE_SCRAM, ALTER_SCRAM = 48, 49, 50, 51
ACL = {"principal": "User:u", "host": "*", "operation": 3, "permission_type": 3}


def test_acls_are_refused_as_without_an_authorizer(client: Any) -> None:
    answer = client.ask(DESCRIBE_ACLS, 3, **ACL, resource_type_filter=1, pattern_type_filter=1)
    assert (answer.error_code, answer.resources) == (ErrorCode.SECURITY_DISABLED, ())
    assert answer.error_message == "No Authorizer is configured on the broker."
    new = ACL | {"resource_type": 2, "resource_name": "t", "resource_pattern_type": 3}
    rows = client.ask(CREATE_ACLS, 3, creations=[new] * 3).results
    assert [row.error_code for row in rows] == [ErrorCode.SECURITY_DISABLED] * 3
    chosen = ACL | {"resource_type_filter": 2, "pattern_type_filter": 3}
    rows = client.ask(DELETE_ACLS, 3, filters=[chosen] * 2).filter_results
    assert [(row.error_code, row.matching_acls) for row in rows] == [(ErrorCode.SECURITY_DISABLED, ())] * 2


def quotas(client: Any, *components: tuple[str, int]) -> tuple[int, Any]:
    asked = [{"entity_type": name, "match_type": match, "match": None} for name, match in components]
    answer = client.ask(DESCRIBE_QUOTAS, 1, components=asked, strict=False)
    return answer.error_code.value, answer.entries


def test_there_are_no_quotas(client: Any) -> None:
    assert (
        quotas(client)
        == quotas(client, ("user", 2), ("client-id", 1))
        == quotas(client, ("ip", 2))
        == (0, ())
    )


@pytest.mark.parametrize(
    ("components", "code"),
    [
        ([("", 2)], ErrorCode.INVALID_REQUEST),
        ([("user", 2), ("user", 1)], ErrorCode.INVALID_REQUEST),
        ([("user", 3)], ErrorCode.INVALID_REQUEST),
        ([("user", 2), ("ip", 2)], ErrorCode.INVALID_REQUEST),
        ([("galaxy", 2)], ErrorCode.UNSUPPORTED_VERSION),
    ],
)
def test_a_filter_of_quotas_that_makes_no_sense(
    client: Any, components: list[tuple[str, int]], code: ErrorCode
) -> None:
    assert quotas(client, *components) == (code, None)


def test_a_quota_is_not_accepted_without_being_enforced(client: Any) -> None:
    entry = {
        "entity": [
            {"entity_type": "user", "entity_name": None},
            {"entity_type": "client-id", "entity_name": "c"},
        ],
        "ops": [{"key": "producer_byte_rate", "value": 1024.0, "remove": False}],
    }
    [row] = client.ask(ALTER_QUOTAS, 1, entries=[entry], validate_only=False).entries
    assert (row.error_code, [each.entity_name for each in row.entity]) == (
        ErrorCode.UNSUPPORTED_VERSION,
        [None, "c"],
    )
    assert "does not enforce client quotas" in row.error_message


def test_there_are_no_scram_credentials(client: Any) -> None:
    for everyone in (None, []):
        answer = client.ask(DESCRIBE_SCRAM, 0, users=everyone)
        assert (answer.error_code.value, answer.results) == (0, ())
    rows = client.ask(DESCRIBE_SCRAM, 0, users=[{"name": name} for name in ("a", "b", "a")]).results
    assert [(row.user, row.error_code) for row in rows] == [
        ("a", ErrorCode.DUPLICATE_RESOURCE), ("b", ErrorCode.RESOURCE_NOT_FOUND),
    ]  # fmt: skip


def test_scram_credentials_are_not_stored(client: Any) -> None:
    new = {"name": "b", "mechanism": 1, "iterations": 4096, "salt": b"s", "salted_password": b"p"}
    rows = client.ask(
        ALTER_SCRAM, 0, deletions=[{"name": "a", "mechanism": 1}], upsertions=[new, new]
    ).results
    assert [(row.user, row.error_code) for row in rows] == [
        ("a", ErrorCode.UNSUPPORTED_VERSION), ("b", ErrorCode.UNSUPPORTED_VERSION),
    ]  # fmt: skip
    assert "does not authenticate" in rows[0].error_message
