"""`quaymaster monitoring`: what other monitoring systems load. Needs no server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from quaymaster.cli.shared import options
from quaymaster.cli.shared.output import print_json, print_line

app = options.new_group("Make the files that other monitoring systems load.")


@app.command()
def render(
    directory: Annotated[
        Path, typer.Argument(help="Directory to write to; it is made where there is none.", metavar="DIR")
    ],
    runbooks: Annotated[
        str, typer.Option("--runbooks", help="URL or path of the runbooks.", metavar="URL")
    ] = "docs/runbooks",
    as_json: options.AsJSON = False,
) -> None:
    """Write the alerts of operators as rules for Prometheus, and a configuration of Alertmanager to begin with.

    Files of before are replaced.
    """
    from quaymaster.core.alerts.prometheus_rules import rendered_files

    written = []
    for name, text in rendered_files(runbooks).items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        written.append(str(path))
    if as_json:
        print_json({"files": written})
    else:
        for one in written:
            print_line(one)
