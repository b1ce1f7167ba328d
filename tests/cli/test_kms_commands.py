"""`quaymaster kms` against a server that is played."""

from __future__ import annotations

from pathlib import Path

from harness.command_line import PlayedServer, Refusal, Run

KEY = {
    "key_id": "1234-abcd",
    "account_id": "000000000000",
    "arn": "arn:aws:kms:us-east-1:000000000000:key/1234-abcd",
    "description": "orders",
    "state": "enabled",
    "created_ms": 1_700_000_000_000,
    "deletion_ms": None,
    "aliases": ["alias/orders", "alias/shop"],
}


def test_key_is_created_with_an_alias(run: Run, data: Path, server: PlayedServer) -> None:
    server.answers["POST /admin/v1/kms-keys"] = KEY

    made = run("kms", "create", "--alias", "alias/orders", "--description", "orders", "--data", data)
    as_json = run("kms", "create", "--account", "111111111111", "--json", "--data", data)

    assert "key_id\t1234-abcd\n" in made.out
    assert "aliases\talias/orders alias/shop\n" in made.out
    assert as_json.json == KEY
    assert server.called("POST /admin/v1/kms-keys") == [
        {"description": "orders", "alias": "alias/orders"},
        {"description": "", "account_id": "111111111111"},
    ]


def test_keys_are_listed_and_shown(run: Run, data: Path, server: PlayedServer) -> None:
    server.answers["GET /admin/v1/kms-keys"] = {"keys": [KEY]}
    server.answers["GET /admin/v1/kms-keys/1234-abcd"] = KEY

    listed = run("kms", "list", "--data", data)

    assert listed.out == "1234-abcd\tenabled\t2023-11-14 22:13:20Z\talias/orders alias/shop\torders\n"
    assert run("kms", "list", "--json", "--data", data).json == {"keys": [KEY]}
    for name in ("1234-abcd", "alias/shop", str(KEY["arn"])):
        assert run("kms", "show", name, "--json", "--data", data).json == KEY


def test_state_of_a_key_is_changed_by_id_and_alias(run: Run, data: Path, server: PlayedServer) -> None:
    server.answers["GET /admin/v1/kms-keys"] = {"keys": [KEY]}
    pending = KEY | {"state": "pending deletion", "deletion_ms": 1_700_604_800_000}
    for verb, state in (("disable", "disabled"), ("enable", "enabled"), ("cancel-deletion", "disabled")):
        server.answers[f"POST /admin/v1/kms-keys/1234-abcd/{verb}"] = KEY | {"state": state}
        assert run("kms", verb, "alias/orders", "--data", data).out == f"The key 1234-abcd is {state}.\n"
    server.answers["POST /admin/v1/kms-keys/1234-abcd/schedule-deletion"] = pending

    scheduled = run("kms", "schedule-deletion", "1234-abcd", "--days", "7", "--data", data)

    assert scheduled.out == (
        "The key 1234-abcd is pending deletion, to be deleted at 2023-11-21 22:13:20Z.\n"
    )
    assert server.called("POST /admin/v1/kms-keys/1234-abcd/schedule-deletion") == [{"days": 7}]


def test_alias_is_set_and_taken_away(run: Run, data: Path, server: PlayedServer) -> None:
    server.answers["POST /admin/v1/kms-keys/1234-abcd/alias"] = KEY
    removed = {"alias": "alias/orders", "deleted": True}
    server.answers["DELETE /admin/v1/kms-aliases?alias=alias%2Forders"] = removed

    assert run("kms", "alias", "alias/orders", "1234-abcd", "--data", data).code == 0
    assert run("kms", "alias", "alias/orders", "--remove", "--data", data).out == "Removed alias/orders.\n"
    assert run("kms", "alias", "alias/orders", "--remove", "--json", "--data", data).json == removed

    assert server.called("POST /admin/v1/kms-keys/1234-abcd/alias") == [{"alias": "alias/orders"}]
    for wrong in (("alias/orders",), ("alias/orders", "1234-abcd", "--remove")):
        refused = run("kms", "alias", *wrong, "--data", data)
        assert (refused.code, refused.err.strip()) == (1, "quaymaster: Name the key, or give --remove.")


def test_unknown_alias_and_refusals_are_one_line(run: Run, data: Path, server: PlayedServer) -> None:
    server.answers["GET /admin/v1/kms-keys"] = {"keys": [KEY]}
    server.answers["POST /admin/v1/kms-keys/none/enable"] = Refusal(404, "ResourceNotFound", "No such key.")

    unknown = run("kms", "enable", "alias/none", "--data", data)
    refused = run("kms", "enable", "none", "--data", data)

    assert unknown.code == refused.code == 1
    assert "There is no key with the alias alias/none." in unknown.err
    assert "No such key." in refused.err
