"""`quaymaster policy`: policies, checked before a server gets them or evaluates them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from quaymaster.cli.shared import options
from quaymaster.cli.shared.connection import find_connection
from quaymaster.cli.shared.failures import CommandRefused, WrongUsage
from quaymaster.cli.shared.output import print_json, print_line

app = options.new_group("Check policies of queues, users and roles.")


class Checked(NamedTuple):
    """A policy that was checked: where it is, why it cannot be evaluated, and what in it is hardly meant."""

    place: str
    problem: str | None
    advice: tuple[str, ...]


@app.command()
def check(
    file: Annotated[Path | None, typer.Argument(help="File with a policy.", metavar="FILE")] = None,
    kind: Annotated[
        str,
        typer.Option(
            "--kind", help="What the file's policy is for: queue, identity or trust.", metavar="KIND"
        ),
    ] = "queue",
    queue: Annotated[
        str | None, typer.Option("--queue", help="Check the policy of this queue.", metavar="QUEUE")
    ] = None,
    all_queues: Annotated[
        bool, typer.Option("--all", help="Check the policies of all queues of the account.")
    ] = False,
    all_accounts: Annotated[
        bool,
        typer.Option("--accounts", help="With --all: of all accounts. For operators, over the admin API."),
    ] = False,
    data: options.Data = None,
    endpoint_url: options.EndpointURL = None,
    admin_url: options.AdminURL = None,
    as_json: options.AsJSON = False,
) -> None:
    """Say whether policies can be evaluated, and what in them hardly means what it seems to.

    Ends with 1 if a policy cannot be evaluated, or if the caller may not read one of --all. With --queue and --all, the
    server may be of an older version.
    """
    if (file is not None) + (queue is not None) + all_queues != 1:
        raise WrongUsage("Name a file, or give --queue or --all.")
    if all_accounts and not all_queues:
        raise WrongUsage("--accounts goes with --all.")
    if kind not in ("queue", "identity", "trust") or (kind != "queue" and file is None):
        raise WrongUsage("--kind is queue, identity or trust, of a policy in a file.")
    if file is not None and kind != "queue":
        checked = [_check_of_identity(str(file), options.read_text(file), kind)]
    elif file is not None:
        checked = [_check(str(file), options.read_text(file), is_new=True)]
    elif all_accounts:
        checked = _check_all_accounts(data, admin_url)
    else:
        checked = _check_stored(data, endpoint_url, queue)
    if as_json:
        print_json({"policies": [one._asdict() for one in checked]})
    else:
        for one in checked:
            for advice in one.advice:
                print_line(f"{one.place}: warning: {advice}")
            print_line(f"{one.place}: {one.problem or 'can be evaluated'}")
    wrong = sum(one.problem is not None for one in checked)
    if wrong:
        raise CommandRefused(f"{wrong} of {len(checked)} policies cannot be evaluated.")


def _check_stored(data: Path | None, endpoint_url: str | None, queue: str | None) -> list[Checked]:
    from quaymaster.cli.shared.client import SQSClient
    from quaymaster.core.values.queues.attributes import POLICY

    checked = []
    with SQSClient(find_connection(data, endpoint_url)) as sqs:
        for url in sqs.queue_urls() if queue is None else [sqs.queue_url(queue)]:
            try:
                text = sqs.attributes(url, POLICY.name).get(POLICY.name)
            except CommandRefused as error:
                if queue is not None or error.code != "AccessDenied":
                    raise
                checked.append(Checked(url, f"cannot be read: {error.message}", ()))
                continue
            if text is not None:
                checked.append(_check(url, text, is_new=False))
    return checked


def _check_all_accounts(data: Path | None, admin_url: str | None) -> list[Checked]:
    """Check the policies of all queues. Places are `ACCOUNT/QUEUE`; accounts that are disabled are checked, too."""
    from quaymaster.cli.shared.client import AdminClient

    with AdminClient(find_connection(data, None), admin_url) as admin:
        return [
            _check(f"{account['account_id']}/{row['name']}", row["policy"], is_new=False)
            for account in admin.accounts()
            for row in admin.policies(account["account_id"])
        ]


def _check_of_identity(place: str, text: str, kind: str) -> Checked:
    """Check the policy of a user or role, or a trust policy."""
    from quaymaster.core.access.advice import advice_on
    from quaymaster.core.access.errors import PolicyError
    from quaymaster.core.access.kinds import PolicyKind
    from quaymaster.core.access.policies import (
        IDENTITY_POLICY_BYTES_MAX,
        TRUST_POLICY_BYTES_MAX,
        check_policy_bytes,
        compile_policy,
    )

    policy_kind = PolicyKind(kind)
    bytes_max = TRUST_POLICY_BYTES_MAX if policy_kind is PolicyKind.TRUST else IDENTITY_POLICY_BYTES_MAX
    try:
        check_policy_bytes(text.strip(), bytes_max)
        policy = compile_policy(text, policy_kind)
    except PolicyError as error:
        return Checked(place, str(error), ())
    return Checked(place, None, advice_on(policy))


def _check(place: str, text: str, *, is_new: bool) -> Checked:
    """Check a policy's text; a new one's size too: AddPermission may have made a stored one larger."""
    from quaymaster.core.access.advice import advice_on
    from quaymaster.core.access.errors import PolicyError
    from quaymaster.core.access.policies import check_queue_policy_size, compile_policy

    try:
        policy = compile_policy(text)
        if is_new:
            check_queue_policy_size(text, policy)
    except PolicyError as error:
        return Checked(place, str(error), ())
    return Checked(place, None, advice_on(policy))
