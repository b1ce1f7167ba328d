"""Spark as commands have it: the options that name it, and a session of it that ends with the command."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from quaymaster.cli.shared import options
from quaymaster.cli.shared.failures import WrongUsage
from quaymaster_pipeline.commands.warehouse import StorageOptions, WarehouseURI, need_tables
from quaymaster_pipeline.warehouse.errors import telling_full_disk

if TYPE_CHECKING:
    from quaymaster_pipeline.usage.tasks import SparkWorkers

SPARK_DIRECTORY = "spark"
DRIVER_MEMORY = "1g"

Master = Annotated[
    str,
    typer.Option("--master", help="Spark's master: local[*], spark://..., yarn, k8s://...", metavar="URL"),
]
DriverMemory = Annotated[
    str,
    typer.Option("--driver-memory", help="Memory of Spark's JVM; rows are not kept there.", metavar="SIZE"),
]


@dataclass(frozen=True, kw_only=True)
class SparkOptions:
    """Whose tables a command works on, and with which Spark.

    A command that has more options names their class as a second base, and its options come before these in the help.
    """

    data: options.Data = None
    master: Master = "local[*]"
    warehouse: WarehouseURI = None
    storage_option: StorageOptions = None
    driver_memory: DriverMemory = DRIVER_MEMORY
    as_json: options.AsJSON = False


@contextlib.contextmanager
def spark_workers(
    directory: Path, master: str, driver_memory: str, *, verbose: bool = False
) -> Iterator[SparkWorkers]:
    """Run Spark while the block runs; what it writes goes to the data directory. `verbose`: its words to stderr.

    Raises:
        WrongUsage: it cannot run here.
    """
    need_tables()
    from quaymaster_pipeline.usage.tasks import SparkWorkers
    from quaymaster_pipeline.warehouse.session import LOG_FILE, SparkMissing, spark_session

    place = (directory / SPARK_DIRECTORY).resolve()
    # Tables tell by themselves; what else finds no room is what Spark writes by the way.
    with telling_full_disk(str(place)), contextlib.ExitStack() as stack:
        try:
            spark = stack.enter_context(
                spark_session(
                    master,
                    directory=place,
                    driver_memory=driver_memory,
                    log=None if verbose else place / LOG_FILE,
                )
            )
        except SparkMissing as error:
            raise WrongUsage(f"{error}.") from None
        yield SparkWorkers(spark)
