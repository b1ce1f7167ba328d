"""Jobs of the pipeline that are killed between two commits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from quaymaster_pipeline.warehouse.schemas import TableSpec
from quaymaster_pipeline.warehouse.tables import Table


class Killed(BaseException):
    """The process ends here; nothing catches it."""


@contextmanager
def killed_before(spec: TableSpec) -> Iterator[None]:
    """Run the block until its first commit to a table, which must come."""
    commit = Table.commit

    def commit_or_die(table: Table, *arguments: Any, **named: Any) -> bool:
        if table.spec is spec:
            raise Killed
        return commit(table, *arguments, **named)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Table, "commit", commit_or_die)
        with pytest.raises(Killed):
            yield
