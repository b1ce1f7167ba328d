"""A cell in three zones: in each of them an etcd member, a broker, a metadata node, a manager and a front end.

```
  clients ─┬─ zone-1   etcd-1  broker-1  metadata-1  manager-1  frontend-1
           ├─ zone-2   etcd-2  broker-2  ...
           ├─ zone-3   etcd-3  broker-3  ...
           └─ others, as the test wants them
```

A zone is one host here: what fails with it fails together. Each process names its zone, and the etcd member of its zone
first; so nothing of a zone depends on another one while both are well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Self

from harness.etcd import ELECTION_MS, HEARTBEAT_MS, etcd_or_skip
from harness.hosts import Hosts

from quaymaster.cli.local.etcd import etcd_command

from .cell import CLIENTS, ETCD_PORTS, PORTS, Cell, HostedEtcd, Member, Role

ZONES = ("zone-1", "zone-2", "zone-3")
ROLES: tuple[Role, ...] = ("broker", "metadata", "manager", "frontend")


class ZonedCell(Cell):
    """A cell with a full set of processes in each zone."""

    def __init__(self, directory: Path, hosts: Hosts) -> None:
        super().__init__(directory, hosts, 0)
        self._etcd = [
            HostedEtcd(f"etcd-{number}", *ETCD_PORTS, directory / f"etcd-{number}", host=hosts.address(zone))
            for number, zone in enumerate(ZONES, 1)
        ]

    @classmethod
    @contextmanager
    def in_zones(
        cls, directory: Path, *, others: Sequence[str] = (), settings: Mapping[str, object] | None = None
    ) -> Iterator[Self]:
        """Give a cell that serves requests, with the calling thread in the host of its clients.

        `others` are names of more hosts on the same switch; `settings` are for every process.
        """
        program = etcd_or_skip()
        with Hosts.made([*ZONES, CLIENTS, *others]) as hosts, ExitStack() as stack:
            cell = cls(directory, hosts)
            cell._plan_zones(program, settings or {})
            cell._plan_others(stack)
            stack.callback(cell._end)
            stack.enter_context(hosts.entered(CLIENTS))
            for member in cell.members:
                member.launch()
            cell.wait_until_ready()
            cell._wait_for_journals(len(ZONES))
            yield cell

    def in_zone(self, zone: str) -> list[Member]:
        """Return the processes of a zone."""
        return [member for member in self.members if member.host == zone]

    def cut_off(self, zone: str) -> None:
        """Let nothing go between a zone and the rest, and tell nobody."""
        for other in self.hosts.names:
            if other != zone:
                self.hosts.cut(zone, other)

    def kill(self, zone: str) -> None:
        """End everything in a zone at once, as a power cut does: nobody there says goodbye."""
        self.cut_off(zone)
        for member in self.in_zone(zone):
            member.kill9()

    def _plan_zones(self, program: Path, settings: Mapping[str, object]) -> None:
        metadata = ",".join(f"{self.hosts.address(zone)}:{PORTS['metadata']}" for zone in ZONES)
        for zone, etcd in zip(ZONES, self._etcd, strict=True):
            command = etcd_command(
                program, etcd, self._etcd, heartbeat_ms=HEARTBEAT_MS, election_ms=ELECTION_MS
            )
            self._add(etcd.name, "etcd", zone, command, (etcd.host, ETCD_PORTS[0], "/health"))
        for number, zone in enumerate(ZONES, 1):
            first = [
                self._etcd[number - 1],
                *(one for one in self._etcd if one.host != self.hosts.address(zone)),
            ]
            for role in ROLES:
                name = f"{role}-{number}"
                endpoints = ",".join(member.endpoint for member in first)
                more = {**settings, **self._settings_of(role, zone)}
                self._add_role(
                    name, role, zone, self.directory / name, metadata, etcd_endpoints=endpoints, **more
                )

    def _settings_of(self, role: Role, zone: str) -> Mapping[str, object]:
        """Return settings that a subclass gives a process."""
        return {}

    def _plan_others(self, stack: ExitStack) -> None:
        """Plan more processes, in a subclass."""
