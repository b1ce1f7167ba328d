"""The warehouse as commands have it: the options that name it, its lock, and what is said when it cannot be used."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from quaymaster.cli.shared.failures import CommandRefused, NoServer, WrongUsage, reason_of
from quaymaster.cli.shared.output import note

if TYPE_CHECKING:
    from quaymaster_pipeline.warehouse.tables import Warehouse

WAREHOUSE_DIRECTORY = "warehouse"
FILLED_BY = "`quaymaster pipeline run --warehouse {uri}` puts what front ends recorded there."

WarehouseURI = Annotated[
    str | None,
    typer.Option(
        "--warehouse",
        help="Where the tables are, if not in DIR/warehouse: a directory or s3://...",
        metavar="URI",
    ),
]
StorageOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--storage-option",
        help="For an object store, as of deltalake: AWS_ENDPOINT_URL=...",
        metavar="KEY=VALUE",
    ),
]


def check_account(account_id: str | None) -> None:
    """Raise WrongUsage for what --account names if that can be no account."""
    if account_id and not (len(account_id) == 12 and account_id.isascii() and account_id.isdigit()):
        raise WrongUsage(f"--account: an account's id has 12 digits, unlike {account_id!r}.")


def need_tables() -> None:
    try:
        import deltalake  # noqa: F401
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise WrongUsage(
            f"The usage pipeline is not installed ({error.name} is missing). What clients do is recorded, and kept for "
            "30 days. `make run-pipeline` in a checkout installs the pipeline and runs it; elsewhere: "
            "pip install 'quaymaster[spark]', then `quaymaster pipeline run`."
        ) from None


class _WithoutPandas(MetaPathFinder):
    """Says that pandas is not installed."""

    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError("pandas is left out", name=fullname)


def need_tables_to_read() -> None:
    """Do the same for a command that reads tables and shows them, without Spark.

    With its first array pyarrow imports pandas where that is installed: two thirds of the CPU time of such a command,
    which needs none of it. A process that goes on, as that of a test does, keeps its pandas.
    """
    if Path(sys.argv[0]).name == "quaymaster":
        sys.meta_path.insert(0, _WithoutPandas())
    need_tables()


def open_warehouse(
    directory: Path,
    uri: str | None,
    storage_options: list[str] | None,
    *,
    makes_tables: bool = False,
    filled_by: str = FILLED_BY,
) -> Warehouse:
    """Return the tables that the options mean. `filled_by` says, where there are none, what makes them at `{uri}`.

    Raises:
        NoServer: there is no such directory. Tables need not be there yet. Not if the command `makes_tables`.
        WrongUsage: it is no directory.
    """
    from quaymaster_pipeline.warehouse.tables import Warehouse

    pairs = {}
    for text in storage_options or []:
        name, equals, value = text.partition("=")
        if not equals:
            raise WrongUsage(f"--storage-option takes KEY=VALUE, not {text!r}.")
        pairs[name] = value
    if uri is not None and "://" not in uri and Path(uri).exists() and not Path(uri).is_dir():
        raise WrongUsage(f"--warehouse: {uri} is not a directory.")
    if not makes_tables:
        _need_place(directory, uri, filled_by)
    return Warehouse(uri or str((directory / WAREHOUSE_DIRECTORY).resolve()), pairs)


def _need_place(directory: Path, uri: str | None, filled_by: str) -> None:
    if uri is None:
        if not directory.is_dir():
            raise NoServer(
                f"{directory} does not exist: no server was started on this data directory. "
                f"Start one with `quaymaster serve --data {directory}`, or name the directory with --data."
            )
    elif "://" not in uri and not Path(uri).is_dir():
        raise NoServer(f"{uri} does not exist: there are no tables. {filled_by.format(uri=uri)}")


@contextlib.contextmanager
def only_writer(lock: contextlib.AbstractContextManager[None]) -> Iterator[None]:
    """Hold a lock of the warehouse.

    Raises:
        CommandRefused: another process does.
        WrongUsage: the place cannot be written.
    """
    from quaymaster_pipeline.warehouse.tables import WarehouseBusy

    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(lock)
        except WarehouseBusy as error:
            raise CommandRefused(f"{error}; stop it, or wait.") from None
        except OSError as error:
            raise WrongUsage(
                f"The warehouse {error.filename} cannot be written: {reason_of(error)}."
            ) from None
        yield


def write_metrics_of(tables: Warehouse, directory: Path, name: str, text: str) -> None:
    """Replace a metrics file of the tables. One that cannot be written is noted: what was done counts without it."""
    from quaymaster_pipeline.warehouse.metrics_file import place_of_metrics, write_metrics

    path = place_of_metrics(tables.root, directory, name)
    try:
        write_metrics(path, text)
    except OSError as error:
        note(f"The metrics {path} cannot be written: {reason_of(error)}.")
