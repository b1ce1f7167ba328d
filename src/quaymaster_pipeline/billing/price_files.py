"""Price books as text: TOML, which people write, and CSV, a row for each tier. Pure, but for the book shipped with us.

TOML is as in `sqs_us_east_1.toml`. CSV has the columns of CSV_COLUMNS, in any order; what belongs to the book or to a
version is repeated in its rows, and must be the same in all of them.
"""

from __future__ import annotations

import csv
import io
import tomllib
from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal, InvalidOperation
from importlib.resources import files
from typing import Any, Final

from quaymaster_pipeline.billing.prices import BadPriceBook, PriceBook, PriceVersion, Tier, make_tiers
from quaymaster_pipeline.billing.rules import BILLING_CLASSES, BillingClass
from quaymaster_pipeline.warehouse.times import text_of_time

CSV_COLUMNS: Final = (
    *("name", "currency", "issuer", "number", "valid_from", "valid_to", "free_requests"),
    *("billing_class", "above", "per_million"),
)
_EXAMPLE: Final = "sqs_us_east_1.toml"


def example_book() -> PriceBook:
    """Return the book that is used until another is set: the public list prices of Amazon SQS in us-east-1."""
    return parse_toml(files(__package__).joinpath(_EXAMPLE).read_text(encoding="utf-8"))


def parse_toml(text: str) -> PriceBook:
    """Return the book of a TOML text. Raises BadPriceBook."""
    try:
        fields = tomllib.loads(text, parse_float=Decimal)
    except tomllib.TOMLDecodeError as error:
        raise BadPriceBook(f"no TOML: {error}") from None
    _only(fields, "the book", {"name", "currency", "issuer", "versions"})
    versions = fields.get("versions")
    if not isinstance(versions, list) or not all(isinstance(version, dict) for version in versions):
        raise BadPriceBook("there must be [[versions]]")
    return PriceBook(
        _string(fields, "name", "the book"),
        _string(fields, "currency", "the book"),
        tuple(_version(version) for version in versions),
        _string({"issuer": "Quaymaster"} | fields, "issuer", "the book"),
    )


def parse_csv(text: str) -> PriceBook:
    """Return the book of a CSV text. Raises BadPriceBook."""
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    try:
        rows = list(reader)
    except csv.Error as error:
        raise BadPriceBook(f"no CSV: {error}") from None
    if set(reader.fieldnames or ()) != set(CSV_COLUMNS):
        raise BadPriceBook(f"the columns must be {','.join(CSV_COLUMNS)}")
    versions: dict[str, dict[str, Any]] = {}
    for line, row in enumerate(rows, start=2):
        if None in row or None in row.values():
            raise BadPriceBook(f"row {line} must have {len(CSV_COLUMNS)} columns")
        if (row["name"], row["currency"], row["issuer"]) != tuple(
            rows[0][name] for name in ("name", "currency", "issuer")
        ):
            raise BadPriceBook(f"row {line}: name, currency and issuer must be those of the first row")
        of_version = {name: row[name] for name in ("number", "valid_from", "valid_to", "free_requests")}
        fields = versions.setdefault(row["number"], {**of_version, "row": of_version})
        if fields["row"] != of_version:
            raise BadPriceBook(
                f"row {line}: version {row['number']} is valid at other times in an earlier row"
            )
        if row["billing_class"] not in BILLING_CLASSES:
            raise BadPriceBook(f"row {line}: billing_class must be one of {', '.join(BILLING_CLASSES)}")
        fields.setdefault(row["billing_class"], []).append(
            {"above": row["above"], "per_million": row["per_million"]}
        )
    for fields in versions.values():
        del fields["row"]
        if not fields["valid_to"]:
            del fields["valid_to"]
    if not rows:
        raise BadPriceBook("there are no prices")
    first = rows[0]
    return PriceBook(
        first["name"],
        first["currency"],
        tuple(_version(fields) for fields in versions.values()),
        first["issuer"],
    )


def render_toml(book: PriceBook) -> str:
    """Return a book as TOML that `parse_toml` makes the same book of."""
    lines = [
        f"{name} = {_quoted(text)}"
        for name, text in (("name", book.name), ("currency", book.currency), ("issuer", book.issuer))
    ]
    for version in book.versions:
        lines += [
            "",
            "[[versions]]",
            f"number = {version.number}",
            f"valid_from = {time_text(version.valid_from)}",
        ]
        if version.valid_to is not None:
            lines.append(f"valid_to = {time_text(version.valid_to)}")
        lines.append(f"free_requests = {version.free_requests}")
        for billing_class in BILLING_CLASSES:
            lines.append(f"{billing_class} = [")
            lines += [
                f'    {{ above = {tier.above}, per_million = "{tier.per_million}" }},'
                for tier in version.tiers[billing_class]
            ]
            lines.append("]")
    return "\n".join(lines) + "\n"


def render_csv(book: PriceBook) -> str:
    """Return a book as CSV that `parse_csv` makes the same book of."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for version, billing_class, tier in each_tier(book):
        times = (time_text(version.valid_from), time_text(version.valid_to) if version.valid_to else "")
        writer.writerow(
            (
                *(book.name, book.currency, book.issuer, version.number, *times, version.free_requests),
                *(billing_class, tier.above, tier.per_million),
            )
        )
    return text.getvalue()


def each_tier(book: PriceBook) -> list[tuple[PriceVersion, BillingClass, Tier]]:
    """Return all tiers with what they belong to, in order."""
    return [
        (version, billing_class, tier)
        for version in book.versions
        for billing_class in BILLING_CLASSES
        for tier in version.tiers[billing_class]
    ]


def time_text(time: datetime) -> str:
    """Return a time as RFC 3339 in UTC, to the second."""
    return text_of_time(time)


def _version(fields: Mapping[str, Any]) -> PriceVersion:
    number = _integer(fields, "number", "a version")
    where = f"version {number}"
    _only(fields, where, {"number", "valid_from", "valid_to", "free_requests", *BILLING_CLASSES})
    return PriceVersion(
        number,
        _time(fields, "valid_from", where),
        _time(fields, "valid_to", where) if "valid_to" in fields else None,
        _integer(fields, "free_requests", where),
        {
            name: _tiers(fields.get(name), f"{where}, {name}")
            for name in BILLING_CLASSES
            if name != "push" or name in fields  # files of before do not say it
        },
    )


def _tiers(steps: Any, where: str) -> tuple[Tier, ...]:
    if not isinstance(steps, list) or not all(isinstance(step, dict) for step in steps):
        raise BadPriceBook(f"{where}: there must be a list of {{ above, per_million }}")
    for step in steps:
        _only(step, where, {"above", "per_million"})
    try:
        return make_tiers(
            (_integer(step, "above", where), _decimal(step, "per_million", where)) for step in steps
        )
    except BadPriceBook as error:
        raise BadPriceBook(f"{where}: {str(error).removeprefix(f'{where}: ')}") from None


def _only(fields: Mapping[str, Any], where: str, known: set[str]) -> None:
    unknown = sorted(set(fields) - known)
    if unknown:
        raise BadPriceBook(
            f"{where}: {', '.join(unknown)} means nothing here; there are {', '.join(sorted(known))}"
        )


def _string(fields: Mapping[str, Any], name: str, where: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str):
        raise BadPriceBook(f"{where}: {name} must be a text")
    return value


def _integer(fields: Mapping[str, Any], name: str, where: str) -> int:
    value = fields.get(name)
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 20:
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        raise BadPriceBook(f"{where}: {name} must be a whole number")
    return value


def _decimal(fields: Mapping[str, Any], name: str, where: str) -> Decimal:
    value = fields.get(name)
    if isinstance(value, bool) or not isinstance(value, str | int | Decimal) or len(str(value)) > 60:
        raise BadPriceBook(f"{where}: {name} must be a number")
    try:
        return Decimal(value)
    except InvalidOperation:
        raise BadPriceBook(f"{where}: {name} {value!r} must be a number") from None


def _time(fields: Mapping[str, Any], name: str, where: str) -> datetime:
    value = fields.get(name)
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            value = None
    if not isinstance(value, datetime):
        raise BadPriceBook(f"{where}: {name} must be a time, as 2026-11-15T00:00:00Z")
    return value


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
