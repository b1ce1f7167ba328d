"""Where the journals of a cell should be led: each at the broker of its first member, evened out.

Over brokers first, over zones second: a zone that has many homes more than another gives one away if that makes no
broker's share worse. Many more are at least two, and more than half of the larger number: load comes before numbers
(`load_choice`), and a transfer has its price.
"""

from __future__ import annotations

from collections.abc import Callable

from quaymaster.core.cell.cell import broker_of
from quaymaster.core.cell.cell_view import CellView
from quaymaster.core.cell.loads import Loads


def choose_homes(cell: CellView, loads: Loads) -> dict[int, str | None]:
    """Return each journal's home; None for one of whose members no broker can be that.

    While a broker has many homes more than another, a chain of journals, each with a member on the next broker,
    shifts one home along it. So does one from a broker to another that has one less, while the zone of the first has
    many more than that of the second. A journal that came home for its load stays, and a broker with much to do gets
    none.
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
    takers = {number: [name for name in names if loads.is_calm(name)] for number, names in hosts.items()}
    takers |= {number: [] for number in hosts if loads.stays(number)}
    while _shift_home(homes, takers, counts):
        pass
    zones = {name: cell.zone(name) for name in cell.brokers}
    while _shift_home_over_zones(homes, takers, counts, zones):
        pass
    return homes


def _has_many_more(count: int, other: int) -> bool:
    """Tell whether numbers of homes differ so much that one is moved: one alone would only be exchanged."""
    return count - other >= 2 and 2 * (count - other) > count


def _shift_home(homes: dict[int, str | None], hosts: dict[int, list[str]], counts: dict[str, int]) -> bool:
    fewest = min(counts.values(), default=0)
    for fullest in sorted(counts, key=lambda name: -counts[name]):
        if not _has_many_more(counts[fullest], fewest):
            break  # no broker has room for one of its own

        def may_take(name: str, most: int = counts[fullest]) -> bool:
            return _has_many_more(most, counts[name])

        if _shift(homes, hosts, counts, fullest, may_take):
            return True
    return False


def _shift_home_over_zones(
    homes: dict[int, str | None],
    hosts: dict[int, list[str]],
    counts: dict[str, int],
    zones: dict[str, str],
) -> bool:
    """Shift one home to a zone that has two less, from a broker to one that has one less: they change places."""
    of_zone = dict.fromkeys(zones.values(), 0)
    for name, count in counts.items():
        of_zone[zones[name]] += count
    least = min(of_zone.values(), default=0)
    for fullest in sorted(counts, key=lambda name: (-of_zone[zones[name]], -counts[name], name)):
        most = of_zone[zones[fullest]]
        if not _has_many_more(most, least):
            break  # no zone has room for one of its own

        def may_take(name: str, count: int = counts[fullest] - 1, most: int = most) -> bool:
            return counts[name] == count and _has_many_more(most, of_zone[zones[name]])

        if _shift(homes, hosts, counts, fullest, may_take):
            return True
    return False


def _shift(
    homes: dict[int, str | None],
    hosts: dict[int, list[str]],
    counts: dict[str, int],
    fullest: str,
    may_take: Callable[[str], bool],
) -> bool:
    """Shift one home away from a broker, along the shortest chain to one that may take it; False if there is none."""
    if not any(map(may_take, counts)):
        return False
    came_by: dict[str, tuple[int, str]] = {}
    reached = [fullest]
    for name in reached:
        if may_take(name):
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
