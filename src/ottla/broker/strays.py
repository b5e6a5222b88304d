"""Partitions found at a start that the metadata does not know: which of them are rubbish, and which may be somebody's data.

A topic that was deleted leaves its directory behind if the broker dies at the wrong moment, so a stray is removed. But a damaged
file looks much the same, and then removing would turn one flipped bit into the loss of a log. So a partition with records in it is
kept, under a name that no topic has, if the end of the metadata journal had to be cut off (the topic may have been made
there), or if there is a topic of that name and only the id in `partition.metadata` is another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.controller.image import Image
from ottla.log.names import LOG, parse_partition_dir, stray_dir

if TYPE_CHECKING:
    from ottla.broker.core import Broker


def keep_aside(broker: Broker, path: str, image: Image) -> bool:
    """Rename the directory and say so, if it may be worth keeping; False if it can be removed."""
    above, _, name = path.rpartition("/")
    partition = parse_partition_dir(name)
    if partition is None or not (broker.metadata_was_cut or partition[0] in image.topics):
        return False
    disk = broker.disk
    logs = [disk.open(f"{path}/{file}") for file in disk.list(path) if file.endswith(LOG)]
    if not any(disk.size(log) for log in logs):
        return False
    target = f"{above}/{stray_dir(*partition, broker.entropy.id_bytes())}"
    disk.rename(path, target)
    why = "the end of the metadata journal was lost" if broker.metadata_was_cut else "its topic id is another"
    broker.say(
        f"{path} belongs to no topic ({why}): kept as {target}. Remove it if nobody misses its records"
    )
    return True
