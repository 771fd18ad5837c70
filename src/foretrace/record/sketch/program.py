"""Sketching a program that trains by itself: it runs on fake tensors until one of its first steps is recorded."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Any

import torch

from foretrace.graph import ForetraceError, Graph
from foretrace.record.sketch.assumptions import WARM_UP
from foretrace.record.sketch.fake_step import FakeStepWatch
from foretrace.record.sketch.sketch import Pretence, pretending
from foretrace.record.sketch.training import before
from foretrace.record.watch.session import EXPLICIT
from foretrace.record.watch.step_boundaries import listen, on_step_end

WARM_UP_STEPS = 2
"""Steps before the one that is recorded. The first makes the optimizer's state; between the first and the second, loops
log, evaluate and save that do so every so many steps; in the second DDP rebuilds its buckets."""
MAX_STEPS = 10
"""Steps in which every optimizer that was made should have been called, before the others are taken for unused."""
MUCH_LONGER = 1.2
"""Calls of a step, over those of others, above which it does something that most steps do not."""
MAX_PARTS = 3
"""Times that an optimizer is called again without a forward before it is learned how often it is, as DeepSpeed calls it
once for each group of weights."""
STEPS_TO_LEARN = 4
"""Steps in which that is learned."""
MAX_LONGER = 3
"""Such steps in a row, before the shortest of them is taken."""


class StepTakenError(BaseException):
    """Ends the program once its step is recorded; no exception that programs handle."""


def sketch_program(
    run: Callable[[], Any], device: str | None = None, world: int | None = None, programs: bool = True
) -> Graph:
    """The graph of one of the first steps of a program, whose optimizers say where steps end.

    With ``programs`` it has the graphs of compiled programs, which edits of a compiled step need.

    >>> def train():
    ...     weight = torch.nn.Parameter(torch.ones(4, 4))
    ...     optimizer = torch.optim.SGD([weight], lr=0.1)
    ...     for _ in range(1_000_000_000):
    ...         (weight @ weight).sum().backward()
    ...         optimizer.step()
    >>> [op.name for op in sketch_program(train).ops][:2]
    ['aten::mm', 'aten::sum']
    """
    with pretending(device, world, 0) as pretence, ExitStack() as stack:
        pretence.compiled.wants_programs = programs
        pretence.fake_step.assumes_arrays = True
        steps = FirstSteps(pretence)
        stack.callback(steps.close)
        stack.enter_context(before(torch.optim.Optimizer, "__init__", steps.made))
        stack.callback(listen(after=steps.called))
        unsubscribe = on_step_end(steps.ended, steps.start_over)
        stack.callback(unsubscribe)

        def explicit() -> None:
            if not steps.explicit:  # from now on optimizers end no steps
                unsubscribe()
                steps.start_over()
                steps.explicit = True
            steps.ended()

        EXPLICIT.append(explicit)
        stack.callback(EXPLICIT.remove, explicit)
        with suppress(StepTakenError):
            run()
        return steps.result()


class FirstSteps:
    """Follows the steps of a program, and records one of them."""

    def __init__(self, pretence: Pretence) -> None:
        self._pretence, self._fake_step = pretence, pretence.fake_step
        self._open = ExitStack()
        self._watch: FakeStepWatch | None = None
        self._steps = self._begun = self._longer = 0
        self._usual = self._taken = float("inf")
        """Calls of the shortest step that was not recorded, and of the one that was."""
        self._graph: Graph | None = None
        self._sequence, self._parts = -1, 0
        """Autograd's count of calls at the last step's end, and how often it stood still."""
        self.explicit = False
        """Whether the program says itself where steps end."""
        self._made: set[int] = set()
        self._called: set[int] = set()

    def made(self, optimizer: Any) -> None:
        """An optimizer is made: the model is built."""
        if not self._made:
            self._fake_step.assumptions.start(WARM_UP, self._fake_step.calls)
        self._made.add(id(optimizer))

    def called(self, optimizer: Any) -> None:
        """An optimizer was called."""
        self._called.add(id(optimizer))

    def start_over(self) -> None:
        """What was taken for steps were parts of one."""
        self.close()
        self._steps, self._usual, self._graph = 0, float("inf"), None

    def ended(self) -> None:
        """A step has ended, and the next begins."""
        calls, self._begun = self._fake_step.calls - self._begun, self._fake_step.calls
        self._steps += 1
        before, self._sequence = self._sequence, torch.autograd._get_sequence_nr()
        if before == self._sequence and self._parts < MAX_PARTS and not self.explicit:
            self._parts += 1
            self.start_over()
            self._steps = -STEPS_TO_LEARN
            return
        if self._watch is not None:
            self._keep(calls)
        elif self._steps > 1:
            self._usual = min(self._usual, calls)
        waits = len(self._called) < len(self._made) and self._steps < MAX_STEPS and not self.explicit
        if self._steps >= WARM_UP_STEPS and not waits:
            self._pretence.left_out.reset()
            self._watch = self._open.enter_context(self._pretence.watching())

    def _keep(self, calls: int) -> None:
        """End the recording of a step; end the program if it is a usual one."""
        watch = self._watch
        self.close()
        assert watch is not None
        if calls < self._taken:
            self._taken, self._graph = calls, self._pretence.graph(watch)
        self._longer += calls > MUCH_LONGER * self._usual
        if self._taken <= MUCH_LONGER * self._usual or self._longer >= MAX_LONGER:
            raise StepTakenError

    def close(self) -> None:
        """End a recording that is under way."""
        self._watch = None
        self._open.close()

    def result(self) -> Graph:
        """The graph of the step; an error where the program did not get there."""
        if self._graph is not None:
            return self._graph
        if not self._steps:
            why = "made no optimizer" if not self._made else "called none of its optimizers"
            raise ForetraceError(
                f"no training step was seen: the program ended, and {why}",
                "A step ends with the step of a torch.optim optimizer, or where the script calls foretrace.step(). "
                "Give it the options with which it trains; or write a function that does one step",
            )
        count = f"{self._steps} step{'s' * (self._steps > 1)}, and {WARM_UP_STEPS + 1} are needed"
        raise ForetraceError(
            f"the program ended after {count}: the first steps do more than later ones",
            "Let it train longer; or write a function that does one step",
        )
