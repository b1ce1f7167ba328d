"""`make bench`: every measurement of this folder in turn.

python -m bench [serve_cost | http_limit | frontend_cost | overload] [its options]
"""

from __future__ import annotations

import sys

from bench import frontend_cost, http_limit, overload, serve_cost

MEASUREMENTS = {
    "serve_cost": serve_cost.main,
    "http_limit": http_limit.main,
    "frontend_cost": frontend_cost.main,
    "overload": overload.main,
}


def main() -> None:
    """Run the measurement that is named, with its options; without a name all of them."""
    chosen = sys.argv[1] if len(sys.argv) > 1 else None
    if chosen is not None and chosen not in MEASUREMENTS:
        sys.exit(f"there is no measurement {chosen!r}; there are {', '.join(MEASUREMENTS)}")
    options = sys.argv[2:]
    for name, measure in MEASUREMENTS.items():
        if chosen in (None, name):
            print(f"== {name}", flush=True)
            sys.argv = [name, *options]
            measure()


if __name__ == "__main__":
    main()
