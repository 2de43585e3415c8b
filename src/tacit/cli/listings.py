"""methods, doctor: what there is. Help and refusals need not wait for torch."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path

from tacit.core.errors import BadInput


def methods(args: Sequence[str]) -> None:
    """List the methods and the networks."""
    if plain_help(args, "usage: tacit methods\n\nLists the methods and the networks.", most=0):
        return
    from tacit.cli.runs import first_line
    from tacit.methods import METHODS
    from tacit.models import MODELS

    print("methods")
    for name, cls in METHODS.items():
        print(f"  {name:12} {first_line(cls())}")
    print("\nnetworks (--model; auto picks one that fits the data)")
    for name, architecture in MODELS.items():
        print(f"  {name:12} {architecture.about}")
    print(f"  {'module:Class':12} your own torch.nn.Module; it may take shape and classes")


def plain_help(args: Sequence[str], text: str, most: int) -> bool:
    """Print help if asked for; refuse more words than the command takes."""
    if args and args[0] in ("-h", "--help"):
        print(text)
        return True
    if len(args) > most:
        raise BadInput(f"{args[most]}: unknown option; {text.partition(chr(10))[0]}")
    return False


TRIED = {"dafl-cnn": (1, 28, 28), "cuag-cnn": (3, 32, 32)}  # in both precisions, and their inputs


def doctor(args: Sequence[str]) -> None:
    """Check this machine; what is wrong is marked and explained."""
    if plain_help(
        args, "usage: tacit doctor\n\nChecks processors, libraries, data and disk.", most=0
    ):
        return
    problems = 0
    for name, check in CHECKS.items():
        good, words = check()
        problems += not good
        print(f"{'ok ' if good else '!! '} {name:12} {words}")
    print(
        "all is well"
        if not problems
        else f"{problems} thing{'s' * (problems > 1)} to look at, marked !!"
    )


def _python() -> tuple[bool, str]:
    return sys.version_info >= (3, 11), f"{platform.python_version()} (3.11 or newer is needed)"


def _libraries() -> tuple[bool, str]:
    names = [
        "torch",
        "numpy",
        "scipy",
        "safetensors",
        "dp-accounting",
        "tyro",
        "pydantic",
        "rich",
        "matplotlib",
    ]
    return True, ", ".join(f"{n} {version(n)}" for n in names)


def _processors() -> tuple[bool, str]:
    from tacit.engines.workers import processors

    n = processors()
    return True, f"{n} usable: `workers = auto` starts {n} process{'es' * (n > 1)}"


def _memory() -> tuple[bool, str]:
    try:
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9
    except (AttributeError, ValueError):  # no such function here, or no such name
        return True, "not known on this system"
    return free > 1, f"{free:.1f} GB free (a run needs about 1)"


def _device() -> tuple[bool, str]:
    import torch

    return True, torch.cuda.get_device_name(
        0
    ) if torch.cuda.is_available() else "cpu (no CUDA device)"


def _precision() -> tuple[bool, str]:
    from tacit.models import build
    from tacit.models.precision import gain, made_for_bf16

    known = ", ".join(made_for_bf16())
    gains = {name: gain(build(name, shape, 10, 0), shape) for name, shape in TRIED.items()}
    if not known:
        return True, "f32 (no AVX512-BF16, no AMX)"
    if None in gains.values():
        return True, f"f32 ({known} announced, but a process that computes in bf16 ends)"
    times = ", ".join(f"{name} {gain:.1f}" for name, gain in gains.items())
    return True, f"{known}: bf16 against f32, times as fast: {times} (`--precision auto`)"


def _dp_sgd() -> tuple[bool, str]:
    from tacit.privacy.products import advice

    return True, advice()


def _disk() -> tuple[bool, str]:
    free = shutil.disk_usage(Path.cwd()).free / 1e9
    writable = os.access(Path.cwd(), os.W_OK)
    return (
        writable and free > 1,
        f"{free:.1f} GB free here, {'writable' if writable else 'NOT writable'}",
    )


def _data() -> tuple[bool, str]:
    from tacit.data.files import FILES, data_folder, locate

    folder = data_folder()
    here = [name for name, files in FILES.items() if all(locate(f, folder) for f in files)]
    return True, f"digits embedded; in {folder}: {', '.join(here) or 'nothing yet (`tacit data`)'}"


CHECKS: dict[str, Callable[[], tuple[bool, str]]] = {
    "python": _python,
    "libraries": _libraries,
    "processors": _processors,
    "memory": _memory,
    "device": _device,
    "precision": _precision,
    "dp-sgd": _dp_sgd,
    "disk": _disk,
    "data": _data,
}
