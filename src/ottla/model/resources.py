"""The resource types of the config APIs, by Kafka's numbers and names (`ConfigResource.Type`)."""

from __future__ import annotations

from typing import Final

RESOURCE_TYPES: Final = {
    0: "UNKNOWN", 2: "TOPIC", 4: "BROKER", 8: "BROKER_LOGGER", 16: "CLIENT_METRICS", 32: "GROUP",
}  # fmt: skip


def resource_type_name(number: int) -> str:
    """`TOPIC`, `BROKER` and so on; an unknown number is shown as `type 77`."""
    return RESOURCE_TYPES.get(number, f"type {number}")


def no_settings(number: int) -> str:
    """The message for a resource type without settings on this broker."""
    known = "Use TOPIC (2), BROKER (4) or GROUP (32)"
    if number not in RESOURCE_TYPES or number == 0:
        return f"resource type {number} is unknown. {known}"
    return f"{RESOURCE_TYPES[number]} resources have no settings on this broker. {known}"
