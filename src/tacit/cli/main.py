"""`tacit COMMAND ...`: find the command, run it, turn failures into one line and an exit code."""

from __future__ import annotations

import gc
import os
import select
import sys

from tacit import __version__
from tacit.cli import interrupts

COMMANDS = {
    "run": ("tacit.cli.runs:run", "run one method and write a run directory"),
    "resume": (
        "tacit.cli.runs:resume",
        "continue a run, a comparison or a sweep that was stopped or killed",
    ),
    "compare": (
        "tacit.cli.runs:compare",
        "run several methods side by side; a table and a picture",
    ),
    "sweep": (
        "tacit.cli.sweeps:sweep",
        "run methods over a grid of numbers; a table and a picture",
    ),
    "reproduce": (
        "tacit.cli.reproductions:reproduce",
        "the papers' tables and figures, published beside measured",
    ),
    "predict": ("tacit.cli.use:predict", "answer for new data with a trained model"),
    "export": ("tacit.cli.use:export_command", "a trained model as ONNX, torch or safetensors"),
    "report": ("tacit.cli.reports:report", "one page with figures and tables of runs"),
    "view": ("tacit.cli.reports:view", "runs in a browser on this machine, live"),
    "serve": ("tacit.cli.serve:serve", "coordinate real sites"),
    "join": ("tacit.cli.join:join", "take part as a site, with your own data"),
    "keys": ("tacit.cli.keys:keys", "certificates for the coordinator, keys for the sites"),
    "privacy": (
        "tacit.cli.privacy:privacy_command",
        "epsilon from noise, noise from epsilon, a method's cost before it runs",
    ),
    "synth": (
        "tacit.cli.synths:synth",
        "a private synthetic copy of a data set, with a certificate",
    ),
    "encode": (
        "tacit.cli.encoders:encode",
        "train a public encoder on public data, for --features",
    ),
    "methods": ("tacit.cli.listings:methods", "list the methods and the networks"),
    "data": ("tacit.cli.data_sets:data", "list, get or check data sets"),
    "split": ("tacit.cli.data_sets:split", "draw who holds what"),
    "doctor": (
        "tacit.cli.listings:doctor",
        "check this machine: processors, libraries, data, disk",
    ),
}

HELP = """tacit: private federated learning on non-IID data, with a privacy figure you can trust

usage: tacit COMMAND [options]        tacit COMMAND --help explains one command

{commands}

first steps:
  tacit compare fedavg fedprox scaffold --split label:1   one class per client, on embedded digits
  tacit split --split dirichlet:0.5                       see what such a split looks like
  tacit run fedavg --data mnist --split label:2           one method on real data (see `tacit data`)

exit codes: 0 done, 2 wrong input or training that diverged, 3 privacy budget reached,
            4 too few clients replied, 1 any other failure, 130 interrupted (Ctrl-C),
            141 nobody reads the output any more
"""
CONTINUES = {"serve": "tacit serve RUN"}  # other commands know the folder, and name it
SLOW_TO_BEGIN = ("serve", "join")  # they import for seconds, and say themselves when they begin


def main() -> None:
    """Run the command line."""
    interrupts.at_once()
    gc.disable()  # the imports make a million objects and no garbage
    code = _to_a_reader(sys.argv[1:])
    gc.freeze()  # nor is there anything to gain from a last search for garbage
    sys.exit(code)


def _to_a_reader(args: list[str]) -> int | str | None:
    """Run one command.

    End quietly, as other programs do, if whoever reads the output (such as `head`) has gone.
    """
    try:
        try:
            return call(args)
        except SystemExit as e:  # help of flags
            return e.code
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        for stream in (sys.stdout, sys.stderr):  # for what Python still writes at its end
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        return 141


def _reader_has_gone() -> bool:
    """Tell whether it is our output that has no reader, and not some other pipe."""
    try:
        outputs = select.poll()
    except AttributeError:  # not on this platform
        return True
    for number in (1, 2):
        outputs.register(number, 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in outputs.poll(0))


def call(args: list[str]) -> int:
    """Run one command and return its exit code."""
    if not args or args[0] in ("-h", "--help", "help"):
        listing = "\n".join(f"  {name:9} {about}" for name, (_, about) in COMMANDS.items())
        print(HELP.format(commands=listing), end="")
        return 0
    if args[0] in ("-V", "--version"):
        print(f"tacit {__version__}")
        return 0
    return _guarded(args[0], args[1:])


def _guarded(command: str, args: list[str]) -> int:
    import importlib

    from tacit.core import check
    from tacit.core.errors import TacitError

    try:
        check.choice("command", command, COMMANDS)
        module, _, function = COMMANDS[command][0].partition(":")
        run = getattr(importlib.import_module(module), function)
        gc.enable()
        if command not in SLOW_TO_BEGIN:
            interrupts.in_order()
        run(args)
    except TacitError as e:
        print(f"tacit: {' '.join(str(e).splitlines())}", file=sys.stderr)
        return e.exit_code
    except OSError as e:
        if isinstance(e, BrokenPipeError) and _reader_has_gone():
            raise
        print(f"tacit: {e.filename or command}: {e.strerror or e}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        how = (
            f"; `{CONTINUES[command]}` continues from the last finished round"
            if command in CONTINUES
            else ""
        )
        print(f"\ntacit: interrupted{how}", file=sys.stderr)
        return interrupts.CODE
    return 0
