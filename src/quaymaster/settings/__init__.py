"""All settings: read once at start, frozen, and passed down as plain arguments.

with no file:      load_settings(flags={"listen": "127.0.0.1:9324"})
with a TOML file:  load_settings(Path("quaymaster.toml"))

table ──▶ values ──▶ checks: Settings ──▶ loading, reference
"""

from quaymaster.settings.addresses import (
    UNIX_PREFIX,
    Address,
    parse_address,
    parse_edge_listen,
    parse_endpoint,
)
from quaymaster.settings.checks import Settings
from quaymaster.settings.loading import (
    CONFIG_VARIABLE,
    SettingsError,
    load_settings,
    read_settings_file,
    settings_file,
    unknown_variables,
)
from quaymaster.settings.reference import effective_settings, meanings, settings_as_markdown
from quaymaster.settings.table import ENVIRONMENT_PREFIX
from quaymaster.settings.values import EDGE_SOCKET

__all__ = [
    "CONFIG_VARIABLE",
    "EDGE_SOCKET",
    "ENVIRONMENT_PREFIX",
    "UNIX_PREFIX",
    "Address",
    "Settings",
    "SettingsError",
    "effective_settings",
    "load_settings",
    "meanings",
    "parse_address",
    "parse_edge_listen",
    "parse_endpoint",
    "read_settings_file",
    "settings_as_markdown",
    "settings_file",
    "unknown_variables",
]
