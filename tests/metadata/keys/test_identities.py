"""Users and roles: created, changed, found by name and by ARN, deleted."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from metadata.cell import Cell, run_cell
from metadata.support import ACCOUNT, ActingStore, HeldStore, World, eventually, run
from quaymaster.coordination.interface import KeyValue, Put
from quaymaster.core.access.policies import UnreadablePolicy
from quaymaster.core.values.errors import (
    InvalidAttributeValue,
    InvalidParameterValue,
    LimitExceeded,
    NotNow,
    ResourceNotFound,
    UnsupportedOperation,
)
from quaymaster.core.values.formats import CellFormat
from quaymaster.metadata.keys.identities import Identities
from quaymaster.metadata.store.quotas import Quotas
from quaymaster.metadata.store.rows import ROLES, USERS, UserRow, encode_row
from quaymaster.protocol.rpc.metadata_messages import (
    AddPermission,
    CreateQueue,
    GetChanges,
    RemovePermission,
    Request,
    SetAttributes,
)

SHOP = "111122223333"
MAY_SEND = json.dumps({"Statement": {"Effect": "Allow", "Action": "sqs:SendMessage", "Resource": "*"}})
OPEN_TRUST = json.dumps({"Statement": {"Effect": "Allow", "Principal": "*", "Action": "sts:AssumeRole"}})


def naming(*arns: str, action: str = "sqs:SendMessage") -> str:
    return json.dumps({"Statement": {"Effect": "Allow", "Principal": {"AWS": list(arns)}, "Action": action}})


def test_a_user_is_found_by_its_name_in_any_case_after_a_restart_too(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            made = await service.identities.create_user(ACCOUNT, "Ada", "/staff/")
            await service.identities.put_policy("user", ACCOUNT, "ada", "send", MAY_SEND)
        async with world.service() as service:
            user = service.user(ACCOUNT, "ADA")

            assert user is not None
            assert user.unique_id == made.unique_id
            assert user.unique_id.startswith("AIDA")
            assert user.arn == f"arn:aws:iam::{ACCOUNT}:user/staff/Ada"
            assert user.row.policies == {"send": MAY_SEND}
            assert service.user(ACCOUNT, "bob") is None
            assert service.user(SHOP, "Ada") is None

    run(scenario, tmp_path)


def test_names_are_unique_in_an_account_whatever_their_case(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            await service.accounts.create_account("shop", SHOP)
            identities = service.identities
            await identities.create_user(ACCOUNT, "ada")
            await identities.create_role(ACCOUNT, "ada", OPEN_TRUST)
            await identities.create_user(SHOP, "ada")
            with pytest.raises(InvalidParameterValue, match="Already exists"):
                await identities.create_user(ACCOUNT, "ADA", "/other/")
            with pytest.raises(InvalidParameterValue, match="Already exists"):
                await identities.create_role(ACCOUNT, "ADA", OPEN_TRUST)

    run(scenario, tmp_path)


@pytest.mark.parametrize(
    "create",
    [
        lambda all: all.create_user(ACCOUNT, ""),
        lambda all: all.create_user(ACCOUNT, "a b"),
        lambda all: all.create_user(ACCOUNT, "a/b"),
        lambda all: all.create_user(ACCOUNT, "ä"),
        lambda all: all.create_user(ACCOUNT, "a" * 65),
        lambda all: all.create_user(ACCOUNT, "a", "staff"),
        lambda all: all.create_user(ACCOUNT, "a", "/staff"),
        lambda all: all.create_user(ACCOUNT, "a", "/" + "a" * 511 + "/"),
        lambda all: all.create_role(ACCOUNT, "a:b", OPEN_TRUST),
        lambda all: all.create_role(ACCOUNT, "a", OPEN_TRUST, session_max_s=3_599),
        lambda all: all.create_role(ACCOUNT, "a", OPEN_TRUST, session_max_s=43_201),
        lambda all: all.create_role(ACCOUNT, "a", "{}"),
        lambda all: all.create_role(ACCOUNT, "a", OPEN_TRUST + " " * 2_048),
        lambda all: all.create_role(ACCOUNT, "a", naming(f"arn:aws:iam::{ACCOUNT}:user/b", action="sts:*")),
        lambda all: all.update_role(ACCOUNT, "there", session_max_s=0),
        lambda all: all.update_role(ACCOUNT, "there", trust_policy=MAY_SEND),
        lambda all: all.put_policy("role", ACCOUNT, "there", "p", OPEN_TRUST),
        lambda all: all.put_policy("role", ACCOUNT, "there", "p p", MAY_SEND),
        lambda all: all.put_policy("user", ACCOUNT, "there", "p" * 129, MAY_SEND),
        lambda all: all.put_policy("user", ACCOUNT, "there", "p", MAY_SEND + " " * 6_144),
        lambda all: all.put_policy("user", ACCOUNT, "there", "p", MAY_SEND.replace("sqs:Send", "sqs:Fly")),
    ],
)
def test_what_cannot_be_is_refused_and_changes_nothing(
    create: Callable[[Identities], Awaitable[Any]], tmp_path: Path
) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            identities = service.identities
            user = await identities.create_user(ACCOUNT, "there")
            role = await identities.create_role(ACCOUNT, "there", OPEN_TRUST)
            with pytest.raises(InvalidParameterValue):
                await create(identities)
            assert [one.row for one in identities.list_page("user", ACCOUNT, "", 10)] == [user.row]
            assert [one.row for one in identities.list_page("role", ACCOUNT, "", 10)] == [role.row]

    run(scenario, tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        lambda all: all.create_user(SHOP, "ada"),
        lambda all: all.create_role(SHOP, "ada", OPEN_TRUST),
        lambda all: all.put_policy("user", ACCOUNT, "ada", "p", MAY_SEND),
        lambda all: all.delete_policy("user", ACCOUNT, "there", "p"),
        lambda all: all.delete_policy("role", ACCOUNT, "there", "p"),
        lambda all: all.revoke_sessions("user", ACCOUNT, "ada"),
        lambda all: all.revoke_sessions("role", ACCOUNT, "ada"),
        lambda all: all.update_role(ACCOUNT, "ada", session_max_s=3_600),
        lambda all: all.delete("user", ACCOUNT, "ada"),
        lambda all: all.delete("role", ACCOUNT, "ada"),
    ],
)
def test_what_is_not_there_cannot_be_changed(
    change: Callable[[Identities], Awaitable[Any]], tmp_path: Path
) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            await service.identities.create_user(ACCOUNT, "there")
            await service.identities.create_role(ACCOUNT, "there", OPEN_TRUST)
            with pytest.raises(ResourceNotFound):
                await change(service.identities)

    run(scenario, tmp_path)


def test_an_account_has_so_many_users_roles_and_policies_at_most(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        quotas = Quotas(account_users_max=2, account_roles_max=1)
        async with world.service(quotas=quotas) as service:
            identities = service.identities
            for name in ("a", "b"):
                await identities.create_user(ACCOUNT, name)
            with pytest.raises(LimitExceeded, match="2 users"):
                await identities.create_user(ACCOUNT, "c")
            await identities.create_role(ACCOUNT, "a", OPEN_TRUST)
            with pytest.raises(LimitExceeded, match="1 roles"):
                await identities.create_role(ACCOUNT, "b", OPEN_TRUST)
            for number in range(10):
                await identities.put_policy("user", ACCOUNT, "a", f"p{number}", MAY_SEND)
            await identities.put_policy("user", ACCOUNT, "a", "p9", MAY_SEND)
            with pytest.raises(LimitExceeded, match="10 policies"):
                await identities.put_policy("user", ACCOUNT, "a", "p10", MAY_SEND)
            await identities.delete_policy("user", ACCOUNT, "a", "p0")
            await identities.put_policy("user", ACCOUNT, "a", "p10", MAY_SEND)
            await identities.delete("user", ACCOUNT, "b")
            await identities.create_user(ACCOUNT, "c")

    run(scenario, tmp_path)


def test_identities_are_listed_in_order_and_in_pages(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            for name in ("c", "A", "b", "D"):
                await service.identities.create_user(ACCOUNT, name)

            def names(after: str, count: int) -> list[str]:
                return [user.row.name for user in service.identities.list_page("user", ACCOUNT, after, count)]

            assert names("", 10) == ["A", "b", "c", "D"]
            assert names("", 2) == ["A", "b"]
            assert names("b", 2) == ["c", "D"]
            assert names("D", 2) == []

    run(scenario, tmp_path)


def test_a_key_of_a_user_has_the_users_id_and_goes_with_it(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            accounts, identities = service.accounts, service.identities
            user = await identities.create_user(ACCOUNT, "ada")
            key = await accounts.create_access_key(ACCOUNT, "laptop", user="ADA")
            root = await accounts.create_access_key(ACCOUNT, "root")

            assert (key.user, key.principal_id) == ("ada", user.unique_id)
            assert (root.user, root.principal_id[:4]) == ("", "AIDA")
            assert accounts.list_user_keys(ACCOUNT, "ada") == [key]
            with pytest.raises(ResourceNotFound, match="has no user bob"):
                await accounts.create_access_key(ACCOUNT, user="bob")

            await identities.delete("user", ACCOUNT, "ada")
            again = await identities.create_user(ACCOUNT, "ada")
            newer = await accounts.create_access_key(ACCOUNT, user="ada")
            await accounts.drop_keys_of_deleted_users()

            assert again.unique_id != user.unique_id
            assert accounts.access_key(key.access_key_id) is None
            assert accounts.access_key(newer.access_key_id) == newer
            assert accounts.access_key(root.access_key_id) == root

    run(scenario, tmp_path)


def test_keys_of_users_survive_restarts_and_those_of_deleted_ones_go_after_one(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            await service.identities.create_user(ACCOUNT, "ada")
            await service.identities.create_user(ACCOUNT, "bob")
            kept = await service.accounts.create_access_key(ACCOUNT, user="ada")
            gone = await service.accounts.create_access_key(ACCOUNT, user="bob")
            await service.identities.delete("user", ACCOUNT, "bob")
        async with world.service() as service:
            await service.run_upkeep()

            assert service.access_key(kept.access_key_id) == kept
            assert service.access_key(gone.access_key_id) is None

    run(scenario, tmp_path)


def test_keys_of_users_keep_nobody_from_taking_the_last_root_key_away(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            root = service.default_access_key
            assert root is not None
            await service.identities.create_user(ACCOUNT, "ada")
            key = await service.accounts.create_access_key(ACCOUNT, user="ada")
            with pytest.raises(UnsupportedOperation, match="last enabled root key"):
                await service.accounts.set_enabled(root.access_key_id, enabled=False, not_last_of=ACCOUNT)
            await service.accounts.set_enabled(key.access_key_id, enabled=False, not_last_of=ACCOUNT)

    run(scenario, tmp_path)


@pytest.mark.parametrize("kinds", [("user",), ("role",), ("user", "role")])
def test_users_and_roles_of_a_deleted_account_go(tmp_path: Path, kinds: tuple[str, ...]) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            await service.accounts.create_account("shop", SHOP)
            if "user" in kinds:
                await service.identities.create_user(SHOP, "ada")
            if "role" in kinds:
                await service.identities.create_role(SHOP, "reader", OPEN_TRUST)
            await service.accounts.delete_account(SHOP)
        async with world.service() as service:
            await service.run_upkeep()

            assert service.user(SHOP, "ada") is None
            assert service.role(SHOP, "reader") is None
            with pytest.raises(ResourceNotFound):
                await service.identities.create_user(SHOP, "bob")

    run(scenario, tmp_path)


def test_what_is_left_of_deleted_accounts_and_users_goes_though_the_store_was_away_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: object, **__: object) -> int:
        raise NotNow

    async def scenario(world: World) -> None:
        async with world.service() as service:
            accounts, identities = service.accounts, service.identities
            await accounts.create_account("shop", SHOP)
            await identities.create_user(SHOP, "ada")
            await identities.create_user(ACCOUNT, "bob")
            key = await accounts.create_access_key(ACCOUNT, user="bob")
            await accounts.delete_account(SHOP)
            await identities.delete("user", ACCOUNT, "bob")
            with monkeypatch.context() as patched:
                patched.setattr(world.memory, "transaction", away)
                with pytest.raises(NotNow):
                    await identities.drop_those_of_deleted_accounts()
                with pytest.raises(NotNow):
                    await accounts.drop_keys_of_deleted_users()
            await service.run_upkeep()

            assert service.user(SHOP, "ada") is None
            assert accounts.access_key(key.access_key_id) is None

    run(scenario, tmp_path)


def test_a_trust_policy_is_bound_to_whom_it_names_when_it_is_written(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            identities = service.identities
            ada = await identities.create_user(ACCOUNT, "ada")
            worker = await identities.create_role(ACCOUNT, "worker", OPEN_TRUST, path="/app/")
            named = {
                f"arn:aws:iam::{ACCOUNT}:user/ada": ada.unique_id,
                f"arn:aws:iam::{ACCOUNT}:role/app/worker": worker.unique_id,
                f"arn:aws:sts::{ACCOUNT}:assumed-role/worker/night": worker.unique_id,
            }
            elsewhere = "arn:aws:iam::999999999999:user/zoe"

            role = await identities.create_role(
                ACCOUNT, "reader", naming(*named, elsewhere, action="sts:AssumeRole")
            )
            assert role.row.trusted_ids == named

            await identities.delete("user", ACCOUNT, "ada")
            await identities.create_user(ACCOUNT, "ada")
            kept = await identities.update_role(ACCOUNT, "reader", session_max_s=7_200)
            assert kept.row.trusted_ids == named
            again = await identities.update_role(
                ACCOUNT, "reader", trust_policy=naming(f"arn:aws:iam::{ACCOUNT}:user/ada", action="sts:*")
            )
            assert list(again.row.trusted_ids.values()) != [ada.unique_id]

    run(scenario, tmp_path)


def test_arns_are_compared_with_their_case_and_path(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            await service.identities.create_user(ACCOUNT, "ada", "/staff/")
            await service.identities.create_role(ACCOUNT, "worker", OPEN_TRUST)
            for arn in (
                f"arn:aws:iam::{ACCOUNT}:user/ada",
                f"arn:aws:iam::{ACCOUNT}:user/staff/Ada",
                f"arn:aws:iam::{ACCOUNT}:role/staff/ada",
                f"arn:aws:sts::{ACCOUNT}:assumed-role/Worker/night",
                f"arn:aws:sts::{ACCOUNT}:assumed-role/ada/night",
            ):
                with pytest.raises(InvalidAttributeValue, match="There is no user or role"):
                    await service.queues.change(CreateQueue(ACCOUNT, "jobs", {"Policy": naming(arn)}))

    run(scenario, tmp_path)


def test_a_queues_policy_is_bound_to_whom_it_names_until_it_is_written_as_a_whole(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            identities, change = service.identities, service.queues.change
            arn, policy = f"arn:aws:iam::{ACCOUNT}:user/ada", naming(f"arn:aws:iam::{ACCOUNT}:user/ada")
            first = await identities.create_user(ACCOUNT, "ada")
            made = await change(CreateQueue(ACCOUNT, "jobs", {"Policy": policy}))
            assert made.policy_ids == {arn: first.unique_id}

            await identities.delete("user", ACCOUNT, "ada")
            second = await identities.create_user(ACCOUNT, "ada")
            for request in (
                SetAttributes(ACCOUNT, "jobs", {"DelaySeconds": "1"}),
                AddPermission(ACCOUNT, "jobs", "more", [SHOP], ["SendMessage"]),
                RemovePermission(ACCOUNT, "jobs", "more"),
            ):
                assert (await change(request)).policy_ids == {arn: first.unique_id}
            bound = await change(SetAttributes(ACCOUNT, "jobs", {"Policy": policy}))
            assert bound.policy_ids == {arn: second.unique_id}
            assert (await change(SetAttributes(ACCOUNT, "jobs", {"Policy": ""}))).policy_ids == {}

    run(scenario, tmp_path)


def test_a_stored_policy_that_does_not_compile_is_in_force_as_one_that_denies(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            user = await service.identities.create_user(ACCOUNT, "ada")
            row = UserRow(ACCOUNT, "ada", user.unique_id, 0, policies={"old": "{"})
            service.identities.known.users.rows.apply(f"{ACCOUNT}/ada", encode_row(row), 10**9)
            found = service.user(ACCOUNT, "ada")
            assert found is not None
            assert isinstance(found.policies[0], UnreadablePolicy)

    run(scenario, tmp_path)


def test_no_revocation_of_sessions_gives_a_number_again_also_after_the_store_went_back(
    tmp_path: Path,
) -> None:
    async def scenario(world: World) -> None:
        given = [0]
        async with world.service() as service:
            await service.identities.create_user(ACCOUNT, "ada")
            await service.identities.create_role(ACCOUNT, "reader", OPEN_TRUST)
            before = [(await world.memory.list_all(prefix))[0][0] for prefix in (USERS, ROLES)]
        for _ in range(3):
            async with world.service() as service:
                user = await service.identities.revoke_sessions("user", ACCOUNT, "ada")
                role = await service.identities.revoke_sessions("role", ACCOUNT, "reader")
                given += [user.row.sessions_generation, role.row.sessions_generation]
            await world.memory.transaction([], [Put(item.key, item.value) for item in before])

        assert len(set(given)) == 7
        assert all(0 <= number < 1 << 63 for number in given)

    run(scenario, tmp_path)


def test_users_and_roles_wait_for_the_cells_format(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service(cell_format=CellFormat(5)) as service:
            for create in (
                service.identities.create_user(ACCOUNT, "ada"),
                service.identities.create_role(ACCOUNT, "ada", OPEN_TRUST),
                service.identities.delete("user", ACCOUNT, "ada"),
            ):
                with pytest.raises(UnsupportedOperation, match="cell upgrade"):
                    await create

    run(scenario, tmp_path)


def test_changes_that_are_made_at_once_are_all_there(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            identities = service.identities
            await identities.create_user(ACCOUNT, "ada")
            await asyncio.gather(
                *(
                    identities.put_policy("user", ACCOUNT, "ada", f"p{number}", MAY_SEND)
                    for number in range(5)
                )
            )
            user = service.user(ACCOUNT, "ada")
            assert user is not None
            assert len(user.row.policies) == 5

    run(scenario, tmp_path)


def test_other_front_ends_know_users_and_their_policies(tmp_path: Path) -> None:
    async def scenario(cell: Cell) -> None:
        async with cell.started() as (one, two):
            await one.identities.create_user(ACCOUNT, "ada")
            await one.identities.put_policy("user", ACCOUNT, "ada", "send", MAY_SEND)
            key = await one.accounts.create_access_key(ACCOUNT, user="ada")

            await eventually(lambda: two.accounts._rows.get(key.access_key_id) is not None)
            user = await two.look_up(lambda: two.user(ACCOUNT, "ada"))
            assert user.row.policies == {"send": MAY_SEND}
            assert two.access_key(key.access_key_id) == key
            assert await two.look_up(lambda: two.user(ACCOUNT, "bob")) is None
            assert await two.look_up(lambda: two.role(ACCOUNT, "bob")) is None

            await two.identities.delete("user", ACCOUNT, "ada")
            await eventually(lambda: one.identities.known.users.known(ACCOUNT, "ada") is None)

    run_cell(scenario, tmp_path)


def test_a_user_or_role_that_was_created_elsewhere_is_there_for_who_asks_next(tmp_path: Path) -> None:
    async def scenario(cell: Cell) -> None:
        async with cell.started() as (one, two):
            is_told = asyncio.Event()

            async def delay(request: Request) -> None:
                if isinstance(request, GetChanges):
                    await is_told.wait()

            for link in two.links.values():
                link.delays_answers = delay
            assert await two.look_up(lambda: two.user(ACCOUNT, "ada")) is None
            assert await two.look_up(lambda: two.role(ACCOUNT, "reader")) is None
            await one.identities.create_user(ACCOUNT, "ada")
            await one.identities.create_role(ACCOUNT, "reader", OPEN_TRUST)

            assert await two.look_up(lambda: two.user(ACCOUNT, "ada")) is not None
            assert await two.look_up(lambda: two.role(ACCOUNT, "reader")) is not None
            is_told.set()

    run_cell(scenario, tmp_path)


def test_names_in_policies_are_stale_once_others_have_them(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            identities = service.identities
            ada, role = (f"arn:aws:iam::{ACCOUNT}:{rest}" for rest in ("user/ada", "role/reader"))
            elsewhere = f"arn:aws:iam::{SHOP}:user/ada"
            await identities.create_user(ACCOUNT, "ada")
            await identities.create_role(ACCOUNT, "reader", OPEN_TRUST)
            trust = naming(ada, role, elsewhere, action="sts:AssumeRole")

            def stale() -> list[str]:
                found = service.role(ACCOUNT, "trusting")
                assert found is not None
                return identities.stale_names(found.trust_policy, found.row.trusted_ids)

            await identities.create_role(ACCOUNT, "trusting", trust)
            assert stale() == []
            await identities.delete("user", ACCOUNT, "ada")
            assert stale() == []  # nobody has the name
            await identities.create_user(ACCOUNT, "ada")
            assert stale() == [ada]
            await identities.update_role(ACCOUNT, "trusting", trust_policy=trust)
            assert stale() == []

            policy = {"Policy": naming(ada)}
            queue = await service.queues.change(CreateQueue(ACCOUNT, "jobs", policy))
            assert identities.stale_names(queue.policy, queue.policy_ids) == []
            await identities.delete("user", ACCOUNT, "ada")
            await identities.create_user(ACCOUNT, "ada")
            assert identities.stale_names(queue.policy, queue.policy_ids) == [ada]
            queue = await service.queues.change(SetAttributes(ACCOUNT, "jobs", policy))
            assert identities.stale_names(queue.policy, queue.policy_ids) == []
            assert identities.stale_names(None, {}) == []

    run(scenario, tmp_path)


def test_a_trust_policy_is_bound_to_users_as_another_front_end_has_just_made_them(tmp_path: Path) -> None:
    async def scenario(cell: Cell) -> None:
        async with cell.started() as (one, two):
            ada, bob = f"arn:aws:iam::{ACCOUNT}:user/ada", f"arn:aws:iam::{SHOP}:user/bob"
            await one.identities.create_user(ACCOUNT, "ada")
            await eventually(lambda: two.identities.known.users.known(ACCOUNT, "ada") is not None)
            is_told = asyncio.Event()

            async def delay(request: Request) -> None:
                if isinstance(request, GetChanges):
                    await is_told.wait()

            for link in two.links.values():
                link.delays_answers = delay
            await one.identities.delete("user", ACCOUNT, "ada")
            again = await one.identities.create_user(ACCOUNT, "ada")
            await one.accounts.create_account("shop", SHOP)
            made = await one.identities.create_user(SHOP, "bob")

            role = await two.identities.create_role(
                ACCOUNT, "reader", naming(ada, bob, action="sts:AssumeRole")
            )
            assert role.row.trusted_ids == {ada: again.unique_id, bob: made.unique_id}
            is_told.set()

    run_cell(scenario, tmp_path)


def naming_bob_and_ada() -> tuple[str, str, dict[str, str]]:
    """Return the ARNs of two users, one of another account, and a policy that denies both."""
    ada, bob = f"arn:aws:iam::{ACCOUNT}:user/ada", f"arn:aws:iam::{SHOP}:user/bob"
    statement = {"Effect": "Deny", "Principal": {"AWS": [ada, bob]}, "Action": "sqs:*"}
    return ada, bob, {"Policy": json.dumps({"Statement": statement})}


@pytest.mark.parametrize("is_created", [True, False], ids=["created with it", "set"])
def test_a_queue_policy_is_bound_to_users_as_another_node_has_just_made_them(
    tmp_path: Path, is_created: bool
) -> None:
    async def scenario(world: World) -> None:
        store = world.store = HeldStore()
        async with world.service() as late, world.service() as other:
            ada, bob, policy = naming_bob_and_ada()
            await late.queues.change(CreateQueue(ACCOUNT, "jobs"))
            await other.identities.create_user(ACCOUNT, "ada")
            await eventually(lambda: late.identities.known.users.known(ACCOUNT, "ada") is not None)
            store.told.clear()
            await other.identities.delete("user", ACCOUNT, "ada")
            again = await other.identities.create_user(ACCOUNT, "ada")
            await other.accounts.create_account("shop", SHOP)
            made = await other.identities.create_user(SHOP, "bob")

            request = (
                CreateQueue(ACCOUNT, "new", policy) if is_created else SetAttributes(ACCOUNT, "jobs", policy)
            )
            queue = await late.queues.change(request)

            assert queue.policy_ids == {ada: again.unique_id, bob: made.unique_id}
            store.told.set()

    run(scenario, tmp_path)


@pytest.mark.parametrize("kind", ["queue, created", "queue, set", "role, created", "role, set"])
@pytest.mark.parametrize("others", ["the user is made again", "the account and its user are made"])
def test_a_policy_is_bound_to_users_as_they_are_when_it_is_stored(
    tmp_path: Path, kind: str, others: str
) -> None:
    async def scenario(world: World) -> None:
        store = world.store = ActingStore()
        async with world.service() as service, world.service() as other:
            ada, bob, policy = naming_bob_and_ada()
            trust = naming(ada, bob, action="sts:AssumeRole")
            await other.identities.create_user(ACCOUNT, "ada")
            await service.queues.change(CreateQueue(ACCOUNT, "jobs"))
            await service.identities.create_role(ACCOUNT, "reader", OPEN_TRUST)
            await service.queues.change(CreateQueue(ACCOUNT, "used"))  # what creations set aside is there

            async def act() -> None:
                if others == "the user is made again":
                    await other.identities.delete("user", ACCOUNT, "ada")
                    await other.identities.create_user(ACCOUNT, "ada")
                else:
                    await other.accounts.create_account("shop", SHOP)
                    await other.identities.create_user(SHOP, "bob")

            store.act_before(0, act)
            if kind == "queue, created":
                bound = (await service.queues.change(CreateQueue(ACCOUNT, "new", policy))).policy_ids
            elif kind == "queue, set":
                bound = (await service.queues.change(SetAttributes(ACCOUNT, "jobs", policy))).policy_ids
            elif kind == "role, created":
                bound = (await service.identities.create_role(ACCOUNT, "new", trust)).row.trusted_ids
            else:
                changed = await service.identities.update_role(ACCOUNT, "reader", trust_policy=trust)
                bound = changed.row.trusted_ids

            assert store.has_acted
            assert bound == other.identities.known.unique_ids([ada, bob])
            assert len(bound) == (1 if others == "the user is made again" else 2)

    run(scenario, tmp_path)


def test_a_policy_that_names_no_user_or_role_is_set_without_a_look_at_the_store(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            await service.queues.change(CreateQueue(ACCOUNT, "jobs"))
            asked: list[str] = []
            get = world.memory.get

            async def counted(key: str) -> KeyValue | None:
                asked.append(key)
                return await get(key)

            world.memory.get = counted  # type: ignore[method-assign]
            await service.queues.change(
                SetAttributes(ACCOUNT, "jobs", {"Policy": naming(SHOP, f"arn:aws:iam::{ACCOUNT}:root")})
            )

            assert asked == []

    run(scenario, tmp_path)
