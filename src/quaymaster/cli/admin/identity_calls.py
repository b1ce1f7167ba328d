"""What the commands about users and roles have in common: their options, their requests, and what they print."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from quaymaster.cli.shared import options
from quaymaster.cli.shared.connection import find_connection
from quaymaster.cli.shared.output import print_json, print_line, print_table, time_as_text

if TYPE_CHECKING:
    from quaymaster.cli.shared.client import AdminClient

Kind = Literal["users", "roles"]

UserName = Annotated[str, typer.Argument(help="Name of the user.", metavar="NAME")]
RoleName = Annotated[str, typer.Argument(help="Name of the role.", metavar="NAME")]
PolicyName = Annotated[str, typer.Argument(help="Name of the policy.", metavar="POLICY")]
PolicyFile = Annotated[Path, typer.Argument(help="File with the policy, IAM JSON.", metavar="FILE")]
NamePath = Annotated[
    str, typer.Option("--path", help="Path in the ARN, for example /staff/.", metavar="PATH")
]


class Admin:
    """The admin API of one command, for one account."""

    def __init__(self, data: Path | None, admin_url: str | None, account: str | None) -> None:
        from quaymaster.cli.shared.client import AdminClient

        connection = find_connection(data, None)
        self.account_id = account or connection.account_id
        self._client = AdminClient(connection, admin_url)

    def __enter__(self) -> Admin:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.__exit__(None, None, None)

    @property
    def client(self) -> AdminClient:
        """What sends the requests."""
        return self._client

    def call(self, operation: str, /, **members: Any) -> dict[str, Any]:
        """Ask for an operation on what the account has; members without a value are left out."""
        return self._client.call(operation, account_id=self.account_id, **members)

    def listed(self, kind: Kind) -> Iterator[dict[str, Any]]:
        """Yield the account's users or roles by name, page by page."""
        operation = "ListUsers" if kind == "users" else "ListRoles"
        return self._client.pages(operation, kind, account_id=self.account_id)

    def show(self, kind: Kind, name: str) -> dict[str, Any]:
        """Return one of the account's users or roles with its policies."""
        return self.call("GetRole" if kind == "roles" else "GetUser", name=name)


def read_policy_file(file: Path) -> str:
    """Return the text of a policy; WrongUsage where it cannot be read."""
    return options.read_text(file).strip()


def print_listed(kind: Kind, admin: Admin, as_json: bool) -> None:
    """Print an account's users or roles."""
    found = list(admin.listed(kind))
    if as_json:
        print_json({kind: found})
        return
    print_table(
        ("NAME", "ID", "CREATED", "ARN"),
        ((one["name"], one["id"], time_as_text(one["created_ms"]), one["arn"]) for one in found),
    )


def print_identity(found: dict[str, Any], as_json: bool) -> None:
    """Print a user or role with its policies."""
    if as_json:
        print_json(found)
        return
    rows: list[tuple[str, Any]] = [(name, found[name]) for name in ("arn", "id") if name in found]
    rows.append(("created", time_as_text(found["created_ms"])))
    if "session_max_s" in found:
        rows.append(("sessions", f"up to {found['session_max_s']} s"))
    rows += [
        (
            "key",
            f"{key['access_key_id']}{'' if key['enabled'] else ' (disabled)'}, last used: {last_use_of(key)}",
        )
        for key in found.get("keys", ())
    ]
    rows += [("means nobody", arn) for arn in found.get("stale", ())]
    print_table(("FIELD", "VALUE"), rows)
    trust = {"trust policy": found["trust_policy"]} if "trust_policy" in found else {}
    documents = {**trust, **found["policies"]}
    for name, text in documents.items():
        problem = found["problems"].get(name)
        print_line()
        print_line(f"{name}:" + (f" cannot be evaluated, and denies: {problem}" if problem else ""))
        print_line(_indented(text))


def last_use_of(key: dict[str, Any]) -> str:
    """Return when a key was used last, as text: the beginning of that hour."""
    if "last_used_ms" not in key:
        return "unknown"
    used_ms = key["last_used_ms"]
    return "never" if used_ms is None else time_as_text(used_ms)


def _indented(text: str) -> str:
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except ValueError:
        return text


def print_done(answer: dict[str, Any], text: str, as_json: bool) -> None:
    """Print what was changed."""
    if as_json:
        print_json(answer)
    else:
        print_line(text)
