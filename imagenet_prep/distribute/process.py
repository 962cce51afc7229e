"""Processes of ours on other hosts, and the channels to them."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

from imagenet_prep.core import children
from imagenet_prep.distribute.messages import Messages
from imagenet_prep.distribute.wire import Channel
from imagenet_prep.hosts.process import Ending, Tail, command_on, start

# A process whose output has ended has hardly anything left to do.
_END_S = 1.0


class Process:
    """A process of ours on some host, and the channel to it.

    Attributes:
      channel: to its standard input and output.
    """

    def __init__(
        self, address: str, python: str, words: Sequence[str], messages: Messages, silence_s: float
    ) -> None:
        """Starts it; it ends when its input does, which is when this process ends.

        Args:
          address: of the host.
          python: the interpreter there.
          words: the module that it runs, and its arguments; `silence_s` is the last one.
          messages: that it may send.
          silence_s: seconds after which it is given up.

        Raises:
          OSError: this machine cannot start another process.
        """
        argv = children.python("-m", *words, str(silence_s), program=python)
        self._popen = start(command_on(address, argv))
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        self.channel = Channel(
            self._popen.stdout.fileno(),
            self._popen.stdin.fileno(),
            messages,
            silence_s=silence_s,
        )
        self._stderr = Tail(self._popen.stderr)

    def end(self) -> Ending:
        """Ends it where it has not ended.

        Called by the thread that reads from its channel, and by no other.
        """
        try:
            self._popen.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._popen.kill()
        code = self._popen.wait()
        said = self._stderr.text()
        with self.channel.closing():
            for pipe in (self._popen.stdin, self._popen.stdout):
                assert pipe is not None
                pipe.close()
        # A shell that lets nobody in says so on its standard output.
        return Ending(code, said or self.channel.noise)

    def kill(self) -> None:
        """Kills what runs here of it: the ssh, or the process itself."""
        self._popen.kill()
