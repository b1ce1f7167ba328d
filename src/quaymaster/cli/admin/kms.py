"""`quaymaster kms`: keys of the server that queues can name with KmsMasterKeyId. Over the admin API."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from quaymaster.cli.shared import options
from quaymaster.cli.shared.connection import find_connection
from quaymaster.cli.shared.failures import CommandRefused
from quaymaster.cli.shared.output import print_json, print_line, print_table, time_as_text

app = options.new_group("Create, list, disable and delete keys that queues name, where kms is local.")

Key = Annotated[str, typer.Argument(help="The key's id, or one of its aliases.", metavar="KEY")]
ALIAS = "alias/"


@app.command()
def create(
    alias: Annotated[
        str | None, typer.Option("--alias", help="An alias that names it, such as alias/orders.")
    ] = None,
    description: Annotated[str, typer.Option("--description", help="What it is for.", metavar="TEXT")] = "",
    account: options.Account = None,
    data: options.Data = None,
    admin_url: options.AdminURL = None,
    as_json: options.AsJSON = False,
) -> None:
    """Create a key. Queues name it by id, ARN or alias."""
    fields = {"description": description}
    if alias is not None:
        fields["alias"] = alias
    if account is not None:
        fields["account_id"] = account
    _print(_call(data, admin_url, "CreateKMSKey", **fields), as_json)


@app.command("list")
def list_keys(
    account: options.Account = None,
    data: options.Data = None,
    admin_url: options.AdminURL = None,
    as_json: options.AsJSON = False,
) -> None:
    """List the keys of an account."""
    result = _call(data, admin_url, "ListKMSKeys", account_id=account)
    if as_json:
        print_json(result)
        return
    print_table(
        ("KEY ID", "STATE", "CREATED", "ALIASES", "DESCRIPTION"),
        (
            (
                key["key_id"],
                key["state"],
                time_as_text(key["created_ms"]),
                " ".join(key["aliases"]),
                key["description"],
            )
            for key in result["keys"]
        ),
    )


@app.command()
def show(
    key: Key,
    account: options.Account = None,
    data: options.Data = None,
    admin_url: options.AdminURL = None,
    as_json: options.AsJSON = False,
) -> None:
    """Show a key."""
    key_id = _id_of(data, admin_url, key, account)
    _print(_call(data, admin_url, "GetKMSKey", key_id=key_id, account_id=account), as_json)


@app.command()
def disable(
    key: Key,
    account: options.Account = None,
    data: options.Data = None,
    admin_url: options.AdminURL = None,
    as_json: options.AsJSON = False,
) -> None:
    """Refuse sends and receives of queues that name a key, until it is enabled again."""
    _change(data, admin_url, as_json, key, account, "DisableKMSKey")


@app.command()
def enable(
    key: Key,
    account: options.Account = None,
    data: options.Data = None,
    admin_url: options.AdminURL = None,
    as_json: options.AsJSON = False,
) -> None:
    """Serve queues that name a disabled key again."""
    _change(data, admin_url, as_json, key, account, "EnableKMSKey")


@app.command("schedule-deletion")
def schedule_deletion(
    key: Key,
    days: Annotated[int, typer.Option("--days", help="In how many days, 7 to 30.", metavar="DAYS")] = 30,
    account: options.Account = None,
    data: options.Data = None,
    admin_url: options.AdminURL = None,
    as_json: options.AsJSON = False,
) -> None:
    """Delete a key in some days; it cannot be used from now on.

    Messages that it protects can then never be read again. Until then, cancel-deletion keeps it.
    """
    _change(data, admin_url, as_json, key, account, "ScheduleKMSKeyDeletion", days=days)


@app.command("cancel-deletion")
def cancel_deletion(
    key: Key,
    account: options.Account = None,
    data: options.Data = None,
    admin_url: options.AdminURL = None,
    as_json: options.AsJSON = False,
) -> None:
    """Keep a key that was to be deleted. It is disabled: enable it to use it again."""
    _change(data, admin_url, as_json, key, account, "CancelKMSKeyDeletion")


@app.command("alias")
def set_alias(
    alias: Annotated[str, typer.Argument(help="The alias, such as alias/orders.", metavar="ALIAS")],
    key: Annotated[
        str | None, typer.Argument(help="The key that it names from now on.", metavar="KEY")
    ] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Take the alias away.")] = False,
    account: options.Account = None,
    data: options.Data = None,
    admin_url: options.AdminURL = None,
    as_json: options.AsJSON = False,
) -> None:
    """Let an alias name a key, or take it away. Messages that are stored stay with the key they had."""
    if remove == (key is not None):
        raise CommandRefused("Name the key, or give --remove.")
    if key is not None:
        _change(data, admin_url, as_json, key, account, "SetKMSAlias", alias=alias)
        return
    from quaymaster.cli.shared.client import AdminClient

    with AdminClient(find_connection(data, None), admin_url) as admin:
        result = admin.call("DeleteKMSAlias", account_id=account, alias=alias)
    if as_json:
        print_json(result)
    else:
        print_line(f"Removed {alias}.")


def _change(
    data: options.Data,
    admin_url: options.AdminURL,
    as_json: bool,
    key: str,
    account: str | None,
    operation: str,
    **members: Any,
) -> None:
    key_id = _id_of(data, admin_url, key, account)
    result = _call(data, admin_url, operation, key_id=key_id, account_id=account, **members)
    if as_json:
        print_json(result)
        return
    until = (
        "" if result["deletion_ms"] is None else f", to be deleted at {time_as_text(result['deletion_ms'])}"
    )
    print_line(f"The key {result['key_id']} is {result['state']}{until}.")


def _id_of(data: options.Data, admin_url: options.AdminURL, key: str, account: str | None) -> str:
    """Return the id of a key that is given by id, ARN or alias."""
    name = key.rpartition(":")[2]
    if not name.startswith(ALIAS):
        return name.removeprefix("key/")
    for row in _call(data, admin_url, "ListKMSKeys", account_id=account)["keys"]:
        if name in row["aliases"]:
            return str(row["key_id"])
    raise CommandRefused(f"There is no key with the alias {name}.")


def _call(
    data: options.Data,
    admin_url: options.AdminURL,
    operation: str,
    **members: Any,
) -> dict[str, Any]:
    from quaymaster.cli.shared.client import AdminClient

    with AdminClient(find_connection(data, None), admin_url) as admin:
        return admin.call(operation, **members)


def _print(key: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(key)
        return
    shown = ("key_id", "arn", "state", "aliases", "description")
    values = {**key, "aliases": " ".join(key["aliases"])}
    print_table(("FIELD", "VALUE"), [(name, values[name]) for name in shown if values[name]])
