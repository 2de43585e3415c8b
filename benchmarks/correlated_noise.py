"""Would noise that is correlated over rounds help where everybody is in every round?

    python benchmarks/correlated_noise.py

Noise C^-1 Z on T gradients costs what C's sensitivity says: with one contribution of norm 1 in each
round, the square is the largest tr(C'C G) over all correlation matrices G. The least error of sums
A x is then the largest trace norm of A G^(1/2): any C, banded or not, is covered. Independent noise
is C = 1, or any diagonal C: other shares of the budget for other rounds.
"""

from __future__ import annotations

import torch
from torch import Tensor


def best(A: Tensor, steps: int = 1500) -> float:
    """Return the least Frobenius error of A C^-1 over all C of sensitivity 1."""
    T = A.shape[1]
    L = (torch.eye(T) + 0.05).requires_grad_()
    optimizer = torch.optim.Adam([L], lr=0.02)
    found = 0.0
    for _ in range(steps):
        root = L / L.norm(dim=1, keepdim=True)  # G = root root'
        error = torch.linalg.svdvals(A @ root).sum()
        found = max(found, error.item())
        optimizer.zero_grad()
        (-error).backward()
        optimizer.step()
    return found


def main() -> None:
    """Print errors in units of the noise multiplier."""
    torch.set_default_dtype(torch.float64)
    print("rounds  all sums: equal shares  best shares  any C   last sum: equal shares  any C")
    for T in (10, 30, 100):
        equal = (T * (T + 1) / 2) ** 0.5
        shares = sum((T - t) ** 0.5 for t in range(T)) / T**0.5
        every = best(torch.tril(torch.ones(T, T))) / T**0.5
        last = best(torch.ones(1, T), 300)
        print(f"{T:6} {equal:23.2f} {shares:12.2f} {every:6.2f} {T:24.2f} {last:6.2f}")


if __name__ == "__main__":
    main()
