"""Where the journals of a cell should be led: each at the broker of its first member, evened out."""

from __future__ import annotations

from quaymaster.core.cell.cell import broker_of
from quaymaster.core.cell.cell_view import CellView


def choose_homes(cell: CellView) -> dict[int, str | None]:
    """Return each journal's home; None for one of whose members no broker can be that.

    While a broker has two homes more than another, a chain of journals, each with a member on the next broker,
    shifts one home along it.
    """
    homes: dict[int, str | None] = {}
    counts = dict.fromkeys(cell.brokers, 0)
    hosts: dict[int, list[str]] = {}
    for number, journal in cell.journals.items():
        names = [broker_of(member) for member in journal.configuration.members]
        hosts[number] = [name for name in names if cell.is_home(name)]
        if hosts[number] and hosts[number][0] == names[0]:
            homes[number] = names[0]
            counts[names[0]] += 1
    for number, names in hosts.items():
        if number not in homes:
            home = min(names, key=lambda name: counts[name], default=None)
            homes[number] = home
            if home is not None:
                counts[home] += 1
    while _shift_home(homes, hosts, counts):
        pass
    return homes


def _shift_home(homes: dict[int, str | None], hosts: dict[int, list[str]], counts: dict[str, int]) -> bool:
    fewest = min(counts.values(), default=0)
    for fullest in sorted(counts, key=lambda name: -counts[name]):
        if counts[fullest] < fewest + 2:
            break  # nobody has room for one of its own
        came_by: dict[str, tuple[int, str]] = {}
        reached = [fullest]
        for name in reached:
            if counts[name] <= counts[fullest] - 2:
                counts[fullest] -= 1
                counts[name] += 1
                while name != fullest:
                    number, before = came_by[name]
                    homes[number] = name
                    name = before
                return True
            for number, home in homes.items():
                for other in hosts[number] if home == name else ():
                    if other not in reached:
                        came_by[other] = number, name
                        reached.append(other)
    return False
