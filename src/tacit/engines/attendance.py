"""Who answers usably: a site that fails again and again is left out for a while, by name.

A site that is late costs everybody the deadline, in every round; one that announces an answer and
never sends it does, too. After three failures in a row it is not asked for ten rounds, then for
twenty, and so on. Who is not connected, or refuses in words, costs nothing and is asked again.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from tacit.core import ClientId

MISSES = 3  # failures in a row before a site is left out
PAUSE = 10  # rounds for which it is left out, the first time


@dataclass
class Attendance:
    """Failures of each site in a row, by what was asked, and until which round it is left out."""

    _misses: Counter[tuple[ClientId, str]] = field(default_factory=Counter)
    _pauses: Counter[ClientId] = field(default_factory=Counter)
    _until: dict[ClientId, int] = field(default_factory=dict)

    def left_out(self, client: ClientId, round: int) -> str:
        """Return why a site is not asked in a round; nothing if it is."""
        until = self._until.get(client, 0)
        if round >= until:
            return ""
        return f"left out until round {until + 1}: {MISSES} answers in a row could not be used"

    def answered(self, client: ClientId, kind: str) -> None:
        """Note an answer that could be used."""
        self._misses[client, kind] = 0

    def missed(self, client: ClientId, kind: str, round: int) -> None:
        """Note that there was none, or one that could not be used."""
        self._misses[client, kind] += 1
        if self._misses[client, kind] >= MISSES:
            self._until[client] = round + 1 + PAUSE * 2 ** self._pauses[client]
            self._pauses[client] += 1
            self._misses[client, kind] = 0
