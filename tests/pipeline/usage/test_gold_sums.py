"""Sums by keys: those of a plain loop, whatever the keys are."""

from __future__ import annotations

import datetime
import random
from typing import Any

import pyarrow as pa
import pytest

from quaymaster_pipeline.usage import gold
from quaymaster_pipeline.usage.gold import ALONG, PARTIAL_SCHEMA, merge_usage
from quaymaster_pipeline.warehouse import sums
from quaymaster_pipeline.warehouse.schemas import HOUR_KEYS
from quaymaster_pipeline.warehouse.sums import MAXIMA, MINIMA, SUMS

NOON = datetime.datetime(2026, 11, 22, 12, tzinfo=datetime.UTC)


def partial_sums(seed: int, count: int, *, far: bool, nulls: bool) -> pa.Table:
    """Return rows of partial sums of which many have the same keys."""
    chance = random.Random(seed)

    def row() -> dict[str, object]:
        account = chance.choice(["000000000001", "000000000002", "ä", ""])
        queue = chance.randrange(4) * ((1 << 61) if far else 1) - 5
        numbers: dict[str, object] = {name: chance.randrange(-3, 1 << 40) for name in SUMS}
        numbers |= {name: chance.randrange(1 << 40) for name in (*MAXIMA, *MINIMA)}
        if nulls and chance.random() < 0.3:
            numbers["duplicates"] = None
        return {
            **numbers,
            "hour": NOON + datetime.timedelta(hours=chance.randrange(-2, 2)),
            "region": chance.choice(["eu-west-1", None] if nulls else ["eu-west-1", "us-east-1"]),
            "account_id": account,
            "queue_sk": queue,
            "action": chance.choice(["SendMessage", "DeleteMessage"]),
            **{name: f"{name} of {queue}" for name in ALONG},
        }

    return pa.Table.from_pylist([row() for _ in range(count)], schema=PARTIAL_SCHEMA)


@pytest.mark.parametrize("code_max", [1 << 62, 8])
@pytest.mark.parametrize("nulls", [False, True])
@pytest.mark.parametrize("far", [False, True])
@pytest.mark.parametrize("count", [1, 2, 300])
def test_rows_with_the_same_keys_become_one_in_the_order_of_keys(
    count: int, far: bool, nulls: bool, code_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sums, "_CODE_MAX", code_max)
    rows = partial_sums(count, count, far=far, nulls=nulls)

    found = merge_usage([rows.slice(0, count // 2), rows.slice(count // 2)])

    wanted: dict[tuple[object, ...], dict[str, Any]] = {}
    for row in rows.to_pylist():
        row["duplicates"] = row["duplicates"] or 0
        found_before = wanted.setdefault(tuple(row[name] for name in HOUR_KEYS), row)
        if found_before is not row:
            found_before.update({name: found_before[name] + row[name] for name in SUMS})
            found_before.update({name: max(found_before[name], row[name]) for name in MAXIMA})
            found_before.update({name: min(found_before[name], row[name]) for name in MINIMA})
    # Arrow sorts nulls last.
    keys = sorted(wanted, key=lambda key: [(part is None, part if part is not None else 0) for part in key])
    assert found.schema == PARTIAL_SCHEMA
    assert found.to_pylist() == [wanted[key] for key in keys]


def test_no_rows_are_no_sums() -> None:
    assert merge_usage([]).equals(PARTIAL_SCHEMA.empty_table())
    assert gold.daily_rows(gold.with_date(merge_usage([]))).num_rows == 0
