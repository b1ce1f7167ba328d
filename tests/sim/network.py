"""The simulated network: messages between named places, late, lost, twice, in another order, or in one direction only.

A connection keeps order unless the run says otherwise, as TCP does; what is sent into a cut is lost. When a process
ends, its peers hear that the connection closed, if anything can reach them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sim.kernel import MS, Kernel


@dataclass(slots=True)
class NetworkFaults:
    """How bad the network is, as drawn for a run. Chances are per message."""

    delay_us: tuple[int, int] = (100, 800)
    loss: float = 0.0
    duplication: float = 0.0
    reordering: float = 0.0
    """Chance that a message does not keep its place in the connection."""
    slow: float = 0.0
    """Chance of a message that takes much longer."""
    slow_us: int = 300 * MS


class Network:
    """Who can reach whom, and how long it takes. Receivers are callables by name.

    A connection brings nothing twice, so what arrives twice was sent twice: `again` says how the second is sent.
    """

    def __init__(
        self,
        kernel: Kernel,
        faults: NetworkFaults,
        again: Callable[[object], object] = lambda message: message,
    ) -> None:
        self.faults = faults
        self.sent = 0
        self.lost = 0
        self._again = again
        self._kernel = kernel
        self._random = kernel.random_for("network")
        self._receivers: dict[str, Callable[..., None]] = {}
        self._cuts: set[tuple[str, str]] = set()
        self._last_us: dict[tuple[str, str], int] = {}

    def connect(self, name: str, receive: Callable[..., None]) -> None:
        """Deliver what is sent to `name` to `receive(sender, message)`."""
        self._receivers[name] = receive

    def cut(self, sender: str, receiver: str) -> None:
        """Let nothing through in this direction."""
        self._cuts.add((sender, receiver))

    def heal(self) -> None:
        """Undo all cuts."""
        self._cuts.clear()

    def uncut(self, sender: str, receiver: str) -> None:
        """Let messages through again in this direction."""
        self._cuts.discard((sender, receiver))

    def reaches(self, sender: str, receiver: str) -> bool:
        """Return whether messages get through in this direction."""
        return (sender, receiver) not in self._cuts

    def send(self, sender: str, receiver: str, message: object) -> None:
        """Send a message; it may arrive, once or twice, some time."""
        self.sent += 1
        faults = self.faults
        random = self._random.random
        if (sender, receiver) in self._cuts or (faults.loss and random() < faults.loss):
            self.lost += 1
            return
        self._deliver_later(sender, receiver, message)
        if faults.duplication and random() < faults.duplication:
            self._deliver_later(sender, receiver, self._again(message))

    def _deliver_later(self, sender: str, receiver: str, message: object) -> None:
        faults = self.faults
        random = self._random.random
        low, high = faults.delay_us
        at_us = self._kernel.now_us + low + int(random() * (high - low))
        if faults.slow and random() < faults.slow:
            at_us += int(random() * faults.slow_us)
        if not (faults.reordering and random() < faults.reordering):
            link = sender, receiver
            last_us = self._last_us.get(link, 0)
            if at_us <= last_us:
                at_us = last_us + 1
            self._last_us[link] = at_us
        self._kernel.at(at_us, self._deliver, sender, receiver, message)

    def _deliver(self, sender: str, receiver: str, message: object) -> None:
        if (sender, receiver) in self._cuts:
            self.lost += 1
            return
        self._receivers[receiver](sender, message)
