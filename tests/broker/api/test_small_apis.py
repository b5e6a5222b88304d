"""ApiVersions, DescribeCluster, FindCoordinator and InitProducerId."""

import struct
from typing import Any

from ottla.broker.api.shared.api_table import APIS
from ottla.model.limits import PRODUCER_ID_BLOCK
from ottla.wire.decode import decode_response

COORDINATOR_NOT_AVAILABLE, UNSUPPORTED_VERSION, INVALID_REQUEST = 15, 35, 42
COORDINATOR_LOAD_IN_PROGRESS, MISMATCHED_ENDPOINT_TYPE, UNSUPPORTED_ENDPOINT_TYPE = 14, 114, 115


def test_an_unknown_version_of_api_versions_is_answered_in_version_0(client: Any, monkeypatch: Any) -> None:
    sent: list[bytes] = []
    monkeypatch.setattr(client, "sent", sent.append)
    for version in (5, 99, -1, 32767):
        client.send_frame(struct.pack(">hhih", 18, version, 4711, -1) + b"\0whatever comes in that version")
        answer = sent.pop()
        size, correlation_id = struct.unpack_from(">ii", answer)
        assert (size, correlation_id) == (len(answer) - 4, 4711)
        entity = decode_response(18, 0, answer, 8)
        assert entity.error_code.value == UNSUPPORTED_VERSION
        assert {row.api_key: row.max_version for row in entity.api_keys} == {
            api.key: api.newest for api in APIS.values()
        }
    assert client.closed_because is None


def test_the_clients_software_must_have_a_name(client: Any) -> None:
    good = {"client_software_name": "ottla-test", "client_software_version": "1.0.2"}
    assert client.ask(18, 3, **good).error_code.value == 0
    for bad in ("", "-", "a b", "a/"):
        assert client.ask(18, 3, **good | {"client_software_name": bad}).error_code.value == INVALID_REQUEST
        assert (
            client.ask(18, 3, **good | {"client_software_version": bad}).error_code.value == INVALID_REQUEST
        )


def test_the_cluster(client: Any, driver: Any) -> None:
    answer = client.ask(60)
    assert answer.cluster_id == driver.broker.image.cluster_id
    assert answer.controller_id == 1
    assert answer.cluster_authorized_operations == -(2**31)
    assert client.ask(60, include_cluster_authorized_operations=True).cluster_authorized_operations > 0


def test_there_are_no_controller_endpoints(client: Any) -> None:
    assert client.ask(60, endpoint_type=2).error_code.value == MISMATCHED_ENDPOINT_TYPE
    assert client.ask(60, endpoint_type=9).error_code.value == UNSUPPORTED_ENDPOINT_TYPE


def test_share_groups_are_told_honestly_that_they_must_wait(client: Any) -> None:
    answer = client.ask(10, key_type=2, coordinator_keys=["a", "b"])
    assert [row.key for row in answer.coordinators] == ["a", "b"]
    assert {row.error_code.value for row in answer.coordinators} == {COORDINATOR_NOT_AVAILABLE}
    assert "share groups" in answer.coordinators[0].error_message


def test_transactional_ids_have_coordinators_once_they_are_asked_for(drive: Any) -> None:
    client = drive(transaction_state_log_num_partitions="2").connect()
    not_coordinator = 16
    assert client.ask(22, transactional_id="t").error_code.value == not_coordinator
    answer = client.ask(10, key_type=1, coordinator_keys=["t", ""])
    assert [(row.error_code.value, row.node_id) for row in answer.coordinators] == [
        (0, 1),
        (INVALID_REQUEST, -1),
    ]
    assert client.ask(22, transactional_id="t", transaction_timeout=1000).error_code.value == 0
    assert client.ask(22, transactional_id="").error_code.value == INVALID_REQUEST


def test_producer_ids_are_never_handed_out_twice(client: Any, driver: Any) -> None:
    ids = [client.ask(22).producer_id for _ in range(PRODUCER_ID_BLOCK + 5)]
    assert len(set(ids)) == len(ids)
    # The next run begins behind every block that was ever taken.
    assert driver.broker.image.next_producer_id > max(ids)


def test_producer_ids_wait_for_their_block_to_be_written_down(client: Any, driver: Any) -> None:
    driver.are_proposals_held = True
    others = [driver.connect() for _ in range(3)]
    for each in (client, *others):
        each.send(22)
    assert len(driver.held_proposals) == 1
    assert client.answers == []
    driver.commit()
    driver.turn()
    assert len({each.answers[0].producer_id for each in (client, *others)}) == 4


def test_no_producer_id_without_a_block(client: Any, driver: Any) -> None:
    driver.are_proposals_held = True
    client.send(22)
    driver.commit("no space left on device")
    driver.turn()
    [answer] = client.answers
    assert (answer.error_code.value, answer.producer_id) == (COORDINATOR_LOAD_IN_PROGRESS, -1)
