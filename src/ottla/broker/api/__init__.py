"""One file an API. Importing this package registers all of them in `table.APIS`."""

from ottla.broker.api import (
    api_versions,
    create_partitions,
    create_topics,
    delete_records,
    delete_topics,
    describe_cluster,
    describe_configs,
    fetch,
    find_coordinator,
    incremental_alter_configs,
    init_producer_id,
    list_offsets,
    metadata,
    produce,
)

__all__ = [
    "api_versions",
    "create_partitions",
    "create_topics",
    "delete_records",
    "delete_topics",
    "describe_cluster",
    "describe_configs",
    "fetch",
    "find_coordinator",
    "incremental_alter_configs",
    "init_producer_id",
    "list_offsets",
    "metadata",
    "produce",
]
