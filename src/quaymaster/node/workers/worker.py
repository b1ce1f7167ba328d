"""The process of a worker: `python -m quaymaster.node.workers.worker`; its standard input is the pipe of `brief`."""

from __future__ import annotations

import gc
import sys

from quaymaster.node.children.process import run_to_code
from quaymaster.node.workers.brief import read_brief

LIFELINE = 0


def main() -> None:
    """Serve until the other process says so, or is gone."""
    gc.disable()  # what is imported stays; `node/garbage` collects once this serves
    try:
        brief = read_brief(LIFELINE)
    except EOFError as error:
        sys.exit(str(error))
    from quaymaster.node.node import run_node
    from quaymaster.node.workers.worker_role import worker_role
    from quaymaster.settings import Settings

    sys.exit(run_to_code(run_node(Settings(**brief.settings), worker_role(brief, LIFELINE))))


if __name__ == "__main__":
    main()
