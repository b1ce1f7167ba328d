"""`make bench`: this server beside its peers, then their backlogs; or one measurement of this folder.

    python -m bench [--servers NAME,...] [--workloads NAME,...] [--seconds 3] [--depth 1000000] [--publish]
    python -m bench serve_cost | tls_cost | compare | backlog | depth | broker_depth | width | overload | http_limit |
        frontend_cost | cell | claims | commit_turns | pipeline | engines | fleet | freshness | laptop | verify |
        close | completions | importing | invoices | limit_fairness | limit_shares | partitions | push |
        workers | console | console_cost | alert_pass [its options]

Results are JSON in bench/results, with the tables and pictures made from them in bench/results/report.md. With
--publish they are those of docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from bench import (
    alert_pass,
    backlog,
    broker_depth,
    cell,
    claims,
    close,
    commit_turns,
    compare,
    completions,
    console,
    console_cost,
    depth,
    engines,
    fleet,
    freshness,
    frontend_cost,
    http_limit,
    importing,
    invoices,
    laptop,
    limit_fairness,
    limit_shares,
    overload,
    partitions,
    pipeline,
    push,
    report,
    rpc_cost,
    serve_cost,
    tls_cost,
    verify,
    width,
    workers,
)

MEASUREMENTS: dict[str, Callable[[], None]] = {
    "serve_cost": serve_cost.main,
    "tls_cost": tls_cost.main,
    "compare": compare.main,
    "completions": completions.main,
    "backlog": backlog.main,
    "http_limit": http_limit.main,
    "frontend_cost": frontend_cost.main,
    "overload": overload.main,
    "depth": depth.main,
    "claims": claims.main,
    "push": push.main,
    "broker_depth": broker_depth.main,
    "width": width.main,
    "rpc_cost": rpc_cost.main,
    "cell": cell.main,
    "commit_turns": commit_turns.main,
    "pipeline": pipeline.main,
    "engines": engines.main,
    "fleet": fleet.main,
    "freshness": freshness.main,
    "laptop": laptop.main,
    "verify": verify.main,
    "close": close.main,
    "importing": importing.main,
    "invoices": invoices.main,
    "limit_fairness": limit_fairness.main,
    "limit_shares": limit_shares.main,
    "partitions": partitions.main,
    "workers": workers.main,
    "console": console.main,
    "console_cost": console_cost.main,
    "alert_pass": alert_pass.main,
}


def main() -> None:
    """Run the measurement that is named, with its options; without a name the comparison and the backlog."""
    chosen = sys.argv[1] if len(sys.argv) > 1 and not sys.argv[1].startswith("-") else None
    if chosen is None:
        run_all(parse_options(sys.argv[1:]))
    elif chosen in MEASUREMENTS:
        sys.argv = [chosen, *sys.argv[2:]]
        MEASUREMENTS[chosen]()
    else:
        sys.exit(f"there is no measurement {chosen!r}; there are {', '.join(MEASUREMENTS)}")


def parse_options(arguments: list[str]) -> argparse.Namespace:
    """Return the options of a whole run."""
    parser = argparse.ArgumentParser(prog="bench", description="Measure this server beside its peers.")
    compare.add_options(parser)
    backlog.add_options(parser)
    parser.add_argument("--results", type=Path, default=compare.RESULTS, help="folder for JSON and report")
    parser.add_argument("--publish", action="store_true", help="make docs/benchmarks.md from the results")
    given = parser.parse_args(arguments)
    compare.check_names(parser, given)
    backlog.check_names(parser, given)
    return given


def run_all(given: argparse.Namespace) -> None:
    """Measure everything that was chosen, and make the tables and pictures."""
    folder: Path = given.results
    options = compare.Options(
        servers=given.servers, workloads=given.workloads, seconds=given.seconds, drivers=given.drivers
    )
    made: list[Path] = []
    if given.workloads:
        made.append(folder / "compare.json")
        compare.run(options, tell, lambda record: compare.write(record, folder / "compare.json"))
    if given.cases:
        made.append(folder / "backlog.json")
        backlog.run_given(given, tell, folder / "backlog.json")
    write_report(folder)
    tell(f"tables and pictures: {folder / 'report.md'}")
    if given.publish:
        for path in made:
            shutil.copy(path, report.FOLDER / path.name)
        report.main()
        tell(f"published: {report.PAGE}")


def write_report(folder: Path) -> None:
    """Write the tables and pictures of the results beside them."""
    records = report.read(folder)
    drawn = report.pictures(records)
    for name, picture in drawn.items():
        (folder / name).write_text(picture, encoding="utf-8")
    parts = [*report.sections(records).values(), *(f"![{name}]({name})" for name in drawn)]
    (folder / "report.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")


def tell(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    main()
