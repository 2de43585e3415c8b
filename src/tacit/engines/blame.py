"""Whose reply breaks a method's own code at the server: found by leaving out one after another.

A reply can be all that its task promises and still be what the method's code cannot work with. The
step is then done again with the replies that are here already: first without one site's, then
without another's, then without two. Nobody is asked again for that.
"""

from __future__ import annotations

import hashlib
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, combinations, islice
from pathlib import Path

from tacit.core import ClientId, TacitError, TooFewReplies
from tacit.engines.messages import Head, plain_words
from tacit.engines.server import Results

TRIALS = 64  # ways of leaving out that are tried


class MethodFailed(TacitError):
    """A method's own code at the server failed, and no site's reply explains it."""


def told(error: Exception) -> TacitError:
    """Return an error in one line: what it was and where, in a method's code."""
    if isinstance(error, TacitError):
        return error
    place = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{Path(place.filename).name}, line {place.lineno}"
    words = plain_words(f"{type(error).__name__}: {error}")
    return MethodFailed(
        f"the method's code at the server failed ({words}; {where}); the last checkpoint is kept"
    )


@dataclass
class Step:
    """The exchanges of one step of a method, and who is left out of which."""

    names: Mapping[ClientId, str]
    done: list[tuple[bytes, Results]] = field(default_factory=list)  # under their digests
    at: int = 0  # the exchange that comes next
    round: int = 0  # of the last of them
    error: Exception | None = None  # the first in the exchange that is looked into
    _failing: int = -1  # that exchange
    _suspects: Iterator[Sequence[ClientId]] = field(default_factory=lambda: iter(()))
    _left_out: dict[int, Sequence[ClientId]] = field(default_factory=dict)
    _why: dict[int, str] = field(default_factory=dict)

    def again(self, call: bytes, heads: Sequence[Head]) -> Results | None:
        """Return what came back before, without who is left out; None: this was not asked yet."""
        if self.at == len(self.done):
            return None
        known, (got, failed) = self.done[self.at]
        if known != _digest(call, heads):  # as with noise of the server's that is drawn anew
            raise MethodFailed("this step of the method cannot be done again")
        out = {i: f"{self.names[i]}: {self._why[self.at]}" for i in self._left_out.get(self.at, ())}
        self.at += 1
        return {i: blob for i, blob in got.items() if i not in out}, failed | out

    def note(self, call: bytes, heads: Sequence[Head], results: Results) -> Results:
        """Remember what came back; blobs of the copy that is returned may be taken out."""
        self.done.append((_digest(call, heads), results))
        self.at += 1
        self.round = max([self.round, *(h.round for h in heads)])
        return dict(results[0]), dict(results[1])

    def blamed(self) -> set[ClientId]:
        """Return whose replies could not be used."""
        return {i for out in self._left_out.values() for i in out}

    def answered(self) -> set[ClientId]:
        """Return whose replies came."""
        return {i for _, (got, _) in self.done for i in got}

    def fail(self, error: Exception) -> None:
        """Choose whom to leave out next, from the start of the step; or give up with the error."""
        here, self.at = self.at - 1, 0
        if isinstance(error, TooFewReplies) and self._failing < 0:
            raise error  # who answers is not the method's affair
        if here > self._failing:  # who was left out of an exchange before stays so
            self._failing, self.error = here, error
            self._suspects = _ways(sorted(self.done[here][1][0]))
            self._why[here] = f"message: the method cannot use it ({type(error).__name__})"
        out = next(self._suspects, None) if here == self._failing >= 0 else None
        if out is None:
            first = self.error or error
            raise told(first) from first
        self._left_out[here] = out


def _ways(clients: Sequence[ClientId]) -> Iterator[Sequence[ClientId]]:
    """Yield who may be to blame: each alone, then each two."""
    return islice(chain(combinations(clients, 1), combinations(clients, 2)), TRIALS)


def _digest(call: bytes, heads: Sequence[Head]) -> bytes:
    asked = repr([(h.client, h.ask, h.round) for h in heads]).encode()
    return hashlib.blake2b(call, key=hashlib.blake2b(asked).digest()).digest()
