"""Private moments.

Of each class the count, the mean and the covariance of public features, released once.

With F_i the features of a record, of norm at most 1, and mu from (eps, delta), mu1^2 + mu2^2 =
mu^2:
    q = [sum F_i ; s n] + noise sqrt(1 + s^2)/mu1,   m = first part of q over n~ = last of q / s
    M = sum d_i d_i^T + symmetric noise, d_i = F_i - m clipped to R: diagonal R^2/mu2, the rest
        R^2/(mu2 sqrt 2)
Where a class of photographs and of their mirror images is the same, features that change their sign
in the mirror have mean 0 and no covariance with the others (see :func:`halves`): these are known
without a release, and the bound and the noise of M are those of the two halves.
All else is post-processing. Related: CCVR (Luo et al. 2021), FedPFT (Beitollahi et al. 2024),
DP-MERF (Harder et al. 2021).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from tacit.core import Array, BadInput, Client, ClientId, Params, Release, check
from tacit.core.data import LocalData
from tacit.privacy.gdp import gdp_mu
from tacit.privacy.mechanisms import clip_rows
from tacit.privacy.rules import Noised
from tacit.synthesis.features import SCALE, Dct, Encoder
from tacit.synthesis.labels import held

CHUNK = 1000  # records encoded at a time
# the two releases, as the ledger names them
MEANS = "moments: means"
COVARIANCES = "moments: covariances"
ODD = "odd"  # beside them: which features are odd in the mirror, if classes are taken to be alike
Half = Tensor | slice  # the places of some features


@dataclass(frozen=True)
class Terms:
    """The public constants of a release."""

    mu: float  # of the whole release, in Gaussian differential privacy
    share: float = 0.2  # of mu^2 that goes to counts and means
    s: float = 0.5  # weight of a record's count beside its features
    R: float = 0.5  # bound on a record's distance from its class mean

    @property
    def mu1(self) -> float:
        """The part of counts and means."""
        return self.mu * math.sqrt(self.share)

    @property
    def mu2(self) -> float:
        """The part of covariances."""
        return self.mu * math.sqrt(1 - self.share)

    @property
    def means(self) -> Noised:
        """The rule of counts and means: a record's row has norm sqrt(1 + s^2) at most."""
        return Noised(MEANS, math.sqrt(1 + self.s**2), 1 / self.mu1)

    @property
    def covariances(self) -> Noised:
        """The rule of covariances: a record moves them by R^2 at most."""
        return Noised(COVARIANCES, self.R**2, 1 / self.mu2)

    def lines(self, owner: ClientId, n: int, times: int) -> list[Release]:
        """Return the ledger lines of a client's releases, which are :func:`release`."""
        return self.means.lines(owner, n, times) + self.covariances.lines(owner, n, times)

    @property
    def sd_sums(self) -> float:
        """The noise on each entry of q."""
        return math.sqrt(1 + self.s**2) / self.mu1

    @property
    def sd_scatter(self) -> float:
        """The noise on each entry of the diagonal of M."""
        return self.R**2 / self.mu2


def release(
    me: Client,
    F: Tensor,
    y: Tensor,
    classes: int,
    terms: Terms,
    *,
    shared: bool = False,
    odd: Tensor | None = None,
) -> Params:
    """Release the moments of records: ``q`` (classes, k + 1) and ``M`` (classes, k (k + 1) / 2).

    With mirrored classes they are of the features that are even in the mirror, and of both halves.

    Args:
        me: the client
        F: features, a row for each record
        y: labels
        classes: how many there are
        terms: the public constants
        shared: one M for all classes together, each record centred at its own class
        odd: which features are odd in the mirror, where classes are taken to be mirrored

    Guarantee: every class is released, so also which ones a client holds is hidden. A record is in
    one class, and its row (F_i, s) has norm at most sqrt(1 + s^2) after clipping: that is how far
    zeroing it out moves q. M is centred at means that are known from q; the record moves it
    by d d^T, whose Frobenius norm is |d|^2 <= R^2. In :func:`pack` the Euclidean norm is the
    Frobenius norm, so Gaussian noise of R^2/mu2 on its entries is all it takes. Of two halves
    e and o of d, M has e e^T and o o^T alone, of norm sqrt(|e|^4 + |o|^4), which is bounded in the
    place of |d|^2. A record whose features are not finite counts for nothing. Sums are in double
    precision: their rounding is far below the hair by which rows are clipped below the bound.
    """
    F, y = usable(F, y)
    parts = halves(odd)
    q = sums(me, F[:, parts[0]], y, classes, terms)
    _, m = counts_and_means(q, terms)
    m = _placed(m, parts, F.shape[1])
    M = scatters(me, F, y, m, terms, shared=shared, odd=odd)
    public = {} if odd is None else {ODD: odd.float()}
    return Params(q=q, M=M, **public).as_released()


def usable(F: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return features in double precision, of norm at most 1, and labels; what is not finite goes.

    Whether a record stays, and as what, depends on itself alone.
    """
    whole = F.isfinite().all(1)
    return clip_rows(F[whole].double(), 1.0), y[whole]


def sums(me: Client, F: Tensor, y: Tensor, classes: int, terms: Terms) -> Tensor:
    """Release q, (classes, k + 1), of features of norm at most 1: see :func:`release`."""
    rows = torch.cat([F, F.new_full((len(F), 1), terms.s)], 1)
    found = rows.new_zeros(classes, rows.shape[1]).index_add_(0, y, rows)
    return terms.means.send(me, Params(q=found))["q"].float()


def scatters(
    me: Client,
    F: Tensor,
    y: Tensor,
    m: Tensor,
    terms: Terms,
    *,
    shared: bool = False,
    odd: Tensor | None = None,
) -> Tensor:
    """Release M, (classes, k (k + 1) / 2), centred at public points m, one for each class.

    See :func:`release`; with ``shared`` it is one row, of all classes together.
    """
    parts = halves(odd)
    d = clip_halves(F - m.double()[y], parts, terms.R)
    groups = [d] if shared else [d[y == c] for c in range(len(m))]
    M = torch.stack([torch.cat([pack(g[:, h].T @ g[:, h]) for h in parts]) for g in groups])
    return terms.covariances.send(me, Params(M=M))["M"].float()


def halves(odd: Tensor | None) -> list[Half]:
    """Return the places of features whose moments are released: all, or even and odd ones.

    An even feature says the same of an image and of its mirror image, an odd one the opposite. If a
    class has both alike, an odd feature has mean 0 and no covariance with an even one.
    """
    return [slice(None)] if odd is None else list(even_and_odd(odd))


def even_and_odd(odd: Tensor) -> tuple[Tensor, Tensor]:
    """Return the places of even and of odd features."""
    return torch.nonzero(~odd)[:, 0], torch.nonzero(odd)[:, 0]


def clip_halves(d: Tensor, parts: Sequence[Half], R: float) -> Tensor:
    """Return rows of which the sum of d d^T over the halves has a Frobenius norm of at most R^2.

    Two halves are stretched first, so that a row of norm R with halves of one size just fits.
    """
    if len(parts) == 1:
        return clip_rows(d, R)
    d = d * len(parts) ** 0.25
    squares = torch.stack([d[:, h].square().sum(1) for h in parts], 1)
    size = torch.linalg.vector_norm(squares, dim=1).sqrt()[:, None]
    return d * torch.where(size > 0, clip_rows(size, R) / size, 0.0)


def _placed(m: Tensor, parts: Sequence[Half], k: int) -> Tensor:
    """Return means of all k features: those of odd ones are 0."""
    if len(parts) == 1:
        return m
    full = m.new_zeros(len(m), k)
    full[:, parts[0]] = m
    return full


def counts_and_means(q: Tensor, terms: Terms) -> tuple[Tensor, Tensor]:
    """Return n~ and m of each class.

    A mean is drawn towards zero as far as its noise asks for (James, Stein 1961).
    """
    sums = q[:, :-1]
    n = q[:, -1] / terms.s
    signal = (1 - sums.shape[1] * terms.sd_sums**2 / sums.square().sum(1)).clamp_min(0)
    m = sums * (signal / n.clamp_min(1.0))[:, None]
    return n, m / m.norm(dim=1, keepdim=True).clamp_min(1.0)


def pack(M: Tensor) -> Tensor:
    """Return the upper triangle of a symmetric matrix, off-diagonal entries times sqrt 2.

    Norms stay what they are.
    """
    i, j = torch.triu_indices(*M.shape)
    return M[i, j] * torch.where(i == j, 1.0, math.sqrt(2)).to(M)


def unpack(v: Tensor) -> Tensor:
    """Return the symmetric matrix that :func:`pack` took apart."""
    k = (math.isqrt(8 * len(v) + 1) - 1) // 2
    i, j = torch.triu_indices(k, k)
    M = v.new_zeros(k, k)
    M[i, j] = M[j, i] = v / torch.where(i == j, 1.0, math.sqrt(2)).to(v)
    return M


@dataclass(frozen=True)
class Gaussians:
    """A Gaussian for each class, in the space of the features."""

    n: Tensor  # (classes,) noisy counts
    m: Tensor  # (classes, k) means
    S: Tensor  # (classes, k, k) covariances

    def draw(self, labels: Tensor, rng: np.random.Generator) -> Tensor:
        """Return features for labels."""
        out = self.m[labels]
        for c in sorted(set(labels.tolist())):
            values, vectors = torch.linalg.eigh(self.S[c])
            rows = labels == c
            z = torch.from_numpy(rng.standard_normal((int(rows.sum()), len(values)))).to(out)
            out[rows] += z * values.clamp_min(0).sqrt() @ vectors.T
        return out


def pooled(
    replies: Sequence[Params], terms: Terms, *, mix: float, ridge: float, ordered: bool = False
) -> Gaussians:
    """Return the Gaussians that many clients' releases amount to.

    Post-processing, so nothing is paid for it.

    Each class takes the clients whose noisy counts say that they have enough of it
    (:func:`holders`). Covariances lose their noise (:func:`denoised`) and are mixed with the one of
    all classes; what the noise of a mean adds to the doubt about a record is added, too, so a class
    that nobody holds is never likely. Means that differ between clients are not counted as spread.
    ``ordered``: features are sorted, and too little signal keeps the first only.
    """
    known = [counts_and_means(r["q"].double(), terms)[0] for r in replies]
    # (clients, classes) of ones and zeros
    use = torch.stack([holders(n) for n in torch.stack(known, 1)], 1)
    q = sum_of(use, [r["q"].double() for r in replies])
    n = (q[:, -1] / terms.s).clamp_min(1.0)
    parts = use.sum(0)
    odd = _agreed_odd(replies)
    k = q.shape[1] - 1 if odd is None else len(odd)
    m = _placed(q[:, :-1] / n[:, None], halves(odd), k)
    if ordered:
        k = min(k, max(32, int(2 * terms.mu * (n / parts.sqrt()).median())))
    m = m[:, :k]
    m = m / m.norm(dim=1, keepdim=True).clamp_min(1.0)
    M = [r["M"].double() for r in replies]
    clean = partial(_denoised_halves, odd=odd, k=k, terms=terms, ridge=ridge)
    if len(M[0]) == 1:  # one for all classes: everybody's
        whole = torch.stack(M).sum((0, 1))
        S = clean(whole, torch.stack(known).sum(), len(M)).expand(len(n), k, k)
    else:
        A = sum_of(use, M)
        own = torch.stack([clean(A[c], n[c], parts[c]) for c in range(len(n))])
        S = (1 - mix) * own + mix * clean(A.sum(0), n.sum(), parts.sum())
    doubt = ridge * parts * (terms.sd_sums / n) ** 2
    return Gaussians(n, m, S + doubt[:, None, None] * torch.eye(k))


def _agreed_odd(replies: Sequence[Params]) -> Tensor | None:
    """Return which features are odd in the mirror, as all clients say; None: classes are not."""
    told = [r.get(ODD) for r in replies]
    first = told[0]
    if first is None and all(each is None for each in told):
        return None
    width = replies[0]["q"].shape[1] - 1
    if first is None or not all(each is not None and torch.equal(each, first) for each in told):
        raise BadInput("moments: clients do not agree on which features are odd in the mirror")
    if first.dim() != 1 or int((first == 0).sum()) != width:
        raise BadInput(f"moments: {width} means, and other features that are even in the mirror")
    return first != 0


def _denoised_halves(
    packed: Tensor,
    n: Tensor,
    parts: Tensor | int,
    *,
    odd: Tensor | None,
    k: int,
    terms: Terms,
    ridge: float,
) -> Tensor:
    """Return the covariance of the first k features, of each half by itself (:func:`denoised`)."""
    if odd is None:
        return denoised(unpack(packed)[:k, :k], n, parts, terms, ridge)
    seen = replace(terms, R=terms.R / 2**0.25)  # before records were stretched
    found, at = packed.new_zeros(k, k), 0
    for half in even_and_odd(odd):
        size = len(half) * (len(half) + 1) // 2
        kept = half[half < k]
        M = unpack(packed[at : at + size])[: len(kept), : len(kept)] / math.sqrt(2)
        found[kept[:, None], kept] = denoised(M, n, parts, seen, ridge)
        at += size
    return found


def sum_of(use: Tensor, values: Sequence[Tensor]) -> Tensor:
    """Return for each class the sum of the clients' values that it uses."""
    return torch.stack([u[:, None] * v for u, v in zip(use, values, strict=True)]).sum(0)


def holders(n: Tensor) -> Tensor:
    """Return ones for clients whose records of a class are worth their noise, by noisy counts.

    A sum over j clients has j times the noise's variance: the largest counts are taken as long as
    signal over noise, their sum over sqrt j, grows.

    >>> holders(torch.tensor([5.0, 600.0, -8.0, 580.0]))
    tensor([0., 1., 0., 1.], dtype=torch.float64)
    """
    order = n.argsort(descending=True, stable=True)
    worth = n[order].cumsum(0) / torch.arange(1, len(n) + 1).sqrt()
    use = torch.zeros(len(n), dtype=torch.float64)
    use[order[: int(worth.argmax()) + 1]] = 1.0
    return use


def denoised(M: Tensor, n: Tensor, parts: Tensor | int, terms: Terms, ridge: float) -> Tensor:
    """Return the covariance of n records, given the sum of some clients' M.

    The eigenvalues of symmetric noise end at an edge, sd sqrt(2 k). One of the signal, t, is seen
    at t + edge^2/(4 t) with an eigenvector that is partly noise: sqrt(seen^2 - edge^2) is the best
    weight for it in the Frobenius norm (Benaych-Georges, Nadakuditi 2011). The rest of the trace is
    spread evenly, times ``ridge``.
    """
    k = len(M)
    n = n.clamp_min(1.0)
    edge = terms.sd_scatter * (2 * k * parts) ** 0.5 / n
    values, vectors = torch.linalg.eigh(M / n)
    kept = torch.where(values > edge, (values.square() - edge**2).clamp_min(0).sqrt(), 0.0)
    rest = ((values.sum() - kept.sum()) / k).clamp_min(1e-9)
    found: Tensor = (vectors * kept) @ vectors.T + ridge * rest * torch.eye(k)
    return found


class Scaled(Protocol):
    """How inputs were normalised for a network, such as a client's data."""

    @property
    def mean(self) -> tuple[float, ...]: ...
    @property
    def std(self) -> tuple[float, ...]: ...
    @property
    def features(self) -> str: ...


def plain(inputs: Tensor, data: Scaled) -> Tensor:
    """Return inputs as they were before they were normalised for a network.

    Images in 0..1, public features in their own size, others as they are.
    """
    if data.features:
        return inputs / SCALE
    if inputs.dim() != 4:
        return inputs
    mean, std = (
        torch.tensor(v, device=inputs.device).view(-1, 1, 1) for v in (data.mean, data.std)
    )
    return inputs * std + mean


def encoded(data: LocalData, encode: Encoder) -> tuple[Tensor, Tensor]:
    """Return the features and labels of a client's data."""
    parts = [
        data.batch(slice(start, start + CHUNK)) for start in range(0, max(len(data), 1), CHUNK)
    ]
    return torch.cat([encode(plain(x, data)) for x, _ in parts]).cpu(), torch.cat(
        [y for _, y in parts]
    ).cpu()


@dataclass(frozen=True)
class Moments:
    """A generator from moments: of the cosine transform of images, or of features as they are."""

    frequencies: int = 16  # frequencies of the cosine transform, in each direction
    # bound on the size of an example: its norm over the square root of its length
    bound: float = 0.4
    share: float = 0.1  # share of the budget for counts and means
    s: float = 0.5  # weight of a record's count
    R: float = 0.5  # bound on the distance from the mean, in units of the bound

    def __post_init__(self) -> None:
        check.number("frequencies", self.frequencies, at_least=1, whole=True)
        check.clip("bound", self.bound)
        check.number("share", self.share, above=0, below=1)
        check.clip("s", self.s)
        check.clip("R", self.R)

    def terms(self, epsilon: float, delta: float) -> Terms:
        """Return the constants of a release that costs (epsilon, delta)."""
        return Terms(gdp_mu(epsilon, delta), self.share, self.s, self.R)

    def fit(self, me: Client, *, classes: int, epsilon: float, delta: float) -> Fitted:
        """Fit a client's data privately: the two releases are in its ledger."""
        like = me.data.examples.x[:0]
        terms = self.terms(epsilon, delta)
        code = Code(
            tuple(like.shape[1:]),
            like.dtype == torch.uint8,
            self.frequencies,
            self.bound,
            features=bool(me.data.features),
        )
        F, y = encoded(me.data, code.encode)
        found = pooled([release(me, F, y, classes, terms)], terms, mix=0.0, ridge=0.0)
        return Fitted(found, code, terms.sd_sums / terms.s)


class Code:
    """Examples as points of about unit norm, and back."""

    def __init__(
        self,
        shape: tuple[int, ...],
        bytes_: bool,
        frequencies: int,
        bound: float,
        *,
        features: bool = False,
    ) -> None:
        self.shape = shape
        self.bytes = bytes_
        self.dct = Dct(shape, frequencies) if len(shape) == 3 else None
        # public features have norm 1 as it is, and are stored as inputs of a network
        self.scale = 1.0 if features else bound * math.sqrt(math.prod(shape))
        self.stored = SCALE if features else 1.0

    def encode(self, x: Tensor) -> Tensor:
        """Return points for examples."""
        return (self.dct(x) if self.dct else x.flatten(1)) / self.scale

    def decode(self, points: Tensor) -> Tensor:
        """Return examples for points, in the data's own kind."""
        if self.dct is None:
            return (points * self.scale * self.stored).view(-1, *self.shape)
        x = self.dct.inverse(points * self.scale).clamp(0, 1)
        return (255 * x).round().to(torch.uint8) if self.bytes else x


@dataclass(frozen=True)
class Fitted:
    """What was released about one client, as a source of examples."""

    gaussians: Gaussians
    code: Code
    sd: float  # of the noise on counts

    @property
    def counts(self) -> Array:
        """The released class counts, without those that are only noise."""
        return held(self.gaussians.n.double().numpy(), self.sd)

    def draw(self, labels: Tensor, rng: np.random.Generator) -> Tensor:
        """Return one example for each label."""
        return self.code.decode(self.gaussians.draw(labels, rng).float())
