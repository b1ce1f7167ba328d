"""Issuers of web identity tokens: what operators set is checked, kept, and followed everywhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from metadata.cell import Cell, run_cell
from metadata.support import World, eventually, run
from quaymaster.core.values.errors import (
    InvalidParameterValue,
    LimitExceeded,
    ResourceNotFound,
    UnsupportedOperation,
)
from quaymaster.core.values.formats import CellFormat
from quaymaster.metadata.keys import issuers as issuers_module

ISSUER = "https://oidc.example.com/ci"
KEY: dict[str, Any] = json.loads(
    jwt.algorithms.ECAlgorithm.to_jwk(ec.generate_private_key(ec.SECP256R1()).public_key())
)
KEYS = json.dumps({"keys": [KEY | {"kid": "one"}]})


def test_issuer_is_found_by_its_url_and_stays_after_a_restart(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            made = await service.issuers.put(ISSUER, ["sts.amazonaws.com"], KEYS)
            assert service.issuers.find(ISSUER) is not None
            assert (made.name, made.row.changed_ms) == ("oidc.example.com/ci", world.clock.ms)
            for other in (
                "oidc.example.com/ci",
                "http://oidc.example.com/ci",
                ISSUER + "/",
                ISSUER.upper(),
                "",
            ):
                assert service.issuers.find(other) is None
        async with world.service() as service:
            (found,) = service.issuers.list_all()
            assert found.keys is not None
            assert (found.url, found.audiences, len(found.keys)) == (ISSUER, ("sts.amazonaws.com",), 1)

            await service.issuers.put(ISSUER, ["a", "b"], KEYS)
            changed = service.issuers.find(ISSUER)
            assert changed is not None
            assert changed.audiences == ("a", "b")

            await service.issuers.delete(found.name)
            assert service.issuers.find(ISSUER) is None
            with pytest.raises(ResourceNotFound):
                await service.issuers.delete(found.name)

    run(scenario, tmp_path)


@pytest.mark.parametrize(
    ("issuer", "audiences", "keys"),
    [
        ("http://oidc.example.com", ["a"], KEYS),
        ("https://oidc.example.com?a", ["a"], KEYS),
        (ISSUER, [], KEYS),
        (ISSUER, ["a"] * 17, KEYS),
        (ISSUER, [""], KEYS),
        (ISSUER, ["a" * 256], KEYS),
        (ISSUER, ["a"], '{"keys":[]}'),
        (ISSUER, ["a"], "no JSON"),
    ],
)
def test_issuer_that_cannot_be_used_is_refused(
    tmp_path: Path, issuer: str, audiences: list[str], keys: str
) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            with pytest.raises(InvalidParameterValue):
                await service.issuers.put(issuer, audiences, keys)
            assert service.issuers.list_all() == []

    run(scenario, tmp_path)


def test_keys_of_an_issuer_are_given_or_fetched(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            found = await service.issuers.put(ISSUER, ["a"])
            assert (found.keys, found.keys_url) == (None, "")
            found = await service.issuers.put(ISSUER, ["a"], keys_url="https://keys.example.com/jwks")
            assert (found.keys, found.keys_url) == (None, "https://keys.example.com/jwks")
            for keys, keys_url in ((KEYS, "https://a"), ("", "http://a"), ("", "https://user@a")):
                with pytest.raises(InvalidParameterValue, match="keys_url"):
                    await service.issuers.put(ISSUER, ["a"], keys, keys_url)

    run(scenario, tmp_path)


def test_there_are_so_many_issuers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(issuers_module, "ISSUERS_MAX", 2)

    async def scenario(world: World) -> None:
        async with world.service() as service:
            for name in ("b", "a"):
                await service.issuers.put(f"https://{name}.example.com", ["a"], KEYS)
            with pytest.raises(LimitExceeded):
                await service.issuers.put(ISSUER, ["a"], KEYS)
            await service.issuers.put("https://a.example.com", ["b"], KEYS)
            assert [issuer.name for issuer in service.issuers.list_all()] == [
                "a.example.com",
                "b.example.com",
            ]

    run(scenario, tmp_path)


def test_cell_of_an_older_format_has_no_issuers(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service(cell_format=CellFormat(5)) as service:
            with pytest.raises(UnsupportedOperation, match="cell upgrade"):
                await service.issuers.put(ISSUER, ["a"], KEYS)

    run(scenario, tmp_path)


def test_front_ends_follow_issuers(tmp_path: Path) -> None:
    async def scenario(cell: Cell) -> None:
        async with cell.started() as (a, b):
            await a.issuers.put(ISSUER, ["a"], KEYS)
            await eventually(lambda: b.issuers.find(ISSUER) is not None)
            await b.issuers.delete("oidc.example.com/ci")
            await eventually(lambda: a.issuers.find(ISSUER) is None)

    run_cell(scenario, tmp_path)
