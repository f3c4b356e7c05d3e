"""``python -m gradwire`` is the command line."""

import sys

from gradwire.cli import main

if __name__ == "__main__":  # a rank of `gradwire demo` imports this file again, under another name
    sys.exit(main())
