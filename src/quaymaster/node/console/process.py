"""The process of a server's console: `python -m quaymaster.node.console.process`; the server writes to its input."""

from __future__ import annotations

import gc
import os
import sys

from quaymaster.node.children.console_child import read_console_brief, settings_of
from quaymaster.node.children.process import run_to_code

PIPE = 0
NICE = 10
"""Pages and history wait for messages, never the other way round."""


def main() -> None:
    """Serve until the server says so, or is gone."""
    os.setsid()  # Ctrl-C is for the server, which ends this one
    os.nice(NICE)
    gc.disable()  # what is imported stays; `node/garbage` collects once this serves
    try:
        brief = read_console_brief(PIPE)
    except EOFError as error:
        sys.exit(str(error))
    from quaymaster.node.console.role import child_role
    from quaymaster.node.node import run_node

    sys.exit(run_to_code(run_node(settings_of(brief), child_role(brief, PIPE))))


if __name__ == "__main__":
    main()
