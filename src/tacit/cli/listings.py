"""methods, data, split, doctor: what there is."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import torch
from rich.progress import DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

from tacit.cli.flags import parse
from tacit.cli.runs import first_line
from tacit.core import BadInput, check_choice
from tacit.data import KNOWN, load
from tacit.data.federated import federate
from tacit.data.files import FILES, data_folder, ensure, locate, verify
from tacit.data.splits import SCHEMES, clients_of
from tacit.engines.workers import processors
from tacit.experiment.config import Setting
from tacit.methods import METHODS
from tacit.models import MODELS, build
from tacit.models.precision import gain, made_for_bf16
from tacit.report.pictures import draw_split, text_split


def methods(args: Sequence[str]) -> None:
    """List the methods and the networks."""
    if _help(args, "usage: tacit methods\n\nLists the methods and the networks.", most=0):
        return
    print("methods")
    for name, cls in METHODS.items():
        print(f"  {name:12} {first_line(cls())}")
    print("\nnetworks (--model; auto picks one that fits the data)")
    for name, architecture in MODELS.items():
        print(f"  {name:12} {architecture.about}")
    print(f"  {'module:Class':12} your own torch.nn.Module; it may take shape and classes")


def _help(args: Sequence[str], text: str, most: int) -> bool:
    """Print help if asked for; refuse more words than the command takes."""
    if args and args[0] in ("-h", "--help"):
        print(text)
        return True
    if len(args) > most:
        raise BadInput(f"{args[most]}: unknown option; {text.partition(chr(10))[0]}")
    return False


DATA_HELP = f"""usage: tacit data [list]        what is in the data folder
       tacit data get NAME      download a data set
       tacit data check NAME    verify its files

NAME is one of: {", ".join(KNOWN)}
The data folder is $TACIT_DATA, else a folder of the user's cache directory. Your own data need no command: give
--data a .npz, .csv or .parquet file, or a folder of images by class."""


def data(args: Sequence[str]) -> None:
    """List, get or check data sets."""
    if _help(args, DATA_HELP, most=2):
        return
    verb = args[0] if args else "list"
    check_choice("data command", verb, ["list", "get", "check"])
    if verb == "list":
        _list_data()
        return
    if len(args) < 2:
        raise BadInput(f"data {verb}: name a data set; allowed: {', '.join(KNOWN)}")
    check_choice("data set", args[1], KNOWN)
    if verb == "get":
        _get_data(args[1])
    _check_data(args[1])


def _list_data() -> None:
    folder = data_folder()
    print(f"data folder: {folder}\n  {'digits':14} embedded: 1,797 scans of 8x8, no file needed")
    for name, files in FILES.items():
        missing = [f for f in files if locate(f, folder) is None]
        state = (
            "here"
            if not missing
            else f"{len(missing)} of {len(files)} files missing; `tacit data get {name}`"
        )
        print(f"  {name:14} {state}")


def _get_data(name: str) -> None:
    if name not in FILES:
        return
    columns = (
        *Progress.get_default_columns()[:2],
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, disable=not sys.stderr.isatty()) as progress:
        bars = {f.name: progress.add_task(f.name, total=None) for f in FILES[name]}

        def moved(file: str, done: int, of: int | None) -> None:
            if file not in bars:
                bars[file] = progress.add_task(file, total=of)
            progress.update(bars[file], completed=done, total=of)

        ensure(name, data_folder(), moved)


def _check_data(name: str) -> None:
    for file in FILES.get(name, ()):
        if locate(file, data_folder()) is None:
            raise BadInput(
                f"{data_folder() / file.path}: missing; `tacit data get {name}` downloads it"
            )
        verify(file, data_folder())
    found = load(name)
    shape = "x".join(map(str, found.shape))
    print(
        f"{name}: {len(found.train):,} train and {len(found.test):,} test examples of {shape}, "
        f"{len(found.classes)} classes; files are whole"
    )


@dataclass(frozen=True)
class SplitFlags:
    """Flags of ``tacit split``."""

    data: str = "digits"  # a known data set or a path to your own
    split: str = "label:1"  # who holds what; the schemes are listed above
    clients: int = 10  # number of clients
    seed: int = 0  # the same seed gives the same split in every command
    out: Path = Path("split.png")  # the picture; an .svg is written beside it


def split(args: Sequence[str]) -> None:
    """Draw who holds what."""
    schemes = "\n".join(f"  {usage:24} {about}" for usage, about in SCHEMES.items())
    own = "Your own data are divided record by record, so sizes are near what a scheme says."
    about = f"Draw who holds what. {own} Schemes:\n{schemes}"
    given = parse(SplitFlags, args, prog="tacit split", about=about)
    if not given.out.name:
        raise BadInput(f"out = '{given.out}': must be the name of a picture, such as split.png")
    Setting(split=given.split, clients=given.clients)  # refuses what contradicts
    dataset = load(given.data)
    federation = federate(
        dataset, given.split, clients=clients_of(given.split, given.clients), seed=given.seed
    )
    counts = federation.counts()
    print(text_split(counts))
    title = f"{given.data}, {given.split}, seed {given.seed}"
    given.out.parent.mkdir(parents=True, exist_ok=True)
    png, svg = draw_split(counts, dataset.classes, given.out, title)
    print(f"picture: {png}, {svg}")


TRIED = {"dafl-cnn": (1, 28, 28), "cuag-cnn": (3, 32, 32)}  # in both precisions, and their inputs


def doctor(args: Sequence[str]) -> None:
    """Check this machine; what is wrong is marked and explained."""
    if _help(args, "usage: tacit doctor\n\nChecks processors, libraries, data and disk.", most=0):
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
    n = processors()
    return True, f"{n} usable: `workers = auto` starts {n} process{'es' * (n > 1)}"


def _memory() -> tuple[bool, str]:
    if not hasattr(os, "sysconf") or "SC_AVPHYS_PAGES" not in os.sysconf_names:
        return True, "not known on this system"
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9
    return free > 1, f"{free:.1f} GB free (a run needs about 1)"


def _device() -> tuple[bool, str]:
    return True, torch.cuda.get_device_name(
        0
    ) if torch.cuda.is_available() else "cpu (no CUDA device)"


def _precision() -> tuple[bool, str]:
    known = ", ".join(made_for_bf16())
    gains = {name: gain(build(name, shape, 10, 0), shape) for name, shape in TRIED.items()}
    if not known:
        return True, "f32 (no AVX512-BF16, no AMX)"
    if None in gains.values():
        return True, f"f32 ({known} announced, but a process that computes in bf16 ends)"
    times = ", ".join(f"{name} {gain:.1f}" for name, gain in gains.items())
    return True, f"{known}: bf16 against f32, times as fast: {times} (`--precision auto`)"


def _disk() -> tuple[bool, str]:
    free = shutil.disk_usage(Path.cwd()).free / 1e9
    writable = os.access(Path.cwd(), os.W_OK)
    return (
        writable and free > 1,
        f"{free:.1f} GB free here, {'writable' if writable else 'NOT writable'}",
    )


def _data() -> tuple[bool, str]:
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
    "disk": _disk,
    "data": _data,
}
