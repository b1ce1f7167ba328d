"""Queues as command lines name them: by name or by URL, of the caller's account or of another."""

from __future__ import annotations

from quaymaster.cli.shared.connection import ServerConnection


def name_of(queue: str) -> str:
    """Return the name of a queue given by name or URL."""
    return queue.rstrip("/").rpartition("/")[2]


def account_of(queue: str) -> str | None:
    """Return the account of a queue given by URL, None for a name."""
    from quaymaster.core.values.errors import CallerError
    from quaymaster.protocol.sqs.queue_urls import parse_queue_url

    try:
        return parse_queue_url(queue).account_id
    except CallerError:
        return None


def other_account(connection: ServerConnection, queue: str, account: str | None) -> str | None:
    """Return the account of a queue; None where it is the caller's own, or is not known to be another."""
    if account is None and connection.account_id is not None:
        account = account_of(queue)
    return None if account == connection.account_id else account
