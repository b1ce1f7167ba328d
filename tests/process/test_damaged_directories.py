"""A flipped bit in a data directory, or a file that is gone or cut, is refused, repaired or harmless: never believed.

Here a sample is tried; `make damages` tries everything that `damages_of` finds.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from .damages import Damage, World, damages_of, sample_size

SEED = 20261123
FLIPS_PER_FILE = 12
AT_ONCE = 2


def outcomes_of(world: World, damages: Sequence[Damage], directory: Path) -> dict[Damage, str]:
    """Try damages, each on a copy of its own."""
    directories = [directory / str(number) for number in range(len(damages))]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        outcomes = dict(zip(damages, pool.map(world.outcome, damages, directories), strict=True))
    print(f"{len(damages)} damages: {dict(Counter(outcomes.values()))}")
    return outcomes


def sampled(damages: list[Damage]) -> list[Damage]:
    """Return those that are tried."""
    size = sample_size()
    return random.Random(SEED).sample(damages, min(size, len(damages))) if size else damages


@pytest.fixture(scope="module")
def killed_world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """The directory of a killed server, which is copied before it is harmed."""
    return World(tmp_path_factory.mktemp("world") / "whole", killed=True)


@pytest.mark.timeout(7_200)
def test_no_damage_of_a_stopped_servers_directory_is_believed(tmp_path: Path) -> None:
    world = World(tmp_path / "whole")
    precious = [Damage(path, None) for path in ("metadata.sqlite", "journals/0", "journals/0/journal.state")]
    others = [
        one for one in damages_of(world.data, random.Random(SEED), FLIPS_PER_FILE) if one not in precious
    ]

    outcomes = outcomes_of(world, precious + sampled(others), tmp_path)

    assert {outcomes[damage] for damage in precious} == {"refused"}


@pytest.mark.timeout(7_200)
def test_no_cut_of_a_killed_servers_files_is_believed(killed_world: World, tmp_path: Path) -> None:
    damages = [
        one for one in damages_of(killed_world.data, random.Random(SEED), FLIPS_PER_FILE) if one.is_cut
    ]
    segments = [one for one in damages if one.path.endswith(".seg")]
    active = max(one.path for one in segments)
    halves = [one for one in segments if one.path == active and one.place]

    others = sampled([one for one in damages if one not in halves])
    outcomes = outcomes_of(killed_world, [*halves, *others], tmp_path)

    assert {outcomes[damage] for damage in halves} == {"refused"}


@pytest.mark.timeout(7_200)
def test_no_damage_of_a_killed_servers_metadata_is_believed(killed_world: World, tmp_path: Path) -> None:
    damages = [
        one
        for one in damages_of(killed_world.data, random.Random(SEED), FLIPS_PER_FILE)
        if one.path.startswith(("metadata", "journals/store.mark"))
    ]
    log = Damage("metadata.sqlite-wal", None)

    outcomes = outcomes_of(killed_world, [log, *sampled([one for one in damages if one != log])], tmp_path)

    assert outcomes[log] == "refused"
