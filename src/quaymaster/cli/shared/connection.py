"""Where the server is and who we are to it: from flags, environment, profile or data directory.

First found wins:

    1. `--endpoint-url`, with credentials from the AWS environment variables
    2. `--data`, whose `client.json` the server wrote at its start; or `--profile`
    3. `AWS_ENDPOINT_URL_SQS` or `AWS_ENDPOINT_URL`, with credentials from the environment; the admin port from
       what is below, if that is of the same server
    4. the profile that QUAYMASTER_PROFILE names
    5. `client.json` in QUAYMASTER_DATA_DIRECTORY
    6. the profile in use (`quaymaster profile use`)
    7. `client.json` in ./quaymaster-data
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from quaymaster.cli.shared.failures import CommandFailed, NoServer, WrongUsage, reason_of
from quaymaster.cli.shared.profile_files import (
    PROFILE_VARIABLE,
    Profile,
    current_profile,
    named_profile,
    read_profile,
)
from quaymaster.node.data.client_file import CLIENT_FILE

DATA_VARIABLE = "QUAYMASTER_DATA_DIRECTORY"
DATA_DEFAULT = Path("quaymaster-data")
REGION_DEFAULT = "us-east-1"

Fields = TypeVar("Fields")


class ServerConnection(NamedTuple):
    """All a client needs. `admin_url` and `account_id` are None where only an SQS endpoint is known."""

    endpoint_url: str
    region: str
    access_key_id: str
    secret_access_key: str
    session_token: str | None = None
    account_id: str | None = None
    admin_url: str | None = None


def data_directory(data: Path | None, environment: Mapping[str, str] | None = None) -> Path:
    """Return the data directory that a command without `--data` means."""
    environment = os.environ if environment is None else environment
    return data if data is not None else Path(environment.get(DATA_VARIABLE) or DATA_DEFAULT)


def read_client_file(directory: Path) -> ServerConnection:
    """Return what the server in `directory` wrote about itself at its last start.

    Raises:
        NoServer: there is no such file, it may not be read, or it is not whole.
    """
    return read_server_file(
        directory / CLIENT_FILE,
        lambda fields: ServerConnection(
            endpoint_url=fields["endpoint_url"],
            region=fields["region"],
            access_key_id=fields["access_key_id"],
            secret_access_key=fields["secret_access_key"],
            account_id=fields["account_id"],
            admin_url=fields["admin_url"],
        ),
        absent="no server was started on this data directory. "
        f"Start one with `quaymaster serve --data {directory}`, or name the directory with --data.",
    )


def read_server_file(path: Path, parse: Callable[[Any], Fields], *, absent: str) -> Fields:
    """Return what a server wrote into a JSON file about itself. `absent`: why there may be none, and what to do.

    Raises:
        NoServer: there is no such file, it may not be read, or it is not whole.
    """
    try:
        return parse(json.loads(path.read_bytes()))
    except FileNotFoundError:
        raise NoServer(f"{path} does not exist: {absent}") from None
    except PermissionError:
        raise NoServer(f"{path} may only be read by the user who runs the server.") from None
    except OSError as error:
        raise NoServer(f"{path} cannot be read: {reason_of(error)}.") from None
    except (ValueError, KeyError, TypeError):
        raise NoServer(f"{path} is not whole; start the server again to write it anew.") from None


def connection_fields(connection: ServerConnection) -> dict[str, str | None]:
    """Return what `quaymaster env --json` prints, which is what `client.json` holds."""
    return {
        "endpoint_url": connection.endpoint_url,
        "admin_url": connection.admin_url,
        "region": connection.region,
        "account_id": connection.account_id,
        "access_key_id": connection.access_key_id,
        "secret_access_key": connection.secret_access_key,
    }


def find_connection(
    data: Path | None,
    endpoint_url: str | None,
    *,
    environment: Mapping[str, str] | None = None,
) -> ServerConnection:
    """Return how to reach the server that the flags, the environment and the profile mean.

    Raises:
        NoServer: no data directory with a `client.json`.
        CommandRefused: there is no such profile.
        WrongUsage: an endpoint without credentials, a profile without an endpoint, or two ways at once.
    """
    environment = os.environ if environment is None else environment
    if (endpoint_url is not None) + (data is not None) + (named_profile() is not None) > 1:
        raise WrongUsage(
            "--data, --endpoint-url and --profile exclude each other: each says where the server is."
        )
    if endpoint_url is not None:
        return _from_environment(endpoint_url, environment)
    inherited = environment.get("AWS_ENDPOINT_URL_SQS") or environment.get("AWS_ENDPOINT_URL")
    if inherited and data is None and named_profile() is None:
        return _with_admin(_from_environment(inherited, environment), environment)
    return known_server(data, environment)


def known_server(data: Path | None, environment: Mapping[str, str]) -> ServerConnection:
    """Return the server that --data, a profile or the data directory knows. Raises as `find_connection`."""
    profile = None if data is not None else chosen_profile(environment)
    if profile is None:
        return read_client_file(data_directory(data, environment))
    return _from_profile(profile, read_profile(profile, environment))


def chosen_profile(environment: Mapping[str, str]) -> str | None:
    """Return the name of the profile that commands without --data take; None if they take none."""
    named = named_profile() or environment.get(PROFILE_VARIABLE)
    if named:
        return named
    return None if environment.get(DATA_VARIABLE) else current_profile(environment)


def _from_profile(name: str, profile: Profile) -> ServerConnection:
    if not (profile.endpoint_url and profile.access_key_id and profile.secret_access_key):
        raise WrongUsage(f"The profile {name} has no endpoint with credentials; name the server with --data.")
    return ServerConnection(
        endpoint_url=profile.endpoint_url,
        region=profile.region or REGION_DEFAULT,
        access_key_id=profile.access_key_id,
        secret_access_key=profile.secret_access_key,
        session_token=profile.session_token,
        account_id=profile.account_id,
        admin_url=profile.admin_url,
    )


def _with_admin(connection: ServerConnection, environment: Mapping[str, str]) -> ServerConnection:
    """Add what `quaymaster env` has no variable for, if the server that is known here is the one that is meant."""
    try:
        server = known_server(None, environment)
    except CommandFailed:
        return connection
    if server.endpoint_url != connection.endpoint_url:
        return connection
    return connection._replace(account_id=server.account_id, admin_url=server.admin_url)


def _from_environment(endpoint_url: str, environment: Mapping[str, str]) -> ServerConnection:
    if not endpoint_url.startswith(("http://", "https://")):
        raise WrongUsage(f"The endpoint {endpoint_url!r} is no URL; write http://host:port.")
    access_key_id = environment.get("AWS_ACCESS_KEY_ID")
    secret_access_key = environment.get("AWS_SECRET_ACCESS_KEY")
    if not access_key_id or not secret_access_key:
        raise WrongUsage(
            f"The endpoint {endpoint_url} needs credentials: set AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY, or use --data with a data directory of this machine."
        )
    return ServerConnection(
        endpoint_url=endpoint_url.rstrip("/"),
        region=environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION") or REGION_DEFAULT,
        access_key_id=access_key_id,
        secret_access_key=secret_access_key,
        session_token=environment.get("AWS_SESSION_TOKEN"),
    )
