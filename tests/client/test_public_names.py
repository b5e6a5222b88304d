"""The public names of the SDK's classes, as autocompletion shows them: everything else has a leading underscore."""

import asyncio
from typing import Any

import pytest

import ottla
import ottla.aio

PRODUCER = """
    abort begin close commit flush metrics partitions_for renew send send_batch send_offsets transaction
"""
CONSUMER = """
    assign assignment batches beginning_offsets close commit commit_async committed end_offsets group_metadata lag
    metrics offsets_for_times partitions_for pause paused poll poll_columns position resume seek seek_to_beginning
    seek_to_end seek_to_time subscribe subscription unsubscribe wakeup
"""
ADMIN = """
    abort_hanging_transaction abort_transaction alter_configs alter_partition_reassignments alter_replica_log_dirs
    close create_partitions create_topic create_topics delete_group_offsets delete_groups delete_records delete_topics
    describe_cluster describe_configs describe_features describe_group describe_groups describe_log_dirs
    describe_producers describe_quorum describe_topics describe_transactions elect_leaders fence_producers
    find_hanging_transactions group_lag group_offsets list_config_resources list_group_offsets list_groups list_offsets
    list_partition_reassignments list_topics list_transactions remove_members set_group_offsets unregister_broker
    update_features
"""
BROKER = "address close data_dir longest_turn"

BLOCKING = [(ottla.Producer, PRODUCER), (ottla.Consumer, CONSUMER), (ottla.Admin, ADMIN)]
ASYNCIO = [
    (ottla.aio.Producer, PRODUCER + "start"),
    (ottla.aio.Consumer, CONSUMER + "start"),
    (ottla.aio.Admin, ADMIN + "start"),
]


def public(thing: object) -> list[str]:
    return [name for name in dir(thing) if not name.startswith("_")]


@pytest.mark.parametrize(("kind", "names"), [*BLOCKING, *ASYNCIO, (ottla.Broker, BROKER)])
def test_a_class_shows_its_public_names_only(kind: type, names: str) -> None:
    assert public(kind) == sorted(names.split())


@pytest.mark.parametrize(("kind", "names"), BLOCKING)
def test_an_open_client_shows_no_more_names(kind: Any, names: str, ottla_address: str) -> None:
    with kind(ottla_address) as client:
        assert public(client) == sorted(names.split())


@pytest.mark.parametrize(("kind", "names"), ASYNCIO)
def test_an_open_asyncio_client_shows_no_more_names(kind: Any, names: str, ottla_address: str) -> None:
    async def scenario() -> list[str]:
        async with kind(ottla_address) as client:
            return public(client)

    assert asyncio.run(scenario()) == sorted(names.split())


def test_a_running_broker_shows_no_more_names() -> None:
    with ottla.Broker() as broker:
        assert public(broker) == sorted(BROKER.split())
