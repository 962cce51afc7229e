"""Copies stdin to stderr, except for routine log messages of a library.

It drops lines of Google's logging library with levels I (information) and W (warning), and the
notice about that log. Errors pass. As a separate process, it also prints the library's last
message if the library ends the process that loads it.
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
