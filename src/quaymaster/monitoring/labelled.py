"""Metrics of several processes as one text: each sample gets a label that says whose it is.

# HELP a ...             # HELP a ...              # HELP a ...
# TYPE a counter    +    # TYPE a counter     ──▶  # TYPE a counter
a{x="1"} 2               a{x="1"} 3                a{x="1"} 2
                                                   a{worker="0",x="1"} 3
"""

from __future__ import annotations

from collections.abc import Mapping

_HELP = "# HELP "


def merge_metrics(own: bytes, others: Mapping[str, bytes], label: str) -> bytes:
    """Return texts in Prometheus's format as one, family by family, as the format wants it.

    `own` stays as it is; samples of `others` get `label` with the name that they have there.
    """
    families: dict[str, list[str]] = {}
    for name, text in (("", own), *others.items()):
        family: list[str] = []
        known = set(families)
        title = ""
        for line in text.decode().splitlines():
            if line.startswith(_HELP):
                title = line.split(" ", 3)[2]
                family = families.setdefault(title, [])
            if not line.startswith("#"):
                family.append(_labelled(line, label, name) if name else line)
            elif title not in known:
                family.append(line)
    return "".join(f"{line}\n" for family in families.values() for line in family).encode()


def _labelled(sample: str, label: str, value: str) -> str:
    name, brace, rest = sample.partition("{")
    if brace and " " not in name:
        return f'{name}{{{label}="{value}",{rest}'
    name, _, rest = sample.partition(" ")
    return f'{name}{{{label}="{value}"}} {rest}'
