"""Client settings of every command, from one file: for clusters with TLS or SASL.

`ottla --client-config FILE …`, or OTTLA_CLIENT_CONFIG, names a file of Kafka client properties
(`security.protocol`, `sasl.mechanism`), as Kafka's tools take it (`ottla.client.properties`). `--bootstrap`
of the command says where to connect.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ottla.client.settings import ClientSettings

_file: str | None = None


def use_file(path: str | None) -> None:
    """Read client settings from this file."""
    global _file
    _file = path


def client_settings(client_id: str) -> ClientSettings:
    """The settings of the file, plus this client id unless the file has one."""
    settings: ClientSettings = {"client_id": client_id}
    if _file is not None:
        from ottla.client.properties import settings_from
        from ottla.config.properties import parse_properties

        found: Any = settings_from(parse_properties(Path(_file).read_text(encoding="utf-8")))
        settings.update(found)
    return settings
