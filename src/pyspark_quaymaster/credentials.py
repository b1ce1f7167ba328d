"""Where the server is and with whose key requests are signed: options first, then what every AWS SDK looks at.

    option                           else                                          else, in the AWS files
    endpointUrl                      AWS_ENDPOINT_URL_SQS, AWS_ENDPOINT_URL        endpoint_url
    region                           AWS_REGION, AWS_DEFAULT_REGION                region (else us-east-1)
    accessKeyId, secretAccessKey,    AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY,     aws_access_key_id, ...
    sessionToken                     AWS_SESSION_TOKEN
    profile                          AWS_PROFILE                                   default

The files are ~/.aws/credentials and ~/.aws/config, or AWS_SHARED_CREDENTIALS_FILE and AWS_CONFIG_FILE. All is looked
up once, on the driver; executors are given the result.
"""

from __future__ import annotations

import configparser
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from pyspark_quaymaster.errors import OptionIsInvalid

DEFAULT_REGION = "us-east-1"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A server and a key to it."""

    url: str
    region: str
    access_key_id: str
    secret_access_key: str = field(repr=False)
    session_token: str | None = field(default=None, repr=False)


def find_endpoint(options: Mapping[str, str], environment: Mapping[str, str]) -> Endpoint:
    """Return the endpoint that options (names in lower case), environment and files give.

    Raises OptionIsInvalid when no endpoint or no complete key is given anywhere.
    """
    profile = options.get("profile") or environment.get("AWS_PROFILE") or "default"
    in_files = _profile_values(profile, environment)
    url = _first(
        options.get("endpointurl"),
        environment.get("AWS_ENDPOINT_URL_SQS"),
        environment.get("AWS_ENDPOINT_URL"),
        in_files.get("endpoint_url"),
    )
    if url is None:
        raise OptionIsInvalid(
            "no server is given: set the option endpointUrl, or AWS_ENDPOINT_URL_SQS on the driver"
        )
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise OptionIsInvalid(f"endpointUrl must be http://host:port or https://host:port, not {url!r}")
    region = _first(
        options.get("region"),
        environment.get("AWS_REGION"),
        environment.get("AWS_DEFAULT_REGION"),
        in_files.get("region"),
    )
    for key_id, secret, token in (
        (options.get("accesskeyid"), options.get("secretaccesskey"), options.get("sessiontoken")),
        (
            environment.get("AWS_ACCESS_KEY_ID"),
            environment.get("AWS_SECRET_ACCESS_KEY"),
            environment.get("AWS_SESSION_TOKEN"),
        ),
        (
            in_files.get("aws_access_key_id"),
            in_files.get("aws_secret_access_key"),
            in_files.get("aws_session_token"),
        ),
    ):
        # A key is taken from one place as a whole: half of one with half of another is no key.
        if key_id and secret:
            return Endpoint(url.rstrip("/"), region or DEFAULT_REGION, key_id, secret, token or None)
        if key_id or secret:
            raise OptionIsInvalid(
                "an access key needs both its id and its secret (accessKeyId, secretAccessKey)"
            )
    raise OptionIsInvalid(
        "no access key is given: set the options accessKeyId and secretAccessKey, the environment variables "
        f"AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY on the driver, or the profile {profile!r} in ~/.aws/credentials"
    )


def _first(*values: str | None) -> str | None:
    return next((value for value in values if value), None)


def _profile_values(profile: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Return what the AWS files say of a profile; the credentials file wins. Empty when neither knows it."""
    home = Path(environment.get("HOME") or "~").expanduser()
    credentials = Path(environment.get("AWS_SHARED_CREDENTIALS_FILE") or home / ".aws" / "credentials")
    config = Path(environment.get("AWS_CONFIG_FILE") or home / ".aws" / "config")
    section = "default" if profile == "default" else f"profile {profile}"
    return _section(config, section) | _section(credentials, profile)


def _section(path: Path, name: str) -> dict[str, str]:
    # AWS's files have a section called `default`, which configparser must not take for its own kind of default.
    parser = configparser.RawConfigParser(default_section="\0", strict=False)
    try:
        parser.read(path, encoding="utf-8")
    except (OSError, UnicodeDecodeError, configparser.Error) as error:
        raise OptionIsInvalid(f"{path} cannot be read: {error}") from error
    return dict(parser[name]) if parser.has_section(name) else {}
