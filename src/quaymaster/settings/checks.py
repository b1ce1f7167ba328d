"""What each setting may be, and which may not be together."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Self

from pydantic import SecretStr, field_validator, model_validator

from quaymaster.core.alerts.mail_servers import parse_smtp_url
from quaymaster.settings.addresses import (
    Address,
    parse_address,
    parse_addresses,
    parse_edge_listen,
    parse_networks,
)
from quaymaster.settings.values import EDGE_OFF, LISTENERS, SettingsValues


class Settings(SettingsValues):
    """All settings, checked and frozen. Build it with `load_settings`."""

    @field_validator(*LISTENERS)
    @classmethod
    def _address(cls, value: str) -> str:
        parse_address(value)
        return value

    @field_validator("edge_listen")
    @classmethod
    def _edge_listen(cls, value: str | None) -> str | None:
        if value is not None and value != EDGE_OFF:
            parse_edge_listen(value)
        return value

    @field_validator("replicas", "workers", mode="before")
    @classmethod
    def _number(cls, value: object) -> object:
        # A choice of numbers, unlike a number, is not looked for in a text, and the environment has only texts.
        return int(value) if isinstance(value, str) and value.isascii() and value.isdigit() else value

    @field_validator("metadata_nodes")
    @classmethod
    def _addresses(cls, value: str) -> str:
        parse_addresses(value)
        return value

    @field_validator("trusted_proxies", "edge_balancers", "outbound_networks")
    @classmethod
    def _networks(cls, value: str | None) -> str | None:
        parse_networks(value or "")
        return value

    @field_validator("smtp_url")
    @classmethod
    def _mail_server(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None:
            parse_smtp_url(value.get_secret_value())
        return value

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        if (
            self.authentication == "open"
            and not self.allow_open_on_network
            and not self.listen_address.is_loopback
        ):
            raise ValueError(
                f'authentication is "open" and listen is {self.listen}, which other machines can '
                'reach. Listen on loopback, use authentication = "signed", or set allow_open_on_network = true if '
                "everybody may do everything"
            )
        if isinstance(self.edge_place, Address) and not self.trusted_networks:
            raise ValueError(
                f"edge_listen is {self.edge_listen}, but no proxy may connect there: name theirs in trusted_proxies"
            )
        if (self.etcd_user is None) != (self.etcd_password is None):
            raise ValueError("etcd_user and etcd_password go together: set both or none")
        if self.etcd_key_file is not None and self.etcd_certificate_file is None:
            raise ValueError("etcd_key_file is set, but no etcd_certificate_file that it belongs to")
        if self.master_key_source == "environment" and self.master_key is None:
            raise ValueError('master_key_source is "environment", but master_key is not set')
        if "vault" in (self.master_key_source, self.kms) and self.vault_url is None:
            raise ValueError('master_key_source or kms is "vault", but vault_url is not set')
        if self.vault_url is not None and self.vault_token_file is None:
            raise ValueError("vault_url is set, but vault_token_file is not")
        if self.master_key_source == "kms" and self.kms_key_id is None:
            raise ValueError('master_key_source is "kms", but kms_key_id is not set')
        if (self.kms == "aws" or self.kms_key_id is not None) and self.kms_credentials_file is None:
            raise ValueError('kms is "aws" or kms_key_id is set, but kms_credentials_file is not')
        if self.traces == "otlp" and not _is_installed("opentelemetry.sdk"):
            raise ValueError(
                'traces is "otlp", but OpenTelemetry is not installed: pip install "quaymaster[traces]"'
            )
        if self.retry_window_ms > self.compaction_age_min_s * 1000:
            raise ValueError(
                f"retry_window_ms is {self.retry_window_ms}, longer than compaction_age_min_s, "
                f"{self.compaction_age_min_s} s: a retry could find that the record of its message was compacted"
            )
        if self.http_body_bytes_total_max < self.http_body_bytes_max:
            raise ValueError(
                f"http_body_bytes_total_max is {self.http_body_bytes_total_max}, less than http_body_bytes_max, "
                f"{self.http_body_bytes_max}: the largest bodies would never be taken"
            )
        if not self.http_body_bytes_max <= self.http_unsigned_peer_bytes_max <= self.http_unsigned_bytes_max:
            raise ValueError(
                "http_body_bytes_max, http_unsigned_peer_bytes_max and http_unsigned_bytes_max are "
                f"{self.http_body_bytes_max}, {self.http_unsigned_peer_bytes_max} and "
                f"{self.http_unsigned_bytes_max}; none may be more than the next: a client's first request comes "
                "before its connection is known"
            )
        return self


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # nor what it is in
        return False
