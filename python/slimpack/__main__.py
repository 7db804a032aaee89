# SPDX-License-Identifier: Apache-2.0
"""The command line: python -m slimpack."""
import signal
import sys

from . import _core


def main() -> int:
    """Runs the command line with the words that this program was given."""
    # Planning does not return to Python, whose own handler would wait for that.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    return _core.run_program(["slimpack", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
