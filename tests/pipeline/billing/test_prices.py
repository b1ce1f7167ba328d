from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from harness.billing import CHANGE, CHANGED
from hypothesis import given
from hypothesis import strategies as st

from quaymaster_pipeline.billing.price_files import (
    example_book,
    parse_csv,
    parse_toml,
    render_csv,
    render_toml,
)
from quaymaster_pipeline.billing.prices import BadPriceBook, NoPrice, PriceBook, PriceVersion, make_tiers
from quaymaster_pipeline.billing.rules import BILLING_CLASSES

PRICES = st.decimals(min_value=0, max_value=10**6, places=12)
TIERS = st.dictionaries(st.integers(1, 2**63 - 1), PRICES, max_size=3).flatmap(
    lambda steps: PRICES.map(lambda first: make_tiers([(0, first), *steps.items()]))
)
TEXTS = st.text(st.characters(exclude_categories=("C", "Z")), min_size=1, max_size=20)


@st.composite
def books(draw: st.DrawFn) -> PriceBook:
    days = sorted(draw(st.lists(st.integers(0, 10**6), min_size=1, max_size=4, unique=True)))
    times = [datetime(2000, 1, 1, tzinfo=UTC) + timedelta(days=day) for day in days]
    ends = [*times[1:], draw(st.sampled_from([None, times[-1] + timedelta(days=1)]))]
    versions = [
        PriceVersion(
            number,
            start,
            end,
            draw(st.integers(0, 2**63 - 1)),
            {name: draw(TIERS) for name in BILLING_CLASSES},
        )
        for number, (start, end) in enumerate(zip(times, ends, strict=True), start=1)
    ]
    return PriceBook(draw(TEXTS), "EUR", tuple(versions), draw(TEXTS))


@given(books())
def test_a_book_written_as_toml_or_csv_is_read_as_the_same_book(book: PriceBook) -> None:
    assert parse_toml(render_toml(book)) == book
    assert parse_csv(render_csv(book)) == book


def test_the_book_shipped_is_the_public_price_list_of_sqs() -> None:
    book = example_book()
    version = book.at(datetime(2026, 11, 1, tzinfo=UTC))

    assert "example" in book.name
    assert version.free_requests == 1_000_000
    assert [tier.per_million for tier in version.tiers["standard"]] == ["0.4", "0.3", "0.24"]
    assert [tier.per_million for tier in version.tiers["fifo"]] == ["0.5", "0.4", "0.35"]
    assert [tier.above for tier in version.tiers["fifo"]] == [0, 100_000_000_000, 200_000_000_000]


def test_prices_may_be_numbers_or_texts_and_stay_decimal() -> None:
    text = render_toml(example_book())

    assert parse_toml(text.replace('"0.4"', "0.4").replace('"0.24"', "0.240")) == example_book()


def test_a_version_is_valid_from_its_first_day_up_to_its_end() -> None:
    assert CHANGED.at(CHANGE - timedelta(days=1)).number == 1
    assert CHANGED.at(CHANGE).number == 2
    assert [version.number for version in CHANGED.between(CHANGE, CHANGE + timedelta(days=1))] == [2]
    with pytest.raises(NoPrice, match="2019-12-31T23:00:00Z"):
        CHANGED.at(datetime(2019, 12, 31, 23, tzinfo=UTC))


def test_prices_of_a_time_differ_only_when_a_charge_could() -> None:
    start = datetime(2026, 10, 1, tzinfo=UTC)
    other = parse_toml(render_toml(CHANGED).replace('"0.8"', '"0.9"').replace('"changed"', '"renamed"'))

    assert other.prices_between(start, CHANGE) == CHANGED.prices_between(start, CHANGE)
    assert other.prices_between(start, CHANGE + timedelta(days=1)) != CHANGED.prices_between(
        start, CHANGE + timedelta(days=1)
    )


GOOD = render_toml(CHANGED)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("number = 2", "number = 1", "different numbers"),
        ("number = 2", "number = 0", "1 to 32767"),
        ("number = 2", 'number = "two"', "whole number"),
        ("valid_from = 2026-11-15T00:00:00Z", "valid_from = 2026-11-14T00:00:00Z", "already"),
        ("valid_from = 2026-11-15T00:00:00Z", "valid_from = 2026-11-15T06:00:00Z", "must be midnight in UTC"),
        ("valid_from = 2026-11-15T00:00:00Z", "valid_from = 2026-11-15T00:00:00", "zone"),
        ("valid_from = 2026-11-15T00:00:00Z", "valid_from = 3", "must be a time"),
        ("valid_to = 2026-11-15T00:00:00Z", "valid_to = 2019-11-15T00:00:00Z", "after valid_from"),
        ("free_requests = 1000000", "free_requests = -1", "free_requests must be 0"),
        ("free_requests = 1000000", "free = 1", "free means nothing here"),
        ("above = 0,", "above = 1,", "first tier must be above 0"),
        ("above = 200000000000,", "above = 100000000000,", "two tiers begin above"),
        ("above = 100000000000,", "above = 1.5,", "whole number"),
        ('"0.4"', '"-0.4"', "not negative"),
        ('"0.4"', '"0.4000000000001"', "18 decimals"),
        ('"0.4"', '"nan"', "must be a number that is not negative"),
        ('"0.4"', '"cheap"', "must be a number"),
        ('"0.4"', "true", "must be a number"),
        ('"USD"', '"JPY"', "two decimals"),
        ('"USD"', '"usd"', "three capital letters"),
        ('name = "changed"', 'name = ""', "name must have 1 to 200"),
        ('name = "changed"', "name = 1", "must be a text"),
        ("[[versions]]", "[versions", "no TOML"),
        ("[[versions]]", "[[prices]]", "prices means nothing here"),
    ],
)
def test_a_book_that_cannot_be_rated_by_is_refused(old: str, new: str, message: str) -> None:
    assert old in GOOD

    with pytest.raises(BadPriceBook, match=message):
        parse_toml(GOOD.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("billing_class", "class", "the columns must be"),
        (",standard,", ",gold,", "billing_class must be one of"),
        ("changed,USD", "other,USD", "those of the first row"),
        ("1000000,fifo,0,1", "7,fifo,0,1", "row 14: version 2"),
        ("100000000000,0.8", "100000000000", "must have 10 columns"),
    ],
)
def test_a_csv_that_contradicts_itself_is_refused(old: str, new: str, message: str) -> None:
    text = render_csv(CHANGED)
    assert old in text
    at = text.rindex(old) if old[0].isdigit() or old.startswith("changed") else text.index(old)

    with pytest.raises(BadPriceBook, match=message):
        parse_csv(text[:at] + new + text[at + len(old) :])


def test_a_book_without_prices_is_refused() -> None:
    with pytest.raises(BadPriceBook, match="no prices"):
        parse_csv(render_csv(CHANGED).splitlines()[0] + "\n")
    with pytest.raises(BadPriceBook, match="1 to 1000 versions"):
        PriceBook("empty", "USD", ())


def test_a_tier_beyond_what_can_be_counted_is_refused() -> None:
    with pytest.raises(BadPriceBook, match="it must be 0 to"):
        make_tiers([(2**63, Decimal(1))])


def test_a_book_that_does_not_say_what_calls_to_endpoints_cost_has_the_standard_price() -> None:
    text = example_toml_without_push()

    (version,) = parse_toml(text).versions

    assert version.tiers["push"] == version.tiers["standard"]
    with_push = text + '\n[[versions.push]]\nabove = 0\nper_million = "7"\n'
    assert parse_toml(with_push).versions[0].tiers["push"] == make_tiers([(0, Decimal(7))])


def example_toml_without_push() -> str:
    """Return the example as it was before queues were pushed."""
    text = render_toml(example_book())
    at = text.index("push = [")
    return text[:at] + text[text.index("]", at) + 1 :]
