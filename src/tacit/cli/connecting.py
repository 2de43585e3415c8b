"""What `tacit serve` and `tacit join` have in common: Flower, TLS, and what a terminal shows."""

from __future__ import annotations

import importlib.util
import ipaddress
import logging
from pathlib import Path

from tacit.core import BadInput


def needs_flower() -> None:
    """Say what to install where Flower is missing."""
    if importlib.util.find_spec("flwr") is None:  # importing it takes seconds
        raise BadInput("flwr: not installed; `pip install 'tacit[flower]'`")


def check_network(insecure: bool, host: str, keys: dict[str, Path | None]) -> None:
    """TLS and keys are the rule; without them nothing leaves this machine."""
    given = [flag for flag, file in keys.items() if file is not None]
    if insecure and given:
        raise BadInput(
            f"--insecure: contradicts {' and '.join(given)}, which would not be used; "
            "leave one of them out"
        )
    if insecure and not _loopback(host):
        raise BadInput(f"--insecure: only on loopback, such as 127.0.0.1, not on {host}")
    if not insecure and len(given) < len(keys):
        flags = " and ".join(keys)
        raise BadInput(
            f"{flags}: needed for TLS and authentication (`tacit keys --help`); --insecure: "
            "on loopback only"
        )


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def quiet() -> None:
    """Send our log to stderr, and Flower's nowhere unless it warns."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("tacit").setLevel(logging.INFO)
    import flwr  # noqa: F401  # it adds a handler of its own

    logging.getLogger("flwr").setLevel(logging.WARNING)


def say(text: str) -> None:
    """Print a line at once, also where nobody looks on."""
    print(text, flush=True)
