"""Where an import comes from, and who it is to that service: from --from, the environment, and AWS's files.

    sqs://REGION                 Amazon SQS in a region
    http(s)://HOST[:PORT][/…]    any other service that speaks SQS's JSON protocol

Credentials are those of a profile of AWS's credentials file (--from-profile), else AWS_ACCESS_KEY_ID and its kin.
"""

from __future__ import annotations

import configparser
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from quaymaster.cli.shared.connection import REGION_DEFAULT, ServerConnection
from quaymaster.cli.shared.failures import WrongUsage, reason_of

SQS_SCHEME = "sqs"


def find_source(place: str, profile: str | None, environment: Mapping[str, str]) -> ServerConnection:
    """Return how to reach the service that `--from` names. Raises WrongUsage."""
    credentials = _of_profile(profile, environment) if profile is not None else environment
    key_id, secret, token, region = (
        credentials.get(name)
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_REGION")
    )
    parts = urlsplit(place)
    if parts.scheme == SQS_SCHEME:
        region, endpoint_url = parts.netloc, f"https://sqs.{parts.netloc}.amazonaws.com"
        if not region or parts.path.strip("/"):
            raise WrongUsage(f"--from {place} names no region; write sqs://eu-central-1.")
        if region.startswith("cn-"):
            endpoint_url += ".cn"
    elif parts.scheme in ("http", "https") and parts.netloc:
        endpoint_url = place.rstrip("/")
        region = region or environment.get("AWS_DEFAULT_REGION") or REGION_DEFAULT
    else:
        raise WrongUsage(f"--from {place} is no place; write sqs://REGION or http://HOST:PORT.")
    if not key_id or not secret:
        raise WrongUsage(
            f"--from {place} needs credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, "
            "or name a profile of ~/.aws/credentials with --from-profile."
        )
    return ServerConnection(endpoint_url, region, key_id, secret, token)


def _of_profile(profile: str, environment: Mapping[str, str]) -> dict[str, str]:
    home = Path(environment.get("HOME") or Path.home())
    path = Path(environment.get("AWS_SHARED_CREDENTIALS_FILE") or home / ".aws" / "credentials")
    parser = configparser.RawConfigParser()
    try:
        parser.read_string(path.read_text(encoding="utf-8"))
        section = parser[profile]
    except KeyError:
        raise WrongUsage(f"{path} has no profile {profile}.") from None
    except (OSError, ValueError, configparser.Error) as error:
        raise WrongUsage(f"{path} cannot be read: {reason_of(error)}.") from None
    names = {
        "aws_access_key_id": "AWS_ACCESS_KEY_ID",
        "aws_secret_access_key": "AWS_SECRET_ACCESS_KEY",
        "aws_session_token": "AWS_SESSION_TOKEN",
        "region": "AWS_REGION",
    }
    return {names[name]: section[name] for name in names if name in section}
