"""`quaymaster pipeline tables` lists the tables of a warehouse, for people and for programs."""

from __future__ import annotations

from pathlib import Path

from harness.command_line import Run
from harness.pipeline_site import Site
from harness.table_specs import all_specs
from harness.usage_blocks import FrontEnd


def test_all_tables_are_listed_with_rows_and_the_line_that_opens_them(run: Run, tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.ship(FrontEnd("a").block(30))
    site.run()

    as_json = run("pipeline", "tables", "--data", tmp_path, "--json").json
    lines = run("pipeline", "tables", "--data", tmp_path).out.splitlines()

    assert [one["table"] for one in as_json] == list(all_specs())
    assert tuple(as_json[0]) == ("table", "version", "rows", "files", "bytes", "uri", "python")
    place = site.root / "bronze/blocks"
    assert f'bronze.blocks\t1\t1\t1\tDeltaTable("{place}")' in lines
    assert "ops.dim_queue\t-\t0\t0\t-" in lines
    assert len(lines) == len(as_json)


def test_a_directory_without_tables_says_what_fills_them(run: Run, tmp_path: Path) -> None:
    done = run("pipeline", "tables", "--data", tmp_path)

    assert done.code == 0
    assert "`quaymaster pipeline run`" in done.err
