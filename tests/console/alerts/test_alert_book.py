"""Alerts and destinations made, changed and deleted, by one console and by two."""

from __future__ import annotations

import pytest
from core.alerts.support import an_alert
from msgspec.structs import replace

from console.alerts.support import ACCOUNT, SHOP, AlertWorld, hook_arn, run_alerts, until
from quaymaster.console.alerts import alert_book
from quaymaster.console.alerts.alert_rows import AlertRows
from quaymaster.coordination.interface import ABSENT, Put, RevisionMismatch
from quaymaster.core.alerts.alerts import (
    ALERTS,
    PAST_ALERTS,
    Alert,
    DestinationKind,
    decode_alert_row,
    encode_alert_row,
    row_name,
)
from quaymaster.core.values.errors import (
    InvalidParameterValue,
    LimitExceeded,
    NotNow,
    ResourceNotFound,
    UnsupportedOperation,
)
from quaymaster.protocol.webhooks.signing import parse_secret

HOOK = "https://example.com/hook"


def test_an_alert_is_there_at_once_and_after_a_restart() -> None:
    async def scenario(world: AlertWorld) -> None:
        async with world.book() as book:
            made = await book.put(an_alert(tags={"team": "a"}))
            assert book.alert(ACCOUNT, "orders-old") == made
            assert made.created_ms == made.updated_ms == world.now_ms
            assert book.rows.state(made).state == "INSUFFICIENT_DATA"
        async with world.book() as book:
            assert book.alert(ACCOUNT, "orders-old") == made
            assert len(book.rows.states) == 1

    run_alerts(scenario)


def test_an_alert_put_again_keeps_its_state_its_tags_and_its_beginning() -> None:
    async def scenario(world: AlertWorld) -> None:
        async with world.book() as book:
            first = await book.put(an_alert(tags={"team": "a"}))
            await book.set_state(ACCOUNT, "orders-old", "ALARM", "by hand")
            world.now_ms += 1_000

            second = await book.put(an_alert(threshold=9.0, tags={"team": "b"}))

            assert (second.threshold, second.tags, second.created_ms) == (
                9.0,
                {"team": "a"},
                first.created_ms,
            )
            assert second.updated_ms == world.now_ms
            assert book.rows.state(second).state == "ALARM"
            kinds = [change.kind for change in (await book.history(ACCOUNT, "orders-old")).changes]
            assert kinds == ["ConfigurationUpdate", "StateUpdate", "ConfigurationUpdate"]

    run_alerts(scenario)


def test_an_alert_that_is_deleted_leaves_nothing() -> None:
    async def scenario(world: AlertWorld) -> None:
        async with world.book() as book:
            await book.put(an_alert())
            await book.put(an_alert(name="other"))

            with pytest.raises(ResourceNotFound, match="none"):
                await book.delete(ACCOUNT, ["orders-old", "none"])
            await book.delete(ACCOUNT, ["orders-old"])

            left = (await world.store.list_all("/"))[0]
            assert not [row.key for row in left if "orders-old" in row.key]
            assert [alert.name for alert in book.rows.alerts] == ["other"]
            with pytest.raises(ResourceNotFound):
                await book.history(ACCOUNT, "orders-old")

    run_alerts(scenario)


def test_an_account_has_a_bounded_number_of_alerts() -> None:
    async def scenario(world: AlertWorld) -> None:
        async with world.book(alerts_per_account_max=1) as book:
            await book.put(an_alert())
            with pytest.raises(LimitExceeded, match="alerts_per_account_max"):
                await book.put(an_alert(name="second"))
            await book.put(an_alert(threshold=1.0))
            await book.put(replace(an_alert(name="second"), account_id=SHOP))

    run_alerts(scenario)


def test_an_account_that_there_is_not_gets_no_alert_and_one_that_was_deleted_loses_its() -> None:
    async def scenario(world: AlertWorld) -> None:
        async with world.book() as book:
            with pytest.raises(ResourceNotFound, match="account"):
                await book.put(replace(an_alert(), account_id="999999999999"))
            await book.put(replace(an_alert(), account_id=SHOP))
            await book.add_destination(SHOP, "hook", "webhook", HOOK)
            await book.put(an_alert())
            await world.store.transaction([], [Put(f"/accounts/{SHOP}", b"deleted")])

            await book.drop_those_of_deleted_accounts()

            assert book.rows.alerts.accounts() == [ACCOUNT]
            assert len(book.rows.destinations) == 0

    run_alerts(scenario)


def test_two_consoles_know_what_either_does() -> None:
    async def scenario(world: AlertWorld) -> None:
        async with world.book() as one, world.book() as other:
            await one.put(an_alert())
            await until(lambda: len(other.rows.alerts) == 1)
            await other.put(an_alert(threshold=1.0))
            await until(lambda: one.alert(ACCOUNT, "orders-old").threshold == 1.0)
            await one.delete(ACCOUNT, ["orders-old"])
            await until(lambda: not len(other.rows.alerts))
            await other.put(an_alert(threshold=2.0))
            await until(lambda: len(one.rows.alerts) == 1)

    run_alerts(scenario)


def test_a_change_that_another_console_was_quicker_with_is_decided_again() -> None:
    async def scenario(world: AlertWorld) -> None:
        async with world.book() as book:
            await book.put(an_alert())
            key = ALERTS + row_name(ACCOUNT, "orders-old")
            row = await world.store.get(key)
            assert row is not None
            changed = replace(decode_alert_row(row.value, Alert), description="of the other")
            await world.store.transaction([], [Put(key, encode_alert_row(changed))])

            await book.tag(ACCOUNT, "orders-old", {"team": "a"})

            alert = book.alert(ACCOUNT, "orders-old")
            assert (alert.description, alert.tags) == ("of the other", {"team": "a"})

    run_alerts(scenario)


def test_a_change_that_never_fits_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(world: AlertWorld) -> None:
        async with world.book() as book:

            async def mismatch(*_: object) -> None:
                raise RevisionMismatch("key", 1, ABSENT)

            monkeypatch.setattr(book.rows, "transact", mismatch)
            with pytest.raises(NotNow, match="same time"):
                await book.put(an_alert())

    run_alerts(scenario)


def test_a_state_that_is_set_tells_its_actions_and_one_that_it_has_tells_nothing() -> None:
    async def scenario(world: AlertWorld) -> None:
        woken: list[int] = []
        async with world.book() as book:
            book.on_change = lambda: woken.append(1)
            await book.add_destination(ACCOUNT, "hook", "webhook", HOOK)
            await book.put(an_alert(alarm_actions=(hook_arn(),)))

            await book.set_state(ACCOUNT, "orders-old", "ALARM", "by hand", '{"a": 1}')
            await book.set_state(ACCOUNT, "orders-old", "ALARM", "again")

            status = book.rows.state(book.alert(ACCOUNT, "orders-old"))
            assert (status.reason, len(status.outbox), len(woken)) == ("by hand", 1, 1)
            assert (ACCOUNT, "orders-old") in book.rows.waiting
            with pytest.raises(InvalidParameterValue):
                await book.set_state(ACCOUNT, "orders-old", "OK", "x" * 1_024)
            with pytest.raises(ResourceNotFound):
                await book.set_state(ACCOUNT, "none", "OK", "x")

            told = status.outbox[0]
            alert = book.alert(ACCOUNT, "orders-old")
            await book.note_action(alert, told.id, told.action, "delivered")
            await book.note_action(alert, told.id, told.action, "delivered")

            assert book.rows.state(alert).outbox == ()
            assert not book.rows.waiting
            assert [one.kind for one in (await book.history(ACCOUNT, "orders-old")).changes].count(
                "Action"
            ) == 1
            await book.delete(ACCOUNT, ["orders-old"])
            await book.note_action(alert, told.id, told.action, "delivered")

    run_alerts(scenario)


def test_actions_are_disabled_and_enabled_and_tags_set_and_removed() -> None:
    async def scenario(world: AlertWorld) -> None:
        async with world.book() as book:
            await book.put(an_alert())
            await book.enable(ACCOUNT, ["orders-old", "none"], is_enabled=False)
            assert not book.alert(ACCOUNT, "orders-old").is_enabled
            changes = (await book.history(ACCOUNT, "orders-old")).changes
            await book.enable(ACCOUNT, ["orders-old"], is_enabled=False)
            assert (await book.history(ACCOUNT, "orders-old")).changes == changes
            await book.tag(ACCOUNT, "orders-old", {"a": "1", "b": "2"})
            await book.untag(ACCOUNT, "orders-old", ["a", "c"])
            assert book.alert(ACCOUNT, "orders-old").tags == {"b": "2"}
            with pytest.raises(InvalidParameterValue, match="Tags"):
                await book.tag(ACCOUNT, "orders-old", {"aws:a": "1"})

    run_alerts(scenario)


def test_an_alert_names_only_destinations_of_its_account() -> None:
    async def scenario(world: AlertWorld) -> None:
        async with world.book() as book:
            await book.add_destination(SHOP, "hook", "webhook", HOOK)
            for arn in (hook_arn(), hook_arn(account_id=SHOP)):
                with pytest.raises(InvalidParameterValue, match="no such destination"):
                    await book.put(an_alert(alarm_actions=(arn,)))

    run_alerts(scenario)


def test_a_destination_that_an_alert_tells_stays() -> None:
    async def scenario(world: AlertWorld) -> None:
        async with world.book() as book:
            await book.add_destination(ACCOUNT, "hook", "webhook", HOOK)
            await book.put(an_alert(ok_actions=(hook_arn(),)))
            with pytest.raises(InvalidParameterValue, match="orders-old tells it"):
                await book.remove_destination(ACCOUNT, "hook")
            await book.delete(ACCOUNT, ["orders-old"])
            await book.remove_destination(ACCOUNT, "hook")
            with pytest.raises(ResourceNotFound):
                await book.remove_destination(ACCOUNT, "hook")

    run_alerts(scenario)


@pytest.mark.parametrize(
    ("kind", "target"),
    [
        ("webhook", "ftp://example.com"),
        ("webhook", "https://user:password@example.com/"),
        ("email", "example.com"),
        ("queue", "orders"),
        ("queue", "arn:aws:sns:us-east-1:000000000000:hook"),
    ],
)
def test_a_target_that_cannot_be_told_is_refused(kind: DestinationKind, target: str) -> None:
    async def scenario(world: AlertWorld) -> None:
        async with world.book() as book:
            with pytest.raises(InvalidParameterValue):
                await book.add_destination(ACCOUNT, "hook", kind, target)
            assert len(book.rows.destinations) == 0

    run_alerts(scenario)


def test_an_account_has_a_bounded_number_of_destinations_and_each_name_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(alert_book, "DESTINATIONS_PER_ACCOUNT_MAX", 1)

    async def scenario(world: AlertWorld) -> None:
        async with world.book() as book:
            made = await book.add_destination(ACCOUNT, "hook", "webhook", HOOK)
            assert await book.add_destination(ACCOUNT, "hook", "webhook", HOOK) == made
            with pytest.raises(InvalidParameterValue, match="Another destination"):
                await book.add_destination(ACCOUNT, "hook", "webhook", HOOK + "2")
            with pytest.raises(LimitExceeded):
                await book.add_destination(ACCOUNT, "hook2", "webhook", HOOK)

    run_alerts(scenario)


def test_a_webhook_has_a_secret_that_another_one_of_its_name_does_not_have() -> None:
    async def scenario(world: AlertWorld) -> None:
        async with world.book() as book:
            await book.add_destination(ACCOUNT, "hook", "webhook", HOOK)
            first = book.secret(ACCOUNT, "hook")
            assert len(parse_secret(first)) == 32
            await book.remove_destination(ACCOUNT, "hook")
            await book.add_destination(ACCOUNT, "hook", "webhook", HOOK)
            assert book.secret(ACCOUNT, "hook") != first
            await book.add_destination(ACCOUNT, "mail", "email", "a@example.com")
            with pytest.raises(UnsupportedOperation):
                book.secret(ACCOUNT, "mail")

    run_alerts(scenario)


def test_an_address_is_confirmed_before_it_is_told_anything() -> None:
    async def scenario(world: AlertWorld) -> None:
        async with world.book() as book:
            made = await book.add_destination(ACCOUNT, "mail", "email", "a@example.com")
            assert made.confirmed_ms is None
            assert world.mails.sent == [made]

            confirmed = await book.confirm(made.id)

            assert confirmed.confirmed_ms == world.now_ms
            assert await book.confirm(made.id) == confirmed
            assert await book.add_destination(ACCOUNT, "mail", "email", "a@example.com") == confirmed
            assert len(world.mails.sent) == 1
            with pytest.raises(ResourceNotFound):
                await book.confirm("0" * 16)

    run_alerts(scenario)


def test_without_a_mail_server_there_are_no_mail_addresses() -> None:
    async def scenario(world: AlertWorld) -> None:
        world.mails.why_not = "no smtp_url"
        async with world.book() as book:
            with pytest.raises(UnsupportedOperation, match="smtp_url"):
                await book.add_destination(ACCOUNT, "mail", "email", "a@example.com")

    run_alerts(scenario)


def test_ten_confirmation_mails_a_day_are_sent_for_an_account_and_to_an_address() -> None:
    async def scenario(world: AlertWorld) -> None:
        async with world.book() as book:
            for _ in range(10):
                await book.add_destination(ACCOUNT, "mail", "email", "A@example.com")
            with pytest.raises(LimitExceeded, match="account"):
                await book.add_destination(ACCOUNT, "mail2", "email", "b@example.com")
            with pytest.raises(LimitExceeded, match="address"):
                await book.add_destination(SHOP, "mail", "email", "a@example.com")
            assert len(world.mails.sent) == 10

            world.now_ms += 86_400_000
            await book.add_destination(SHOP, "mail", "email", "a@example.com")

    run_alerts(scenario)


def test_a_deletion_of_before_an_own_write_does_not_hide_it() -> None:
    async def scenario(world: AlertWorld) -> None:
        rows = AlertRows(world.store)
        await rows.start()
        try:
            key = ALERTS + row_name(ACCOUNT, "orders-old")
            await rows.transact([], [Put(key, encode_alert_row(an_alert()))])
            rows._on_row(key, None)  # as a late event says it
            await until(lambda: rows.alerts.get(ACCOUNT, "orders-old") is not None)
            await until(lambda: not rows._doubtful)
            assert rows.alerts.get(ACCOUNT, "orders-old") == an_alert()
        finally:
            await rows.close()

    run_alerts(scenario)


def test_a_history_is_a_row_of_its_own_that_no_console_keeps() -> None:
    async def scenario(world: AlertWorld) -> None:
        async with world.book() as book:
            await book.put(an_alert())
            await until(lambda: not book.rows._written)  # else it would grow for ever
            assert [row.key for row in (await world.store.list_all(PAST_ALERTS))[0]] == [
                f"{PAST_ALERTS}{ACCOUNT}/orders-old"
            ]

    run_alerts(scenario)
