"""Runs a program so that it ends with its parent: ``python -m infra.kafka.launch PROGRAM ARGUMENT …``.

What ``infra.base.process.end_with_parent`` sets in the kernel stays in force when the process becomes another program.
"""

import os
import sys

from infra.base.process import end_with_parent

if __name__ == "__main__":
    end_with_parent()
    os.execvp(sys.argv[1], sys.argv[1:])
