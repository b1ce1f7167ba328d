"""`quaymaster key`: access keys of accounts. `master-key`, `receipt-key`, `session-key`: the server's own keys.

All of them go over the admin API.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from quaymaster.cli.admin.identity_calls import last_use_of
from quaymaster.cli.shared import options
from quaymaster.cli.shared.connection import find_connection
from quaymaster.cli.shared.failures import CommandFailed
from quaymaster.cli.shared.output import note, print_json, print_line, print_table, progress_bar, time_as_text

ROTATION_WAIT_MS = 600_000

app = options.new_group("Create, disable and delete access keys.")
master_key_app = options.new_group("The key that wraps all data keys and secrets.")
receipt_key_app = options.new_group("The key that signs receipt handles.")
session_key_app = options.new_group("The key that encrypts session tokens.")

AccessKeyID = Annotated[str, typer.Argument(help="Access key id.", metavar="ACCESS-KEY-ID")]


@app.command("list")
def list_keys(
    account: options.Account = None,
    data: options.Data = None,
    admin_url: options.AdminURL = None,
    as_json: options.AsJSON = False,
) -> None:
    """List the access keys of an account, and the hour in which each was last used. Secrets are never shown again.

    Temporary credentials made of them are stored nowhere, so they cannot be listed.
    """
    from quaymaster.cli.shared.client import AdminClient

    connection = find_connection(data, None)
    with AdminClient(connection, admin_url) as admin:
        result = admin.call("ListAccessKeys", account_id=account or connection.account_id)
    if as_json:
        print_json(result)
    else:
        print_table(
            ("ACCESS KEY ID", "ACCOUNT ID", "USER", "NAME", "ENABLED", "CREATED", "LAST USED"),
            (
                (
                    key["access_key_id"],
                    key["account_id"],
                    key.get("user"),
                    key["name"] or None,
                    key["enabled"],
                    time_as_text(key["created_ms"]),
                    last_use_of(key),
                )
                for key in result["keys"]
            ),
        )


@app.command()
def create(
    account: options.Account = None,
    user: Annotated[
        str | None, typer.Option("--user", help="User whose key it is; otherwise a root key.", metavar="NAME")
    ] = None,
    name: Annotated[str, typer.Option("--name", help="What it is for.", metavar="TEXT")] = "",
    data: options.Data = None,
    admin_url: options.AdminURL = None,
    as_json: options.AsJSON = False,
) -> None:
    """Create an access key, of a user or of the account's root. Its secret is shown only now."""
    from quaymaster.cli.shared.client import AdminClient

    connection = find_connection(data, None)
    account_id = account or connection.account_id
    with AdminClient(connection, admin_url) as admin:
        fields: dict[str, Any] = {"name": name} | ({"account_id": account_id} if account_id else {})
        fields |= {"user": user} if user else {}
        result = admin.call("CreateAccessKey", **fields)
    _print_secret(result, as_json)


@app.command()
def rotate(
    access_key_id: AccessKeyID,
    data: options.Data = None,
    admin_url: options.AdminURL = None,
    as_json: options.AsJSON = False,
) -> None:
    """Give a key a new secret, which is shown only now. Its temporary credentials end."""
    from quaymaster.cli.shared.client import AdminClient

    with AdminClient(find_connection(data, None), admin_url) as admin:
        result = admin.call("RotateAccessKey", access_key_id=access_key_id)
    _print_secret(result, as_json)


@app.command()
def session(
    access_key_id: AccessKeyID,
    seconds: Annotated[int, typer.Option("--seconds", help="How long they are good for.", min=1)] = 3600,
    data: options.Data = None,
    admin_url: options.AdminURL = None,
    as_json: options.AsJSON = False,
) -> None:
    """Make temporary credentials of a key, with a session token.

    They end with their time, or when the key is disabled, rotated or deleted.
    """
    from quaymaster.cli.shared.client import AdminClient

    with AdminClient(find_connection(data, None), admin_url) as admin:
        result = admin.call("CreateSession", access_key_id=access_key_id, duration_s=seconds)
    _print_secret(result, as_json)


@app.command("metrics-password")
def show_metrics_password(
    data: options.Data = None,
    endpoint_url: options.EndpointURL = None,
    as_json: options.AsJSON = False,
) -> None:
    """Show by which URL, name and password Prometheus reads the metrics of the account's queues.

    The password is of the access key that commands use. It reads metrics only, and is good as long as the key.
    """
    from quaymaster.protocol.sqs.metrics_password import METRICS_PATH, metrics_password

    connection = find_connection(data, endpoint_url)
    if not connection.access_key_id or connection.session_token is not None:
        raise CommandFailed(
            "only long-lived access keys have a metrics password: name one in the environment"
        )
    shown = {
        "url": connection.endpoint_url + METRICS_PATH.decode(),
        "username": connection.access_key_id,
        "password": metrics_password(connection.secret_access_key),
    }
    if as_json:
        print_json(shown)
    else:
        print_table(("FIELD", "VALUE"), list(shown.items()))


@app.command()
def disable(
    access_key_id: AccessKeyID,
    data: options.Data = None,
    admin_url: options.AdminURL = None,
    as_json: options.AsJSON = False,
) -> None:
    """Refuse requests signed with a key, until it is enabled again. Its temporary credentials end."""
    _change(data, admin_url, as_json, "DisableAccessKey", access_key_id)


@app.command()
def enable(
    access_key_id: AccessKeyID,
    data: options.Data = None,
    admin_url: options.AdminURL = None,
    as_json: options.AsJSON = False,
) -> None:
    """Take requests signed with a disabled key again."""
    _change(data, admin_url, as_json, "EnableAccessKey", access_key_id)


@app.command()
def delete(
    access_key_id: AccessKeyID,
    data: options.Data = None,
    admin_url: options.AdminURL = None,
    as_json: options.AsJSON = False,
) -> None:
    """Delete a key for good, with its temporary credentials."""
    _change(data, admin_url, as_json, "DeleteAccessKey", access_key_id)


@master_key_app.command("rotate")
def rotate_master_key(
    data: options.Data = None,
    admin_url: options.AdminURL = None,
    as_json: options.AsJSON = False,
) -> None:
    """Make a new master key and wrap every data key with it. The server keeps serving.

    The old key is removed from `keys/`. Backups made before need it: copy `keys/` first if you keep such backups.
    """
    result = _rotate(data, admin_url, as_json, "RotateMasterKey", "Wrapping data keys")
    previous = result["previous_master_key_id"]
    note(f"Backups made before this need the old master key {previous}: keep a copy of it.")


@receipt_key_app.command("rotate")
def rotate_receipt_key(
    data: options.Data = None,
    admin_url: options.AdminURL = None,
    as_json: options.AsJSON = False,
) -> None:
    """Sign new receipt handles with a new key. Handles given out before stay good for 12 hours."""
    _rotate(data, admin_url, as_json, "RotateReceiptKey", "Making a receipt key")


@session_key_app.command("rotate")
def rotate_session_key(
    data: options.Data = None,
    admin_url: options.AdminURL = None,
    as_json: options.AsJSON = False,
) -> None:
    """Encrypt new session tokens with a new key. Temporary credentials made before stay good until they end.

    The server renews the key each week by itself.
    """
    _rotate(data, admin_url, as_json, "RotateSessionKey", "Making a session key")


def _print_secret(key: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(key)
        return
    shown = ("access_key_id", "secret_access_key", "session_token", "account_id")
    print_table(("FIELD", "VALUE"), [(name, key[name]) for name in shown if key.get(name)])


def _change(
    data: options.Data,
    admin_url: options.AdminURL,
    as_json: bool,
    operation: str,
    access_key_id: str,
) -> None:
    from quaymaster.cli.shared.client import AdminClient

    with AdminClient(find_connection(data, None), admin_url) as admin:
        result = admin.call(operation, access_key_id=access_key_id)
    if as_json:
        print_json(result or {"access_key_id": access_key_id})


def _rotate(
    data: options.Data, admin_url: options.AdminURL, as_json: bool, operation: str, label: str
) -> dict[str, Any]:
    from quaymaster.cli.shared.client import AdminClient

    with (
        AdminClient(find_connection(data, None), admin_url) as admin,
        progress_bar(label, quiet=as_json),
    ):
        result: dict[str, Any] = admin.call(operation, wait_ms=ROTATION_WAIT_MS)
    if as_json:
        print_json(result)
    else:
        print_line(", ".join(f"{name} {value}" for name, value in result.items()) or "done")
    return result
