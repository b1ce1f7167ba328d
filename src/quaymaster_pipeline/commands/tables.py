"""`quaymaster pipeline tables`: what tables there are, and how a program opens them."""

from __future__ import annotations

from quaymaster.cli.shared import options
from quaymaster.cli.shared.connection import data_directory
from quaymaster.cli.shared.output import note, print_json, print_table
from quaymaster_pipeline.commands.warehouse import (
    StorageOptions,
    WarehouseURI,
    need_tables_to_read,
    open_warehouse,
)


def tables(
    data: options.Data = None,
    warehouse: WarehouseURI = None,
    storage_option: StorageOptions = None,
    as_json: options.AsJSON = False,
) -> None:
    """List all tables: version, rows and files, and the line of Python that opens each with deltalake.

    A table without a version has not been written yet. In an object store the line takes storage_options, which are
    those of --storage-option. --json has the place and size as well.
    """
    need_tables_to_read()
    from quaymaster_pipeline.catalog import list_tables

    found = list_tables(open_warehouse(data_directory(data), warehouse, storage_option))
    if as_json:
        print_json([one.to_json() for one in found])
        return
    print_table(
        ("TABLE", "VERSION", "ROWS", "FILES", "IN PYTHON"),
        [(one.table, one.version, one.rows, one.files, one.python) for one in found],
    )
    if all(one.version is None for one in found):
        note(
            "No table has been written yet: `quaymaster pipeline run` puts what front ends recorded into them."
        )
