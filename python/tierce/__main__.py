# SPDX-License-Identifier: Apache-2.0
"""The command ``tierce`` of an environment: the executable that pip has installed with the package."""

import os
import signal
import sys
from pathlib import Path

EXECUTABLE = Path(__file__).parent / "bin" / "tierce"


def main() -> int:
    """Replaces this process with the executable. Returns 127 if it cannot be started."""
    for ignored in (signal.SIGPIPE, signal.SIGXFSZ):  # by Python; a program inherits that
        signal.signal(ignored, signal.SIG_DFL)
    try:
        os.execv(EXECUTABLE, ["tierce", *sys.argv[1:]])
    except OSError as error:
        print(f"tierce: {EXECUTABLE} cannot be started: {error.strerror}", file=sys.stderr)
    return 127


if __name__ == "__main__":
    sys.exit(main())
