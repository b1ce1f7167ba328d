"""How much of its files, memory and disk a process uses."""

from __future__ import annotations

from pathlib import Path

from quaymaster.node.pools import ProcessPools


def test_process_tells_of_its_files_memory_and_disk(tmp_path: Path) -> None:
    pools = {sample.labels[0]: sample.value for sample in ProcessPools(tmp_path).samples()}

    assert pools.keys() == {"files", "memory", "disk"}
    assert all(0 < used < 1 for used in pools.values()), pools


def test_memory_is_what_the_container_may_have(tmp_path: Path) -> None:
    limit = tmp_path / "memory.max"
    limit.write_text("1000000000000000\n")
    whole = _memory(ProcessPools(tmp_path, cgroup_limit=limit))
    limit.write_text(f"{64 << 20}\n")
    contained = _memory(ProcessPools(tmp_path, cgroup_limit=limit))

    assert contained > whole


def test_what_the_system_does_not_tell_is_left_out(tmp_path: Path) -> None:
    pools = ProcessPools(tmp_path, proc=tmp_path / "none", cgroup_limit=tmp_path / "none")

    assert [sample.labels for sample in pools.samples()] == [("disk",)]


def _memory(pools: ProcessPools) -> float:
    return next(sample.value for sample in pools.samples() if sample.labels == ("memory",))
