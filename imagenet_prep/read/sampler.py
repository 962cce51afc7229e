"""Which step is read when, for `torch.utils.data.DataLoader`, whose workers read the steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from imagenet_prep.read.order import Steps

# An epoch, and how many of its examples all ranks have read before.
Position = tuple[int, int]


class StepSampler:
    """The sampler of a DataLoader over a reader: hands each step out to one of the workers.

    Every `for` over the DataLoader is one epoch, or the rest of the one that was restored; the
    next is the next epoch. One that is left before all steps are handed out is begun again.
    """

    def __init__(
        self,
        steps: Callable[[int], Steps],
        position: Callable[[dict[str, Any]], Position],
        state: dict[str, Any],
    ) -> None:
        """Use `Reader.sampler`."""
        self._steps = steps
        self._position = position
        self._handed_out = 0
        self.load_state_dict(state)

    @property
    def epoch(self) -> int:
        """Of the next `for`, from 0."""
        return self._after(self._handed_out)[0]

    def __len__(self) -> int:
        return self._steps(0).count

    def __iter__(self) -> Iterator[Position]:
        """Yields the position of each step that is left of the epoch."""
        epoch, read = self._after(self._handed_out)
        if not read:
            self._began = epoch, 0
        epoch, start = self._began
        steps = self._steps(start)
        for step in range(steps.count):
            self._handed_out = step + 1
            yield epoch, steps.after(step)

    def state_dict(self, steps: int | None = None) -> dict[str, Any]:
        """Returns the state of the reader after some steps of the present `for`.

        Args:
          steps: those that were trained on. By default all that were handed out, which is what
            torchdata's StatefulDataLoader asks for; a DataLoader's workers are ahead of it.
        """
        epoch, read = self._after(self._handed_out if steps is None else steps)
        return self._state | {"epoch": epoch, "examples_read": read}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues at the position of a state, of this or of `Reader.state`.

        Raises as `Reader.restore`.
        """
        self._began = self._position(state)
        self._state = state
        self._handed_out = 0

    def _after(self, steps: int) -> Position:
        epoch, start = self._began
        left = self._steps(start)
        return (epoch, left.after(steps)) if steps < left.count else (epoch + 1, 0)
