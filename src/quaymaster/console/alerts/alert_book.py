"""What is asked of alerts and destinations: made, changed, looked at, deleted. CloudWatch's operations and the admin
API are two ways to ask it.

Errors are those of `core/values/errors`. Each change is one transaction, so that an alert, its state and its history
belong together whatever crashes; where another console changed the same it is decided again.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final, Protocol, TypeVar

from msgspec.structs import replace

from quaymaster.console.alerts.alert_rows import AlertRows
from quaymaster.coordination.interface import Compare, Put, RevisionMismatch
from quaymaster.core.alerts.alerts import (
    CONFIRMATION_MAILS,
    PAST_ALERTS,
    Alert,
    AlertStatus,
    Destination,
    DestinationKind,
    MailCount,
    PastAlert,
    PastChange,
    State,
    decode_alert_row,
    encode_alert_row,
    row_name,
)
from quaymaster.core.alerts.rules import (
    DESTINATIONS_PER_ACCOUNT_MAX,
    DestinationName,
    check_alert,
    check_destination_name,
    check_mail_address,
    check_tags,
    missing_destinations,
    parse_action,
)
from quaymaster.core.alerts.transitions import set_state
from quaymaster.core.values.errors import (
    InvalidParameterValue,
    LimitExceeded,
    NotNow,
    ResourceNotFound,
    UnsupportedOperation,
)
from quaymaster.core.values.queues.queue_names import QueueArn
from quaymaster.net.outbound.urls import BadURL, parse_url
from quaymaster.protocol.webhooks.signing import derived_secret, secret_text

ALERTS_PER_ACCOUNT_MAX: Final = 1_000
MAILS_PER_DAY_MAX: Final = 10
"""Confirmation mails that an account may ask for, and that an address gets, on a day."""
DAY_MS: Final = 86_400_000
ATTEMPTS_MAX: Final = 20
"""So often a change is decided again because others changed the same."""
ID_BYTES: Final = 8
REASON_CHARS_MAX: Final = 1_023
REASON_DATA_CHARS_MAX: Final = 4_000

_Done = TypeVar("_Done")
AccountCondition = Callable[[str], Awaitable[Compare]]
"""Returns the condition that an account stays as it is; raises ResourceNotFound where it was deleted, or never was."""


class ConfirmationMails(Protocol):
    """Sends the mail whose link confirms an address."""

    @property
    def why_not(self) -> str:
        """Why no mail can be sent, empty where it can."""
        ...

    async def send_confirmation(self, destination: Destination) -> None:
        """Raise NotNow where it cannot be sent now."""


class AlertBook:
    """The alerts of all accounts. `key` is the secret of webhooks and confirmations, which all consoles share."""

    def __init__(
        self,
        rows: AlertRows,
        *,
        account_condition: AccountCondition,
        mails: ConfirmationMails,
        key: bytes,
        now_ms: Callable[[], int],
        alerts_per_account_max: int = ALERTS_PER_ACCOUNT_MAX,
    ) -> None:
        self.rows = rows
        self._account_condition = account_condition
        self._mails = mails
        self._key = key
        self.now_ms = now_ms
        self._alerts_per_account_max = alerts_per_account_max
        self.on_change: Callable[[], None] = lambda: None
        """Called after a transition: there may be something to deliver."""

    # Alerts

    def alert(self, account_id: str, name: str) -> Alert:
        """Return an alert; ResourceNotFound."""
        found = self.rows.alerts.get(account_id, name)
        if found is None:
            raise ResourceNotFound(f"The alert {name} does not exist.")
        return found

    async def put(self, alert: Alert) -> Alert:
        """Make an alert, or change all of it but its state and tags. Returns it as stored.

        Raises:
            InvalidParameterValue: it cannot be, or names destinations that the account does not have.
            LimitExceeded: the account has too many alerts.
            ResourceNotFound: there is no such account.
        """
        check_alert(alert)
        missing = missing_destinations(
            alert, alert.account_id, (row.name for row in self.rows.destinations.of_account(alert.account_id))
        )
        if missing:
            raise InvalidParameterValue(f"Invalid action {missing[0]}: the account has no such destination.")
        return await self._decided(lambda: self._put(alert))

    async def _put(self, alert: Alert) -> Alert:
        account_id, name, now_ms = alert.account_id, alert.name, self.now_ms()
        account = await self._account_condition(account_id)
        existing = self.rows.alerts.get(account_id, name)
        unchanged = self.rows.alerts.compare(account_id, name)
        if existing is None:
            if self.rows.alerts.count(account_id) >= self._alerts_per_account_max:
                raise LimitExceeded(
                    f"An account may have {self._alerts_per_account_max} alerts (alerts_per_account_max)."
                )
            new = replace(alert, created_ms=now_ms, updated_ms=now_ms)
        else:
            new = replace(alert, created_ms=existing.created_ms, updated_ms=now_ms, tags=existing.tags)
        puts = [Put(unchanged.key, encode_alert_row(new))]
        if existing is None:
            status = AlertStatus(changed_ms=now_ms)
            puts.append(Put(self.rows.states.key(account_id, name), encode_alert_row(status)))
        done = "created" if existing is None else "updated"
        await self._transact([account, unchanged], puts, new, _configured(new, done, now_ms))
        return new

    async def delete(self, account_id: str, names: Iterable[str]) -> None:
        """Delete alerts, their states and histories; ResourceNotFound names those that there are not."""
        wanted = list(dict.fromkeys(names))
        missing = [name for name in wanted if self.rows.alerts.get(account_id, name) is None]
        if missing:
            raise ResourceNotFound(f"These alerts do not exist: {', '.join(missing)}.")
        for name in wanted:
            await self.rows.transact(
                [],
                deletes=[
                    self.rows.alerts.key(account_id, name),
                    self.rows.states.key(account_id, name),
                    PAST_ALERTS + row_name(account_id, name),
                ],
            )

    async def set_state(self, account_id: str, name: str, state: State, reason: str, data: str = "") -> None:
        """Put an alert into a state until it is evaluated next, and tell its actions.

        ResourceNotFound; InvalidParameterValue.
        """
        if len(reason) > REASON_CHARS_MAX or len(data) > REASON_DATA_CHARS_MAX:
            raise InvalidParameterValue("The reason or its data are too long.")
        await self._decided(lambda: self._set_state(account_id, name, state, reason, data))

    async def _set_state(self, account_id: str, name: str, state: State, reason: str, data: str) -> None:
        alert = self.alert(account_id, name)
        before = self.rows.state(alert)
        if before.state != state:
            now_ms = self.now_ms()
            await self.store_transition(alert, *set_state(alert, before, state, reason, data, now_ms))

    async def store_transition(self, alert: Alert, after: AlertStatus, change: PastChange | None) -> None:
        """Store how an alert stands now; RevisionMismatch: it was changed, or stands differently already."""
        place = alert.account_id, alert.name
        compares = [self.rows.alerts.compare(*place), self.rows.states.compare(*place)]
        await self._transact(compares, [Put(compares[1].key, encode_alert_row(after))], alert, change)
        if after.outbox:
            self.on_change()

    async def enable(self, account_id: str, names: Iterable[str], *, is_enabled: bool) -> None:
        """Have alerts tell their actions, or not; names that there are not are no error, as in CloudWatch."""
        for name in names:
            if self.rows.alerts.get(account_id, name) is not None:
                await self._change(account_id, name, lambda alert: replace(alert, is_enabled=is_enabled))

    async def tag(self, account_id: str, name: str, tags: Mapping[str, str]) -> None:
        """Set tags; ResourceNotFound, InvalidParameterValue."""

        def with_tags(alert: Alert) -> Alert:
            both = {**alert.tags, **tags}
            check_tags(both)
            return replace(alert, tags=both)

        await self._change(account_id, name, with_tags)

    async def untag(self, account_id: str, name: str, keys: Iterable[str]) -> None:
        """Remove tags; ResourceNotFound."""
        gone = frozenset(keys)
        await self._change(
            account_id,
            name,
            lambda alert: replace(
                alert, tags={key: tag for key, tag in alert.tags.items() if key not in gone}
            ),
        )

    async def history(self, account_id: str, name: str) -> PastAlert:
        """Return what happened to an alert, the newest first; ResourceNotFound, NotNow."""
        self.alert(account_id, name)
        return (await self.rows.past(account_id, name)).past

    async def note_action(self, alert: Alert, told: str, action: str, result: str) -> None:
        """Take a notification out of the outbox, and note what came of it. Nothing, where it is out of it; NotNow."""
        await self._decided(lambda: self._note_action(alert, told, action, result))

    async def _note_action(self, alert: Alert, told: str, action: str, result: str) -> None:
        place = alert.account_id, alert.name
        status = self.rows.states.get(*place)
        if status is None:
            return
        left = tuple(one for one in status.outbox if (one.id, one.action) != (told, action))
        if len(left) == len(status.outbox):
            return
        unchanged = self.rows.states.compare(*place)
        data = json.dumps({"version": "1.0", "id": told, "actionArn": action, "result": result})
        summary = (
            f"{'Successfully executed' if result == 'delivered' else 'Failed to execute'} action {action}"
        )
        await self._transact(
            [unchanged],
            [Put(unchanged.key, encode_alert_row(replace(status, outbox=left)))],
            alert,
            PastChange(self.now_ms(), "Action", summary, data),
        )

    async def _change(self, account_id: str, name: str, change: Callable[[Alert], Alert]) -> None:
        async def once() -> None:
            alert = self.alert(account_id, name)
            new = change(alert)
            if new == alert:
                return
            now_ms = self.now_ms()
            new = replace(new, updated_ms=now_ms)
            unchanged = self.rows.alerts.compare(account_id, name)
            puts = [Put(unchanged.key, encode_alert_row(new))]
            await self._transact([unchanged], puts, new, _configured(new, "updated", now_ms))

        await self._decided(once)

    async def _transact(
        self, compares: list[Compare], puts: list[Put], alert: Alert, change: PastChange | None
    ) -> None:
        if change is not None:
            past, unchanged = await self.rows.past(alert.account_id, alert.name)
            compares = [*compares, unchanged]
            puts = [*puts, Put(unchanged.key, encode_alert_row(past.with_change(change)))]
        await self.rows.transact(compares, puts)

    async def _decided(self, once: Callable[[], Awaitable[_Done]]) -> _Done:
        for _ in range(ATTEMPTS_MAX):
            try:
                return await once()
            except RevisionMismatch:
                await asyncio.sleep(0)
        raise NotNow("Others changed the same at the same time.")

    # Destinations

    def destination(self, account_id: str, name: str) -> Destination:
        """Return a destination; ResourceNotFound."""
        found = self.rows.destinations.get(account_id, name)
        if found is None:
            raise ResourceNotFound(f"The destination {name} does not exist.")
        return found

    async def add_destination(
        self, account_id: str, name: str, kind: DestinationKind, target: str
    ) -> Destination:
        """Make a destination. To an address that is not confirmed yet, the same again sends another mail.

        Raises:
            InvalidParameterValue: it cannot be, or the name is in use for another one.
            LimitExceeded: the account has too many, or asked for too many mails today, or the address got too many.
            UnsupportedOperation: there is no mail server (setting smtp_url).
        """
        check_destination_name(name)
        _check_target(kind, target)
        if kind == "email" and self._mails.why_not:
            raise UnsupportedOperation(self._mails.why_not)
        destination = await self._decided(lambda: self._add(account_id, name, kind, target))
        if destination.confirmed_ms is None:
            await self._mails.send_confirmation(destination)
        return destination

    async def _add(self, account_id: str, name: str, kind: DestinationKind, target: str) -> Destination:
        now_ms = self.now_ms()
        account = await self._account_condition(account_id)
        existing = self.rows.destinations.get(account_id, name)
        if existing is not None and (existing.kind, existing.target) != (kind, target):
            raise InvalidParameterValue.of("name", name, "Another destination has it; remove that one first.")
        if existing is not None and existing.confirmed_ms is not None:
            return existing
        if existing is None and self.rows.destinations.count(account_id) >= DESTINATIONS_PER_ACCOUNT_MAX:
            raise LimitExceeded(f"An account may have {DESTINATIONS_PER_ACCOUNT_MAX} destinations.")
        unchanged = self.rows.destinations.compare(account_id, name)
        confirmed_ms = None if kind == "email" else now_ms
        new = existing or Destination(
            account_id, name, kind, target, os.urandom(ID_BYTES).hex(), now_ms, confirmed_ms
        )
        compares, puts = [account, unchanged], [Put(unchanged.key, encode_alert_row(new))]
        if kind == "email":
            address = hashlib.sha256(target.lower().encode()).hexdigest()[:32]
            for who, said in ((account_id, "An account"), (address, "A mail address")):
                condition, put = await self._counted_mail(who, said, now_ms)
                compares.append(condition)
                puts.append(put)
        await self.rows.transact(compares, puts)
        return new

    async def _counted_mail(self, who: str, said: str, now_ms: int) -> tuple[Compare, Put]:
        value, unchanged = await self.rows.stored(CONFIRMATION_MAILS + who)
        day = now_ms // DAY_MS
        before = MailCount(day, 0) if value is None else decode_alert_row(value, MailCount)
        count = before.count if before.day == day else 0
        if count >= MAILS_PER_DAY_MAX:
            raise LimitExceeded(f"{said} gets {MAILS_PER_DAY_MAX} confirmation mails a day.")
        return unchanged, Put(unchanged.key, encode_alert_row(MailCount(day, count + 1)))

    async def confirm(self, destination_id: str) -> Destination:
        """Take it that an address is confirmed; ResourceNotFound where the destination is gone."""
        for destination in self.rows.destinations:
            if destination.id == destination_id:
                break
        else:
            raise ResourceNotFound("The destination does not exist any more.")
        if destination.confirmed_ms is not None:
            return destination
        confirmed = replace(destination, confirmed_ms=self.now_ms())
        unchanged = self.rows.destinations.compare(destination.account_id, destination.name)
        try:
            await self.rows.transact([unchanged], [Put(unchanged.key, encode_alert_row(confirmed))])
        except RevisionMismatch:
            raise NotNow("Others changed the same at the same time.") from None
        return confirmed

    async def remove_destination(self, account_id: str, name: str) -> None:
        """Remove a destination; ResourceNotFound; InvalidParameterValue names an alert that tells it."""
        self.destination(account_id, name)
        for alert in self.rows.alerts.of_account(account_id):
            for arn in alert.all_actions:
                if parse_action(arn) == DestinationName(account_id, name):
                    raise InvalidParameterValue.of("name", name, f"The alert {alert.name} tells it.")
        await self.rows.transact([], deletes=[self.rows.destinations.key(account_id, name)])

    def secret(self, account_id: str, name: str) -> str:
        """Return the secret that a webhook's requests are signed with, as `whsec_...`; ResourceNotFound."""
        destination = self.destination(account_id, name)
        if destination.kind != "webhook":
            raise UnsupportedOperation(f"The destination {name} is no webhook: it has no secret.")
        return secret_text(self.secret_of(destination))

    def secret_of(self, destination: Destination) -> bytes:
        """Return a webhook's secret."""
        return derived_secret(self._key, destination.id)

    # Upkeep

    async def drop_those_of_deleted_accounts(self) -> None:
        """Remove what an account left that was deleted while something of it was written; NotNow."""
        for account_id in sorted({*self.rows.alerts.accounts(), *self.rows.destinations.accounts()}):
            try:
                await self._account_condition(account_id)
            except ResourceNotFound:
                await self.delete(
                    account_id, [alert.name for alert in self.rows.alerts.of_account(account_id)]
                )
                keys = [
                    self.rows.destinations.key(account_id, row.name)
                    for row in self.rows.destinations.of_account(account_id)
                ]
                if keys:
                    await self.rows.transact([], deletes=keys)


def _configured(alert: Alert, done: str, now_ms: int) -> PastChange:
    what = {"condition": alert.condition_text, "subject": alert.subject_text}
    data = {"version": "1.0", "type": done.capitalize(), **what}
    return PastChange(now_ms, "ConfigurationUpdate", f'Alarm "{alert.name}" {done}', json.dumps(data))


def _check_target(kind: DestinationKind, target: str) -> None:
    if kind == "email":
        check_mail_address(target)
    elif kind == "webhook":
        try:
            parse_url(target)
        except BadURL as error:
            raise InvalidParameterValue(f"The target cannot be called: {error}.") from None
    elif not isinstance(parse_action(target), QueueArn):
        raise InvalidParameterValue.of("target", target, "Must be the ARN of a queue.")
