"""A data set divided over clients, and one client's part of it as batches that a network takes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.core import BadInput, ClientId, PartOfTests, seed_for
from tacit.core.data import Examples as AnyExamples
from tacit.core.data import IntArray, Rows
from tacit.data.examples import Dataset, Examples, Owners, Pool, picked, union
from tacit.data.places import Keys, keys, places
from tacit.data.splits import SPLITS, Split, is_own_split, owner_column, split

LAID_OUT = 1 << 18  # numbers of batches that are made ready at a time
TWICE = 1 << 30  # bytes of data that may be held a second time, client by client
WITHOUT_CLASSES = ("iid", "quantity", "feature-noise")  # schemes that look at no class


@dataclass(frozen=True)
class LocalData:
    """Some rows of a data set, as one client holds them; none is copied before a batch is taken."""

    source: Examples
    rows: IntArray
    mean: tuple[float, ...]
    std: tuple[float, ...]
    relabel: tuple[int, ...] | None = None
    noise: float = 0.0  # standard deviation, on pixels scaled to 0..1
    noise_seed: int = 0
    # own data: what each row's noise derives from, so that it depends on no other row
    noise_keys: Keys | None = None
    device: str = "cpu"
    features: str = ""  # the public features that inputs are, by name; empty: inputs as given
    extra: Examples | None = None  # released examples that follow these rows
    public: bool = False  # nothing here is anybody's secret: what is made of it may go anywhere

    def __len__(self) -> int:
        return len(self.rows) + (len(self.extra) if self.extra else 0)

    def joined(self, pool: Pool | None) -> LocalData:
        """Return these data with a pool added, or with a pool in their place."""
        if pool is None:
            return self
        if pool.instead:
            return replace(self, rows=self.rows[:0], extra=pool.examples, public=True)
        return replace(self, extra=pool.examples)

    def only(self, rows: IntArray) -> LocalData:
        """Return some of the client's own rows of the source."""
        return replace(self, rows=rows)

    def holding(self, source: AnyExamples, rows: IntArray) -> LocalData:
        """Return rows of other examples, with labels as they are, treated as this client's."""
        other = Examples(source.x, source.y)
        return replace(self, source=other, rows=rows, relabel=None, noise=0.0, extra=None)

    def showing(self, inputs: Tensor) -> LocalData:
        """Return other inputs, without labels, as this client's network takes them."""
        unlabelled = Examples(inputs, torch.zeros(len(inputs), dtype=torch.int64))
        return self.holding(unlabelled, np.arange(len(inputs)))

    @cached_property
    def examples(self) -> Examples:
        """These rows, copied out of the shared source, with the labels this client uses."""
        rows, n = self.rows, len(self.rows)
        together = n > 0 and bool((np.diff(rows) == 1).all())
        own = (
            self.source.between(int(rows[0]), int(rows[0]) + n)
            if together
            else self.source.take(torch.from_numpy(rows))
        )
        own = own if self.relabel is None else Examples(own.x, torch.tensor(self.relabel)[own.y])
        return own.plus(self.extra) if self.extra else own

    @cached_property
    def _noise(self) -> Tensor | None:
        if self.noise == 0.0:
            return None
        noise = torch.zeros(self.examples.x.shape)
        noise[: len(self.rows)] = self.noise * self._standard_normal(noise.shape[1:])
        return noise

    def _standard_normal(self, shape: torch.Size) -> Tensor:
        """Return noise for these rows: of one stream for all, or of a stream for each."""
        n = len(self.rows)
        if self.noise_keys is None:
            generator = torch.Generator().manual_seed(self.noise_seed)
            return torch.randn(n, *shape, generator=generator)
        streams = (np.random.default_rng(int(key)) for key in self.noise_keys[:n])
        drawn = [stream.standard_normal(shape, np.float32) for stream in streams]
        return torch.from_numpy(np.array(drawn, np.float32).reshape(n, *shape))

    @property
    def seen(self) -> Tensor:
        """The inputs as tasks see them, with noise, but in the units of the source."""
        x = self.examples.x
        if self._noise is None:
            return x
        return x.float() + self._noise * (255.0 if x.dtype == torch.uint8 else 1.0)

    @cached_property
    def _scale(self) -> tuple[Tensor, Tensor]:
        mean, std = (torch.tensor(v).view(-1, 1, 1) for v in (self.mean, self.std))
        return 1 / std, mean / std

    def batch(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """Return inputs (float, normalised, channels-last) and labels of some of these rows."""
        at: Any = rows if isinstance(rows, slice) else torch.as_tensor(rows)
        x, y = picked(self.examples.x, at), picked(self.examples.y, at)
        if x.dtype == torch.uint8:
            x = x.float().div_(255.0)
        if self._noise is not None:
            x = x + picked(self._noise, at)
        if x.dim() == 4:
            factor, shift = self._scale
            # x may be a view of the source
            x = x.mul(factor).sub_(shift).contiguous(memory_format=torch.channels_last)
        return x.to(self.device), y.to(self.device)

    def batches(self, each: Iterable[IntArray]) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield one batch for each of several lists of rows.

        Some are laid out at a time, with fewer calls than one by one.
        """
        lists = iter(each)
        rows = LAID_OUT // max(1, self.source.x[:1].numel())
        while some := list(_as_many(lists, rows)):
            x, y = self.batch(np.concatenate(some))
            sizes = [len(rows) for rows in some]
            yield from zip(torch.split(x, sizes), torch.split(y, sizes), strict=True)


def _as_many(lists: Iterator[IntArray], rows: int) -> Iterator[IntArray]:
    """Yield the next lists until they have so many rows together."""
    for one in lists:
        yield one
        rows -= len(one)
        if rows <= 0:
            return


@dataclass(frozen=True)
class Federation:
    """Who holds which rows of a data set."""

    dataset: Dataset
    split: Split
    seed: int = 0
    # of clients that see inputs with noise of their own: features of their tests, row by row
    own_tests: Examples | None = None

    @cached_property
    def everyone(self) -> tuple[ClientId, ...]:
        """The clients' names: numbers, padded so that they sort."""
        width = len(str(len(self.split.train) - 1))
        return tuple(f"{i:0{width}d}" for i in range(len(self.split.train)))

    def train(self, client: ClientId, device: str = "cpu") -> LocalData:
        """Return a client's training data."""
        rows = self.split.train[int(client)]
        own = self._local(self.dataset.train, rows, client, "train", device)
        if self._in_turn is None:
            return own
        source, begins = self._in_turn
        first = int(begins[int(client)])
        return replace(own, source=source, rows=np.arange(first, first + len(rows)))

    @cached_property
    def _in_turn(self) -> tuple[Examples, IntArray] | None:
        """The training examples, one client's after the other's, and where each one's begin.

        What lies together is copied at once, and clients take theirs in each round.
        None where all data a second time would be too much.
        """
        if self.dataset.train.x.nbytes > TWICE:
            return None
        rows = np.concatenate(self.split.train)
        begins = np.cumsum([0, *(len(part) for part in self.split.train)])
        if np.array_equal(rows, np.arange(len(self.dataset.train))):  # they lie so already
            return self.dataset.train, begins
        return self.dataset.train.take(torch.from_numpy(rows)), begins

    def lay_out(self) -> None:
        """Put each client's examples together, before processes come to share them."""
        _ = self._in_turn

    def test(self, client: ClientId, device: str = "cpu") -> LocalData:
        """Return a client's own test data.

        The name of a :class:`tacit.core.PartOfTests` is one of everybody's.
        """
        whole = PartOfTests.read(client)
        if whole is None:
            source = self.own_tests or self.dataset.test
            return self._local(source, self.split.test[int(client)], client, "test", device)
        rows = np.array_split(np.arange(len(self.dataset.test)), whole.of)[whole.part]
        return self.without_noise(self.dataset.test, rows, device)

    def without_noise(self, source: Examples, rows: IntArray, device: str = "cpu") -> LocalData:
        """Return rows as they are, in nobody's hands."""
        d = self.dataset
        return LocalData(source, rows, d.mean, d.std, device=device, features=d.features)

    def _local(
        self, source: Examples, rows: IntArray, client: ClientId, use: str, device: str
    ) -> LocalData:
        s, i = self.split, int(client)
        noisy = self._noise_keys.get(use)
        return LocalData(
            source,
            rows,
            self.dataset.mean,
            self.dataset.std,
            relabel=None if s.relabel is None else s.relabel[i],
            noise=0.0 if s.noise is None else s.noise[i],
            noise_seed=0 if s.noise is None else seed_for(self.seed, "feature-noise", use, client),
            noise_keys=None if noisy is None else noisy[rows],
            device=device,
            features=self.dataset.features,
        )

    @cached_property
    def _noise_keys(self) -> dict[str, Keys]:
        """What noise on own inputs derives from, record by record; nothing where there is none."""
        if self.split.noise is None or not self.dataset.own:
            return {}
        d = self.dataset
        return {
            use: keys(part, d.classes, seed=self.seed, use=f"feature-noise {use}")
            for use, part in (("train", d.train), ("test", d.test))
        }

    def sizes(self) -> dict[ClientId, int]:
        """Return how many training examples each client holds."""
        return {c: len(rows) for c, rows in zip(self.everyone, self.split.train, strict=True)}

    def counts(self) -> NDArray[np.int64]:
        """Return how many training examples of each class (column) each client (row) holds."""
        if self.dataset.goal != "classes":  # there is one kind of examples
            return np.array([[len(rows)] for rows in self.split.train], np.int64)
        y = self.dataset.train.y.numpy()
        return np.stack(
            [np.bincount(y[rows], minlength=len(self.dataset.classes)) for rows in self.split.train]
        )

    def public(self) -> Examples | None:
        """Return the training examples that the split leaves to everybody."""
        rows = self.split.public
        return None if rows is None else self.dataset.train.take(torch.from_numpy(rows))

    def pooled(self) -> Federation:
        """Return the same examples in the hands of a single client."""
        train, test = (
            np.sort(np.concatenate(rows)) for rows in (self.split.train, self.split.test)
        )
        return replace(self, split=Split(train=(train,), test=(test,)))


def per_client(parts: Mapping[str, Dataset]) -> Dataset:
    """Return the data sets of clients, by their names, as one: ``by:client`` divides it again."""
    if not parts:
        raise BadInput("data: no client has any: must have at least one")
    first_name, first = next(iter(parts.items()))
    for name, part in parts.items():
        for what in ("shape", "classes", "mean", "std", "schema"):
            mine, wanted = getattr(part, what), getattr(first, what)
            if mine != wanted:
                raise BadInput(
                    f"data of {name!r}: {what} {mine}: must be {wanted}, as of {first_name!r}"
                )
    train, test = (union([getattr(p, use) for p in parts.values()]) for use in ("train", "test"))
    of_train, of_test = (
        np.repeat(np.arange(len(parts)), [len(getattr(p, use)) for p in parts.values()])
        for use in ("train", "test")
    )
    own, inferred = (any(getattr(p, what) for p in parts.values()) for what in ("own", "inferred"))
    owners = Owners(tuple(parts), of_train, of_test)
    return replace(
        first,
        name="+".join(parts),
        train=train,
        test=test,
        own=own,
        inferred=inferred,
        owners=owners,
    )


def federate(dataset: Dataset, scheme: str, *, clients: int, seed: int) -> Federation:
    """Divide a data set over clients by a named scheme; own data record by record.

    ``file.py:function`` or ``module:function`` is a split of the user's own: a function of the data
    set, the number of clients and the seed that returns a :class:`Split`.
    """
    if is_own_split(scheme):
        made = SPLITS.own(scheme)(dataset, clients=clients, seed=seed)
        return Federation(dataset, checked(made, scheme, dataset, clients), seed)
    if column := owner_column(scheme):
        return Federation(dataset, _by_owner(dataset, column), seed)
    parts = {"train": dataset.train, "test": dataset.test}
    own = [
        places(part, dataset.classes, seed=seed, use=f"client of {use}")
        for use, part in parts.items()
        if dataset.own
    ]
    if dataset.goal != "classes" and scheme.partition(":")[0] not in WITHOUT_CLASSES:
        allowed = ", ".join(WITHOUT_CLASSES)
        raise BadInput(f"split = {scheme!r}: divides by class; for {dataset.goal}: {allowed}, by")
    train, test = (_kinds(dataset, part) for part in parts.values())
    divided = split(
        scheme,
        train,
        test,
        clients=clients,
        classes=len(dataset.classes) if dataset.goal == "classes" else 1,
        seed=seed,
        places=(own[0], own[1]) if own else None,
    )
    return Federation(dataset, divided, seed)


def _kinds(dataset: Dataset, part: Examples) -> IntArray:
    """Return the class of each record, all the same where there are no classes."""
    if dataset.goal != "classes":
        return np.zeros(len(part), np.int64)
    y: IntArray = part.y.numpy()
    return y


def _by_owner(dataset: Dataset, column: str) -> Split:
    """Give each record to the client that it says."""
    if dataset.owners is None:
        raise BadInput(f"split = 'by:{column}': {dataset.name} has no such column: must be a table")
    names, places = dataset.owners.names, np.arange(len(dataset.owners.names))
    train, test = (
        tuple(np.flatnonzero(of == i) for i in places)
        for of in (dataset.owners.train, dataset.owners.test)
    )
    empty = [name for name, rows in zip(names, train, strict=True) if not len(rows)]
    if empty:
        raise BadInput(
            f"split = 'by:{column}': {empty[0]!r} has no examples to train on (about a fifth are "
            "held out): must have more"
        )
    return Split(train, test)


def checked(made: object, scheme: str, dataset: Dataset, clients: int) -> Split:
    """Refuse what a user's own function returns, unless it divides the data among the clients."""
    if not isinstance(made, Split):
        raise BadInput(f"split = {scheme!r}: returns a {type(made).__name__}; must be a Split")
    for use, parts, size in (
        ("train", made.train, len(dataset.train)),
        ("test", made.test, len(dataset.test)),
    ):
        if len(parts) != clients:
            raise BadInput(f"split = {scheme!r}: {use} has {len(parts)} parts; must be {clients}")
        rows = np.concatenate([np.asarray(part, np.int64) for part in parts])
        if len(rows) and not (rows.min() >= 0 and rows.max() < size):
            raise BadInput(f"split = {scheme!r}: {use} rows must be from 0 to {size - 1}")
        if len(set(rows.tolist())) < len(rows):
            raise BadInput(f"split = {scheme!r}: a {use} row is given to two clients")
    empty = [i for i, part in enumerate(made.train) if not len(part)]
    if empty:
        raise BadInput(f"split = {scheme!r}: client {empty[0]} has no examples to train on")
    return made
