"""`python -m tacit` is the command `tacit`, where only an interpreter is at hand."""

import sys

from tacit.cli.main import main

if __name__ == "__main__":
    sys.argv[0] = "tacit"  # what a run directory says that it was made by
    main()
