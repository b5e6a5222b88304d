"""How the commands reach a cluster that is not open to everybody: a file of client settings, for all commands alike.

`ottla --client-config FILE …`, or OTTLA_CLIENT_CONFIG, names a file of Kafka's properties with its dotted names (`security.protocol`,
`sasl.mechanism`), as Kafka's own tools take it (`ottla.client.properties`). Where to connect the command's own --bootstrap says.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ottla.client.settings import ClientSettings

_file: str | None = None


def use_file(path: str | None) -> None:
    """Let the clients of this run take their settings from that file."""
    global _file
    _file = path


def client_settings(client_id: str) -> ClientSettings:
    """The settings that every client of a command gets: those of the file, and this client id unless it has one."""
    settings: ClientSettings = {"client_id": client_id}
    if _file is not None:
        from ottla.client.properties import settings_from
        from ottla.config.properties import parse_properties

        found: Any = settings_from(parse_properties(Path(_file).read_text(encoding="utf-8")))
        settings.update(found)
    return settings
