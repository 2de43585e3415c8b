"""privacy: epsilon from noise, noise from epsilon, and a method's whole cost before it runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from tacit import privacy
from tacit.cli.flags import parse
from tacit.core import BadInput
from tacit.privacy.claimed import clt_epsilon, moments_epsilon
from tacit.report.tables import aligned

HELP = """usage: tacit privacy [--epsilon E] [--z Z] [--q Q] [--steps T] [--delta D]
           leave one out: it is solved for
       tacit privacy METHOD [options of the method] [--paper] [--plot FILE.png]
           its whole cost, before it runs
       tacit privacy FILE.toml [options of the method]
           what the experiment in the file will cost
       tacit privacy FOLDER [--repair] [--page account.html]
           what a run or a site's store has spent, by run, unit and observer, and what is left

What is certified is zero-out: one record (or client) replaced by nothing, the size unchanged, as
sizes are public. For one replaced by another there is a line of its own. Epsilons are rounded up.

examples:
  tacit privacy --z 1.1 --q 0.00427 --steps 14062        epsilon of DP-SGD, by every accountant
  tacit privacy --epsilon 1 --q 0.0427 --steps 1172      the noise multiplier for epsilon 1
  tacit privacy --epsilon 8 --z 1 --q 0.01               how many steps that allows
  tacit privacy ldp_fl --data mnist --rounds 150         what LDP-FL will cost
  tacit privacy ldp_fl --rounds 150 --epsilon 4 --paper  what its paper claims, what it spends, why
  tacit privacy sites/hospital-a --repair                mend a damaged store; it never says less
"""


@dataclass(frozen=True)
class Figures:
    """Gaussian noise on sums of clipped contributions. Give all but one of epsilon, z, q, steps."""

    epsilon: float | None = None  # the epsilon to reach
    z: float | None = None  # noise multiplier: standard deviation over sensitivity
    q: float | None = None  # sampling rate; 1: everyone every time
    steps: int | None = None  # number of releases
    delta: float = 1e-5  # the delta of (epsilon, delta)
    # how the samples are drawn; fixed: of a fixed size
    law: Literal["poisson", "fixed"] = "poisson"
    plot: Path | None = None  # draw epsilon over steps


def privacy_command(args: Sequence[str]) -> None:
    """Answer a question about privacy."""
    if not args or args[0] in ("-h", "--help"):
        print(HELP, end="")
    elif args[0].startswith("-"):
        figures(
            parse(
                Figures,
                args,
                prog="tacit privacy",
                about="Leave one of epsilon, z, q and steps out.",
            )
        )
    elif Path(args[0]).is_dir():
        from tacit.cli.spent import spent_command

        spent_command(args)
    else:
        from tacit.cli.method_cost import (
            method_cost,  # a method needs torch and the data; figures do not
        )

        method_cost(args[0], args[1:])


def figures(f: Figures) -> None:
    """Solve for what was left out and show every accountant."""
    missing = [k for k in ("epsilon", "z", "q", "steps") if getattr(f, k) is None]
    if "q" in missing and len(missing) == 2:
        missing.remove("q")
        f = Figures(f.epsilon, f.z, 1.0, f.steps, f.delta, f.law, f.plot)
    if missing == [] or len(missing) > 1:
        raise BadInput(
            "privacy: give all but one of epsilon, z, q and steps (left out: "
            f"{', '.join(missing) or 'none'})"
        )
    z, q, steps = solved(f, missing[0])
    noise = privacy.rounded_up(z, 4)
    rate = privacy.rounded_down(q, 6)
    law = f.law if q < 1 else "everyone"
    print(f"noise multiplier z = {noise}, sampling rate q = {rate} ({law}), {steps:,} steps")
    print(accountants(z, q, steps, f.delta, f.law))
    if f.plot is not None:
        from tacit.report.pictures import draw_epsilon

        marks = sorted({max(1, round(steps * k / 30)) for k in range(1, 31)})
        curve = [(t, privacy.spend(z, t, q, delta=f.delta, law=f.law)) for t in marks]
        print(f"picture: {draw_epsilon({'certified': curve}, f.plot, 'steps')[0]}")


def solved(f: Figures, missing: str) -> tuple[float, float, int]:
    """Return z, q and steps, one of them solved for epsilon."""
    epsilon, z, q, steps = f.epsilon or 0.0, f.z or 0.0, f.q or 0.0, f.steps or 0
    if missing == "z":
        z = privacy.noise_for(epsilon, steps, q, delta=f.delta, law=f.law)
    if missing == "q":
        q = privacy.rate_for(epsilon, z, steps, delta=f.delta, law=f.law)
    if missing == "steps":
        steps = privacy.steps_for(epsilon, z, q, delta=f.delta, law=f.law)
    return z, q, steps


def accountants(z: float, q: float, steps: int, delta: float, law: str) -> str:
    """Return a table of what the accountants say.

    The first line certifies, the others are for comparison.
    """
    certify = partial(privacy.spent, z, steps, q, delta=delta, law=law)
    zeroed = certify()
    replaced = certify(relation="replace")
    how = f"one record zeroed out, delta {delta:g}: {zeroed.accountant}"
    rows = [
        ("certified", zeroed.epsilon, how),
        ("replace-one", replaced.epsilon, f"one record replaced: {replaced.accountant}"),
    ]
    if z > 0 and steps:
        rows += _others(z, q, steps, delta, law)
    table = [[word, privacy.show_epsilon(epsilon, digits=4)] for word, epsilon, _ in rows]
    return aligned([["accountant", "epsilon"], *table], ["remark", *(row[2] for row in rows)])


def _others(z: float, q: float, steps: int, delta: float, law: str) -> list[tuple[str, float, str]]:
    """Return what accountants say that do not certify."""
    half = z / 2 if law == "fixed" and q < 1 else z
    cross_check = privacy.rdp_spend(half, steps, q, delta=delta)
    rows = [("RDP", cross_check, "cross-check, an upper bound")]
    if q == 1 or steps < 10**6:
        moments = moments_epsilon(1 / z, steps, q, delta=delta)
        rows.append(("moments", moments, "as in LDP-FL's and CL-FL's papers; does not certify"))
    if q < 1:
        limit = clt_epsilon(z, steps, q, delta=delta)
        rows.append(("CLT-GDP", limit, "as in CUAG's paper; a limit, does not certify"))
    return rows
