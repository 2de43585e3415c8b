"""Commands in processes that are forked: they start at once, and can be killed at any moment."""

import os
import signal
import sys
import time
import traceback
from pathlib import Path

import dp_accounting.pld  # noqa: F401  # what commands import when they need it: once, not each
import jinja2  # noqa: F401
import matplotlib.pyplot  # noqa: F401
import torch

import tacit.cli.join
import tacit.cli.keys
import tacit.cli.runs
import tacit.cli.serve
import tacit.experiment.metrics  # noqa: F401
from tacit.cli.main import COMMANDS, main


class Forked:
    """`tacit` with these arguments; what it says goes to the end of a file, or of two."""

    def __init__(self, args, log, cwd=".", importing=None, errors=None):
        self.log = Path(log)
        self.code = None
        self.pid = os.fork()
        if self.pid == 0:
            _become(args, (self.log, errors or self.log), cwd, importing)

    def poll(self):
        """Return the exit code, or None while it runs."""
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.code = os.waitstatus_to_exitcode(status) if pid else None
        return self.code

    def wait(self, timeout):
        end = time.monotonic() + timeout
        while self.poll() is None:
            assert time.monotonic() < end, f"it did not end within {timeout} s"
            time.sleep(0.01)
        return self.code

    def kill(self, number=signal.SIGKILL):
        if self.poll() is None:
            os.kill(self.pid, number)
        return self.wait(30)


def _become(args, logs, cwd, importing):
    """Run a command in this process, which ends with it; or import something in its place."""
    code = 1
    try:
        os.setsid()
        os.chdir(cwd)
        torch.set_num_threads(1)  # those of the parent are not here
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        files = [os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND) for log in logs]
        for number, file in zip((1, 2), files, strict=True):
            os.dup2(file, number)
        sys.stdin = open(os.devnull)  # noqa: SIM115  # they last as long as this process
        lines = {"mode": "w", "buffering": 1, "closefd": False}
        sys.stdout, sys.stderr = (open(n, **lines) for n in (1, 2))  # noqa: SIM115
        if importing:
            sys.path.insert(0, str(cwd))
            for name, (_, about) in COMMANDS.items():
                COMMANDS[name] = (f"{importing}:main", about)
        sys.argv = ["tacit", *map(str, args)]
        main()
    except SystemExit as e:
        code = e.code
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code if isinstance(code, int) else 1)
