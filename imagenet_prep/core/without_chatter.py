"""Copies stdin to stderr, except for routine log messages of a library.

The dropped lines are those of Google's logging library with the levels I (information) and W
(warning), and its "All log messages" line. Because this is a separate process, it prints the last
message of a library even if the library crashes the process that loads it.
"""

import re
import sys

_CHATTER = re.compile(
    rb"[IW][0-9]{4} [0-9:. ]+[0-9]+ [\w./-]+:[0-9]+\] |WARNING: All log messages "
)


def main() -> None:
    """Filters lines until the input ends."""
    for line in sys.stdin.buffer:
        if not _CHATTER.match(line):
            sys.stderr.buffer.write(line)
            sys.stderr.buffer.flush()


if __name__ == "__main__":
    main()
