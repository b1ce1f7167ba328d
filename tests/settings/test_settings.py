"""Settings: where values come from, what is refused, and that docs and code say the same."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest
from pydantic import ValidationError

from quaymaster.net.http.message import HTTPLimits
from quaymaster.settings import (
    Settings,
    SettingsError,
    effective_settings,
    load_settings,
    meanings,
    parse_address,
    settings_as_markdown,
    unknown_variables,
)

REFERENCE = Path(__file__).parents[2] / "docs" / "reference" / "settings.md"


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "quaymaster.toml"
    path.write_text(text)
    return path


def test_defaults_need_neither_file_nor_environment() -> None:
    settings = load_settings(environment={})

    assert settings.listen == "127.0.0.1:9324"
    assert settings.admin_address == ("127.0.0.1", 9325)
    assert settings.authentication == "signed"


def test_a_flag_weighs_more_than_the_environment_and_that_more_than_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, 'region = "file-1"\naccount_id = "111111111111"\nlog_level = "error"\n')
    environment = {"QUAYMASTER_REGION": "env-1", "QUAYMASTER_ACCOUNT_ID": "222222222222"}

    settings = load_settings(path, flags={"region": "flag-1", "log_level": None}, environment=environment)

    assert (settings.region, settings.account_id, settings.log_level) == ("flag-1", "222222222222", "error")


def test_the_file_can_be_named_by_the_environment(tmp_path: Path) -> None:
    path = write(tmp_path, "purge_interval_s = 0\n")

    settings = load_settings(environment={"QUAYMASTER_CONFIG": str(path)})

    assert settings.purge_interval_s == 0


def test_environment_texts_become_numbers_and_truth_values() -> None:
    environment = {
        "QUAYMASTER_PURGE_INTERVAL_S": "7",
        "QUAYMASTER_OIDC_ISSUERS": "true",
        "QUAYMASTER_REPLICAS": "5",
    }

    settings = load_settings(environment=environment)

    assert (settings.purge_interval_s, settings.oidc_issuers, settings.replicas) == (7, True, 5)


def test_an_unknown_name_in_the_file_is_refused_with_the_nearest_one(tmp_path: Path) -> None:
    path = write(tmp_path, "purge_interval = 5\n")

    with pytest.raises(SettingsError, match="no setting purge_interval; did you mean purge_interval_s"):
        load_settings(path, environment={})


def test_an_unknown_flag_is_refused() -> None:
    with pytest.raises(SettingsError, match="no setting lisen; did you mean listen"):
        load_settings(flags={"lisen": "127.0.0.1:1"}, environment={})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("listen", "nowhere"),
        ("listen", "127.0.0.1:65536"),
        ("account_id", "12"),
        ("authentication", "none"),
        ("purge_interval_s", "-1"),
        ("http_body_bytes_max", "0"),
        ("compaction_live_ratio", "1.5"),
        ("public_url", "queue.example.com"),
    ],
)
def test_a_wrong_value_is_named_with_its_source(name: str, value: str) -> None:
    variable = f"QUAYMASTER_{name.upper()}"

    with pytest.raises(SettingsError) as caught:
        load_settings(environment={variable: value})

    assert f"{variable}: {name} '{value}' is not possible" in str(caught.value)


def test_a_file_that_is_missing_or_broken_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"absent\.toml cannot be read"):
        load_settings(tmp_path / "absent.toml", environment={})
    with pytest.raises(SettingsError, match="is not TOML"):
        load_settings(write(tmp_path, "= ="), environment={})


def test_open_authentication_stays_on_loopback_unless_forced() -> None:
    reachable = {"QUAYMASTER_LISTEN": "0.0.0.0:9324", "QUAYMASTER_AUTHENTICATION": "open"}

    with pytest.raises(SettingsError, match="other machines can reach"):
        load_settings(environment=reachable)

    assert load_settings(
        environment=reachable | {"QUAYMASTER_ALLOW_OPEN_ON_NETWORK": "1"}
    ).allow_open_on_network
    assert load_settings(environment={"QUAYMASTER_AUTHENTICATION": "open"}).authentication == "open"


def test_a_retry_is_forgotten_before_the_record_it_points_at_is_compacted() -> None:
    environment = {"QUAYMASTER_RETRY_WINDOW_MS": "600001"}

    with pytest.raises(
        SettingsError, match="retry_window_ms is 600001, longer than compaction_age_min_s, 600 s"
    ):
        load_settings(environment=environment)

    longest = load_settings(environment={"QUAYMASTER_RETRY_WINDOW_MS": "600000"})
    later = load_settings(environment=environment | {"QUAYMASTER_COMPACTION_AGE_MIN_S": "601"})
    assert (longest.retry_window_ms, later.retry_window_ms) == (600_000, 600_001)


def test_the_largest_body_fits_into_the_memory_for_all() -> None:
    environment = {"QUAYMASTER_HTTP_BODY_BYTES_TOTAL_MAX": "1000", "QUAYMASTER_HTTP_BODY_BYTES_MAX": "1001"}

    with pytest.raises(
        SettingsError, match="http_body_bytes_total_max is 1000, less than http_body_bytes_max"
    ):
        load_settings(environment=environment)

    fitting = load_settings(environment=environment | {"QUAYMASTER_HTTP_BODY_BYTES_MAX": "1000"})
    assert fitting.http_body_bytes_max == fitting.http_body_bytes_total_max


def test_master_keys_are_never_shown() -> None:
    environment = {"QUAYMASTER_MASTER_KEY_SOURCE": "environment", "QUAYMASTER_MASTER_KEY": "c2VjcmV0"}

    settings = load_settings(environment=environment)

    assert "c2VjcmV0" not in repr(settings)
    assert "c2VjcmV0" not in str(effective_settings(settings))
    assert settings.master_key is not None
    assert settings.master_key.get_secret_value() == "c2VjcmV0"


def test_settings_cannot_be_changed_after_start() -> None:
    settings = load_settings(environment={})

    with pytest.raises(ValidationError):
        settings.region = "elsewhere"


def test_variables_that_are_no_settings_are_found_with_what_may_be_meant() -> None:
    environment = {
        "QUAYMASTER_REGOIN": "x",
        "QUAYMASTER_REGION": "y",
        "QUAYMASTER_PORT_9324_TCP": "z",
        "HOME": "/",
    }

    unknown = unknown_variables(environment)

    assert unknown == {"QUAYMASTER_PORT_9324_TCP": None, "QUAYMASTER_REGOIN": "QUAYMASTER_REGION"}


def test_the_http_limits_are_those_of_the_http_server() -> None:
    settings = load_settings(environment={})

    assert HTTPLimits(**settings.http_limits()) == HTTPLimits()


@pytest.mark.parametrize(
    ("text", "host", "port", "is_loopback"),
    [
        ("127.0.0.1:1", "127.0.0.1", 1, True),
        ("[::1]:9324", "::1", 9324, True),
        (":80", "0.0.0.0", 80, False),
        ("queue.example.com:80", "queue.example.com", 80, False),
        ("localhost:0", "localhost", 0, True),
    ],
)
def test_addresses_are_taken_apart(text: str, host: str, port: int, is_loopback: bool) -> None:
    address = parse_address(text)

    assert (address.host, address.port, address.is_loopback) == (host, port, is_loopback)


def test_the_reference_page_says_what_the_code_says() -> None:
    assert REFERENCE.read_text() == settings_as_markdown(), "write settings_as_markdown() to the page again"


def test_every_setting_has_a_meaning_and_a_unit_where_it_has_one() -> None:
    meaning_of = meanings()

    assert list(meaning_of) == list(Settings.model_fields)
    for name, meaning in meaning_of.items():
        assert meaning, name
        assert not name.endswith(("_seconds", "_milliseconds", "_size", "_timeout", "_interval")), name


def test_settings_that_many_change_come_first_in_their_groups() -> None:
    extras = [cast("dict[str, object]", field.json_schema_extra) for field in Settings.model_fields.values()]
    places = [(extra["group"], not extra["is_common"]) for extra in extras]
    groups = list(dict.fromkeys(group for group, _ in places))
    with_common = [group for group, is_other in places if not is_other]

    assert places == sorted(places, key=lambda place: (groups.index(place[0]), place[1]))
    assert set(with_common) == set(groups)
    assert len(with_common) == 39


@pytest.mark.parametrize(
    ("given", "cores", "workers"),
    [(None, 1, 0), (None, 3, 0), (None, 4, 2), (None, 7, 3), (None, 64, 4), (0, 8, 0), (6, 2, 6)],
)
def test_log_workers_are_half_of_four_cores_or_more_unless_they_are_set(
    given: int | None, cores: int, workers: int
) -> None:
    settings = load_settings(flags={"log_workers_max": given}, environment={})

    assert settings.log_workers(cores) == workers
