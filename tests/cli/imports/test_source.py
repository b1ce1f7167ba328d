"""Where an import comes from, and with whose credentials."""

from __future__ import annotations

from pathlib import Path

import pytest

from quaymaster.cli.imports.source import find_source
from quaymaster.cli.shared.failures import WrongUsage

KEYS = {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "secret"}


@pytest.mark.parametrize(
    ("place", "endpoint", "region"),
    [
        ("sqs://eu-central-1", "https://sqs.eu-central-1.amazonaws.com", "eu-central-1"),
        ("sqs://cn-north-1/", "https://sqs.cn-north-1.amazonaws.com.cn", "cn-north-1"),
        ("http://localhost:4566/", "http://localhost:4566", "us-east-1"),
        ("https://sqs.example.com/q", "https://sqs.example.com/q", "us-east-1"),
    ],
)
def test_a_source_is_a_region_or_a_url(place: str, endpoint: str, region: str) -> None:
    found = find_source(place, None, {**KEYS, "AWS_SESSION_TOKEN": "token"})

    assert (found.endpoint_url, found.region) == (endpoint, region)
    assert (found.access_key_id, found.secret_access_key, found.session_token) == ("id", "secret", "token")


def test_a_url_is_signed_for_the_region_of_the_environment() -> None:
    assert find_source("http://a", None, {**KEYS, "AWS_REGION": "r"}).region == "r"
    assert find_source("http://a", None, {**KEYS, "AWS_DEFAULT_REGION": "d"}).region == "d"


@pytest.mark.parametrize(
    "place", ["sqs://", "sqs://eu-central-1/queue", "eu-central-1", "ftp://a", "http://"]
)
def test_another_place_is_wrong_usage(place: str) -> None:
    with pytest.raises(WrongUsage, match="--from"):
        find_source(place, None, KEYS)


def test_credentials_are_needed() -> None:
    with pytest.raises(WrongUsage, match="needs credentials"):
        find_source("sqs://eu-central-1", None, {"AWS_ACCESS_KEY_ID": "id"})


def test_credentials_of_a_profile_are_those_of_its_section(tmp_path: Path) -> None:
    file = tmp_path / "credentials"
    file.write_text(
        "[other]\naws_access_key_id = no\n"
        "[old]\naws_access_key_id = of-profile\naws_secret_access_key = s%cret\naws_session_token = t\nregion = r\n"
    )
    environment = {**KEYS, "AWS_SHARED_CREDENTIALS_FILE": str(file)}

    found = find_source("http://a", "old", environment)

    assert (found.access_key_id, found.secret_access_key) == ("of-profile", "s%cret")
    assert (found.session_token, found.region) == ("t", "r")
    with pytest.raises(WrongUsage, match="has no profile absent"):
        find_source("http://a", "absent", environment)
    file.write_text("no section")
    with pytest.raises(WrongUsage, match="cannot be read"):
        find_source("http://a", "old", environment)


def test_credentials_are_looked_for_in_the_home_directory(tmp_path: Path) -> None:
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "credentials").write_text("[a]\naws_access_key_id = i\naws_secret_access_key = s\n")

    assert find_source("http://a", "a", {"HOME": str(tmp_path)}).access_key_id == "i"
    with pytest.raises(WrongUsage, match="cannot be read"):
        find_source("http://a", "a", {"HOME": str(tmp_path / "absent")})
