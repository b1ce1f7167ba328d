"""Which settings say where keys are, and what is made of them."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path
from typing import Any

import pytest

from quaymaster.metadata.keys.key_providers import (
    CombinedKeyProvider,
    EnvironmentKeyProvider,
    FileKeyProvider,
)
from quaymaster.metadata.kms.aws import AWSKeyProvider, AWSKeys
from quaymaster.metadata.kms.vault import VaultKeyProvider, VaultKeys
from quaymaster.node.from_settings import key_provider, key_services, metadata_options
from quaymaster.settings import Settings, SettingsError, load_settings

MASTER_KEY = base64.b64encode(bytes(32)).decode()
VAULT = {"vault_url": "https://vault.example:8200", "vault_token_file": "token"}
AWS = {"kms_credentials_file": "credentials"}


def settings_of(**flags: Any) -> Settings:
    return load_settings(flags=flags, environment={})


@pytest.mark.parametrize(
    ("flags", "kind", "key_id"),
    [
        ({}, FileKeyProvider, None),
        ({"master_key_source": "environment", "master_key": MASTER_KEY}, EnvironmentKeyProvider, None),
        ({"master_key_source": "vault", **VAULT}, VaultKeyProvider, "vault/quaymaster"),
        ({"master_key_source": "vault", "vault_key": "mine", **VAULT}, VaultKeyProvider, "vault/mine"),
        ({"master_key_source": "kms", "kms_key_id": "alias/a", **AWS}, AWSKeyProvider, "kms/alias/a"),
    ],
)
def test_master_key_is_where_the_settings_say(
    tmp_path: Path, flags: dict[str, Any], kind: type[Any], key_id: str | None
) -> None:
    provider = key_provider(settings_of(**flags), tmp_path)

    assert type(provider) is kind
    if key_id is not None:
        assert provider.wanted_key_id() == key_id
        assert list(provider.key_ids()) == [key_id]
    assert MASTER_KEY not in repr(provider)
    asyncio.run(provider.close())


def test_providers_that_have_settings_may_have_the_present_key(tmp_path: Path) -> None:
    files = FileKeyProvider(tmp_path / "keys")
    in_file = files.create()
    settings = settings_of(
        master_key_source="vault", master_key=MASTER_KEY, kms_key_id="alias/a", **VAULT, **AWS
    )

    provider = key_provider(settings, tmp_path)

    assert isinstance(provider, CombinedKeyProvider)
    (in_environment,) = EnvironmentKeyProvider(MASTER_KEY).key_ids()
    assert set(provider.key_ids()) == {"vault/quaymaster", in_environment, in_file, "kms/alias/a"}
    assert provider.wanted_key_id() == "vault/quaymaster"
    assert provider.key(in_file) == files.key(in_file)
    assert [provider.holds(key_id) for key_id in (in_file, in_environment)] == [True, True]
    assert [provider.holds(key_id) for key_id in ("vault/quaymaster", "kms/alias/a")] == [False, False]
    assert [provider.demands_rotation(key_id) for key_id in (in_file, "vault/quaymaster")] == [True, False]
    asyncio.run(provider.close())


def test_directory_of_keys_is_not_made_where_it_is_not_used(tmp_path: Path) -> None:
    key_provider(settings_of(master_key_source="vault", **VAULT), tmp_path)

    assert not (tmp_path / "keys").exists()


def test_services_with_settings_can_be_asked_whatever_the_mode(tmp_path: Path) -> None:
    services = key_services(settings_of(kms="ignore", **VAULT, **AWS))

    assert {name: type(service) for name, service in services.items()} == {"vault": VaultKeys, "aws": AWSKeys}
    assert key_services(settings_of()) == {}
    assert metadata_options(settings_of(kms="local")).kms == "local"


@pytest.mark.parametrize(
    ("flags", "missing"),
    [
        ({"master_key_source": "vault"}, "vault_url is not set"),
        ({"kms": "vault"}, "vault_url is not set"),
        ({"vault_url": "https://vault.example"}, "vault_token_file is not"),
        ({"master_key_source": "kms"}, "kms_key_id is not set"),
        ({"kms": "aws"}, "kms_credentials_file is not"),
        ({"kms_key_id": "alias/a"}, "kms_credentials_file is not"),
        ({"kms": "other"}, "kms 'other' is not possible"),
        ({"vault_url": "vault.example:8200", "vault_token_file": "t"}, "vault_url"),
        ({"vault_url": "https://token@vault.example", "vault_token_file": "t"}, "vault_url"),
        ({"outbound_networks": "10.0.0.1/8"}, "write networks as 10.0.0.0/8"),
        ({"outbound_networks": "intranet"}, "outbound_networks 'intranet' is not possible"),
    ],
)
def test_settings_that_do_not_fit_together_are_refused(flags: dict[str, str], missing: str) -> None:
    with pytest.raises(SettingsError, match=missing):
        settings_of(**flags)
