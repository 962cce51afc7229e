"""A program that passes its input on to its standard error, without what a library always says.

These are the lines of Google's logging library of the levels I (information) and W (warning), and
its own remark that it writes them. Errors pass. As a process of its own, it has passed on what the
library said last also where the library ends the process that loads it.
"""

import re
import sys

_CHATTER = re.compile(
    rb"[IW][0-9]{4} [0-9:. ]+[0-9]+ [\w./-]+:[0-9]+\] |WARNING: All log messages "
)


def main() -> None:
    """Filters until the input ends."""
    for line in sys.stdin.buffer:
        if not _CHATTER.match(line):
            sys.stderr.buffer.write(line)
            sys.stderr.buffer.flush()


if __name__ == "__main__":
    main()
