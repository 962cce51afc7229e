"""Replaces `imagenet-prep`: records its arguments and exits as FOLDER/plan.json says."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path


def main(folder: Path, verb: str, *arguments: str) -> int:
    """Returns the next exit code planned for `verb`, by default 0; below 0, a signal ends it."""
    calls = folder / "calls.jsonl"
    with calls.open("a") as file:
        file.write(json.dumps([verb, *arguments]) + "\n")
    if (folder / "wait").exists():
        signal.signal(signal.SIGTERM, lambda *_: (folder / "asked-to-end").touch())
        (folder / "waits").touch()
        while not (folder / "asked-to-end").exists():
            time.sleep(0.01)
        return 130
    plan = folder / "plan.json"
    codes = json.loads(plan.read_text()) if plan.exists() else {}
    code = codes[verb].pop(0) if codes.get(verb) else 0
    plan.write_text(json.dumps(codes))
    if code < 0:
        os.kill(os.getpid(), -code)
    if code:
        print("usage: a line before", file=sys.stderr)
        print(f"imagenet-prep: {verb} has failed:\n  twice  so to say", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), *sys.argv[2:]))
