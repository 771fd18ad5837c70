"""Sketching a training step: its graph from fake tensors, with nothing computed and nothing allocated."""

from __future__ import annotations

import os
import random
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from copy import copy
from functools import wraps
from inspect import signature
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest.mock import patch

import numpy as np
import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    UnsupportedOperatorException,
)
from torch.optim import optimizer
from torch.utils import _foreach_utils

from foretrace.errors import check_count
from foretrace.files import gc_paused
from foretrace.graph import MAX_RANKS, ForetraceError, Graph
from foretrace.graph.programs import programs_of
from foretrace.record.guard import RefusedError, SideEffects, guarded
from foretrace.record.sketch.assumptions import STEP, WARM_UP
from foretrace.record.sketch.compiled.regions import (
    COMPILE,
    GRAPHED,
    CompiledRegions,
    compile_called,
    compiled_regions,
    outermost_modules,
)
from foretrace.record.sketch.cuda import PretendedGpu, pretended_cuda
from foretrace.record.sketch.fake_step import FakeStepMode, FakeStepWatch, ModuleMover, quiet, readable
from foretrace.record.sketch.fbgemm import CALLS as TABLE_CALLS
from foretrace.record.sketch.libraries import (
    LeftOut,
    control_flow_in_python,
    eager_code_on_cuda,
    libraries_on_fake_tensors,
)
from foretrace.record.sketch.shares import with_range_of_shares
from foretrace.record.sketch.torch_classes import lazy_modules, packed_sequences
from foretrace.record.sketch.training import TrainingCheck, before, held_weights
from foretrace.record.watch.step_boundaries import listen

if TYPE_CHECKING:
    from foretrace.record.sketch.process_group import PretendCollectives

OWN_TABLES = (
    "each rank looks up its own part of the tables: all are predicted as that of rank {}, and others may be larger"
)
NEEDS_VALUES = (DataDependentOutputException, DynamicOutputShapeException, UnsupportedOperatorException)
"""Errors of PyTorch where a call can't be traced without values."""

STEERED = "before it failed, the sketch assumed "
"""The beginning of a note of an error that may follow from assumed values."""


def sketch(
    step_fn: Callable[[], Any],
    device: str | None = None,
    world: int | None = None,
    rank: int = 0,
    compile: str | None = None,
    programs: bool = True,
) -> Graph:
    """The graph of a training step, without running it.

    The step is called on fake tensors, and nothing that it does reaches outside of this process: what it would write
    goes to a scratch folder, stand-ins replace networks and other programs, and `Graph.notes` lists what was tried.

    Parameters
    ----------
    step_fn
        Does one training step; or builds the model and returns the function that does the step. What it builds is
        never allocated, so the second form sketches models larger than any machine.
    device
        ``"cuda"`` lets the script find a GPU, on any machine: what it puts there (``.to("cuda")``, or wherever
        ``torch.cuda.is_available()`` leads it) is sketched as the GPU would run it. Left out, the machine is as it is.
    world, rank
        Pretend to be this rank of a process group of this size: DDP and FSDP2 scripts are sketched as they are. Left
        out, there is none.
    compile
        Whether the step's models are compiled: ``"on"``, ``"reduce-overhead"``, or ``"off"``, whatever the step says
        itself. Left out, what the step compiles is.
    programs
        Whether the graphs of compiled programs are wanted, which edits of a compiled step need.

    >>> def build():
    ...     model = torch.nn.Linear(100_000, 100_000)  # 40 GB, were it real
    ...     optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ...     def step():
    ...         model(torch.randn(8, 100_000)).sum().backward()
    ...         optimizer.step()
    ...     return step
    >>> graph = sketch(build)
    >>> len([op for op in graph.ops if op.name in ("aten::addmm", "aten::mm")])
    2
    """
    if not callable(step_fn):
        raise ForetraceError(f"{step_fn!r} is no function", "Give a function that does one training step.")
    if compile not in (None, *COMPILE):
        raise ForetraceError(f"{compile!r} is no way to compile", f"Say one of {', '.join(COMPILE)}.")
    if compile in ("on", GRAPHED) and device != "cuda":
        raise ForetraceError("models are compiled for a GPU only", 'Pretend one: device="cuda".')

    def sketched(programs: bool = False) -> Graph:
        return _sketched(step_fn, device, world, rank, compile, programs)

    return with_range_of_shares(sketched(programs), sketched)


def _sketched(
    step_fn: Callable[[], Any], device: str | None, world: int | None, rank: int, compile: str | None, programs: bool
) -> Graph:
    """The graph of a step with one share of elements where that is assumed."""
    with ExitStack() as stack:
        pretence = stack.enter_context(pretending(device, world, rank, compile))
        compiles = compile in ("on", GRAPHED)
        with outermost_modules() if compiles else nullcontext(()) as models:
            step = _warmed_up(step_fn, pretence.fake_step)
        if compiles and not pretence.compiled.seen:
            for model in models:
                stack.enter_context(patch.object(model, "forward", torch.compile(model.forward)))
            step()
        if pretence.group and pretence.group.reducing:
            step()
        pretence.left_out.reset()
        pretence.compiled.wants_programs = programs
        graph = pretence.watched(step)
        graph.source = getattr(step_fn, "__name__", "a step")
        return graph


class Pretence(NamedTuple):
    """What a sketch has put in place of real tensors, GPUs and ranks."""

    fake_step: FakeStepMode
    training: TrainingCheck
    device: str | None
    gpu: PretendedGpu | None
    world: int
    rank: int
    group: PretendCollectives | None
    compiled: CompiledRegions
    left_out: LeftOut
    side_effects: SideEffects

    def watched(self, step: Callable[[], Any]) -> Graph:
        """The graph of what a function does, with all notes."""
        with self.watching() as watch:
            step()
        return self.graph(watch, step)

    @contextmanager
    def watching(self) -> Iterator[FakeStepWatch]:
        """Record the calls of a step."""
        watch = FakeStepWatch(self.fake_step, self.gpu.registry() if self.gpu else None)
        self.fake_step.assumptions.start(STEP, self.fake_step.calls)
        with watch, self.training.following():
            yield watch

    def graph(self, watch: FakeStepWatch, step: Callable[[], Any] | None = None) -> Graph:
        """The graph of a step that was recorded, with all notes."""
        graph = watch.graph()
        graph.notes += [*self.fake_step.assumptions.notes(), *self.training.notes(graph, step)]
        graph.world, graph.rank = self.world, self.rank
        graph.notes += self.compiled.notes + self.left_out.notes + self.fake_step.threads.notes()
        if self.world > 1 and any(TABLE_CALLS.match(op.name) for op in graph.ops):
            graph.notes.append(OWN_TABLES.format(self.rank))
        if self.compiled.wants_programs:
            with self.compiled.on_gpu():
                graph.programs = programs_of(watch.programs.lines(), "the sketch")
        if self.device == "cuda" and not any(t.device.startswith("cuda") for op in graph.ops for t in op.produced):
            graph.notes.append("the step puts nothing on the GPU: build the model on device cuda")
        graph.notes += self.side_effects.notes()
        return graph


@contextmanager
def pretending(device: str | None, world: int | None, rank: int, compile: str | None = None) -> Iterator[Pretence]:
    """Fake tensors, a pretended GPU and a pretended process group; errors say why a step can't be sketched."""
    _check(device, world, rank)
    with ExitStack() as stack:
        side_effects = stack.enter_context(guarded())
        stack.enter_context(quiet("torch._subclasses.fake_tensor"))  # the error of a failed call is raised
        stack.enter_context(libraries_on_fake_tensors())
        stack.enter_context(packed_sequences())
        stack.enter_context(lazy_modules())
        stack.enter_context(_seeded())
        stack.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", "Accessing the data pointer of FakeTensor")  # copying a model causes it
        stack.enter_context(gc_paused())  # it would walk a growing heap again and again, and find nothing
        called_before = compile_called()  # fake tensors load TorchDynamo themselves
        fake_step = stack.enter_context(FakeStepMode())
        stack.enter_context(readable(fake_step))
        gpu, left_out = None, LeftOut()
        stack.enter_context(control_flow_in_python(left_out))
        if device == "cuda":
            fake_step.assumes_arrays = True
            stack.enter_context(eager_code_on_cuda(left_out))
            gpu = stack.enter_context(pretended_cuda(fake_step.copied))
        pretended = (gpu.functions, gpu.follower) if gpu is not None else (None, None)
        functions, follower = (list(filter(None, (mode,))) for mode in pretended)
        stack.enter_context(fake_step.threads.on_fake_tensors([fake_step, *follower], functions))
        compiled = stack.enter_context(compiled_regions(gpu, compile, called_before))
        group = None
        if world is not None:
            from foretrace.record.sketch.process_group import pretended_group

            group = stack.enter_context(pretended_group(world, rank))
        else:
            stack.enter_context(_group_of_one())
        stack.enter_context(_restoring_models())
        training = TrainingCheck(fake_step)
        stack.enter_context(training.expecting_updates())
        stack.enter_context(patch.object(torch.nn.Module, "_apply", ModuleMover().apply))
        stack.enter_context(_foreach_of_fake_tensors())
        try:
            yield Pretence(
                fake_step,
                training,
                device,
                gpu,
                world or 1,
                rank,
                group,
                compiled,
                left_out,
                side_effects,
            )
        except NEEDS_VALUES as error:
            raise refusal(error) from error
        except RefusedError as error:
            raise ForetraceError(
                f"the step can't be sketched: {error.strerror or error}",
                "A sketch does nothing outside of its process: leave that out of the step, or record a real run.",
            ) from error
        except Exception as error:
            if steered := fake_step.assumptions.steered():
                error.add_note(f"{STEERED}{steered}")
            raise


@contextmanager
def _group_of_one() -> Iterator[None]:
    """Let a script that initialises a group of one rank find it, as it does on one GPU without a launcher.

    >>> with _group_of_one():
    ...     dist.init_process_group("nccl", rank=0, world_size=1)
    ...     dist.get_world_size()
    1
    """
    if not dist.is_available() or dist.is_initialized():
        yield
        return
    original = dist.init_process_group
    with ExitStack() as stack:

        @wraps(original)
        def initialise(*args: Any, **kwargs: Any) -> None:
            given = signature(original).bind_partial(*args, **kwargs).arguments
            ranks = given.get("world_size", -1)
            ranks = os.environ.get("WORLD_SIZE", "") if ranks in (None, -1) else ranks
            if given.get("backend") == "fake" or str(ranks) != "1":
                original(*args, **kwargs)
                return
            from foretrace.record.sketch.process_group import pretended_group

            stack.enter_context(pretended_group(1, 0))

        stack.enter_context(patch.object(dist, "init_process_group", initialise))
        yield


def refusal(error: Exception, script: str = "train.py") -> ForetraceError:
    """The error for a call that only a real run can trace.

    >>> str(refusal(DynamicOutputShapeException(torch.ops.aten.nonzero.default)))[:80]
    "the step can't be sketched: what aten.nonzero.default gives depends on the data."
    """
    record = f"record a real run instead: foretrace record --out DIR -- python {script}"
    call = getattr(error, "func", error)
    if isinstance(error, UnsupportedOperatorException):
        return ForetraceError(
            f"the step can't be sketched: the output shapes of {call} are unknown without running it",
            f"Declare its shapes with torch.library.register_fake; or {record}",
        )
    advice = "Sketches have shapes and no values: a shape that follows from values is known in a real run only"
    return ForetraceError(f"the step can't be sketched: what {call} gives depends on the data", f"{advice}; {record}")


def _check(device: str | None, world: int | None, rank: int) -> None:
    if device not in (None, "cpu", "cuda"):
        raise ForetraceError(f"there are no sketches for device {device!r}", 'Say "cuda", or leave it out.')
    if world is not None:
        check_count(world, "world", MAX_RANKS)
    if rank not in range(world or 1):
        raise ForetraceError(f"there is no rank {rank} among {world or 1}", f"Say a rank from 0 to {(world or 1) - 1}.")


def _warmed_up(step_fn: Callable[[], Any], fake_step: FakeStepMode) -> Callable[[], Any]:
    """The step after one call: the first step makes the optimizer's state."""
    built = step_fn()
    if not callable(built):
        return step_fn
    fake_step.assumptions.start(WARM_UP, fake_step.calls)
    built()
    return built  # type: ignore[no-any-return]


@contextmanager
def _seeded() -> Iterator[None]:
    """Random numbers that are the same in every sketch, of scripts that set no seed; the state is restored."""
    states = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        random.seed(0)
        np.random.seed(0)
        torch.default_generator.manual_seed(0)
        try:
            yield
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])


@contextmanager
def _foreach_of_fake_tensors() -> Iterator[None]:
    """Let optimizers, clipping and averaging choose foreach functions for fake tensors as they would for real ones."""
    lists = [optimizer._foreach_supported_types, _foreach_utils._foreach_supported_types]
    for kinds in lists:
        kinds.append(FakeTensor)
    try:
        yield
    finally:
        for kinds in lists:
            kinds.remove(FakeTensor)


@contextmanager
def _restoring_models() -> Iterator[None]:
    """Restore gradients and optimizer states of real models after a sketch."""
    gradients: dict[int, tuple[Any, Any]] = {}
    states: dict[int, tuple[Any, dict[Any, Any]]] = {}

    def save_gradients(weights: Iterable[Any]) -> None:
        for weight in weights:
            if not isinstance(weight, FakeTensor):
                gradient = None if isinstance(weight.grad, FakeTensor) else weight.grad
                gradients.setdefault(id(weight), (weight, gradient))

    def save_all(chosen: Any) -> None:
        weights = [weight for group in chosen.param_groups for weight in group["params"]]
        save_gradients(weights)
        states.setdefault(id(chosen), (chosen, {key: copy(state) for key, state in chosen.state.items()}))

    silence = listen(before=save_all, after=lambda _: None)
    try:
        with (
            before(optimizer.Optimizer, "zero_grad", save_all),
            before(torch.nn.Module, "zero_grad", lambda module: save_gradients(held_weights(module))),
        ):
            yield
    finally:
        silence()
        for weight, gradient in gradients.values():
            if weight.grad is not gradient:  # sharded tensors have none, and can't be given one
                weight.grad = gradient
        for chosen, saved in states.values():
            chosen.state.clear()
            chosen.state.update(saved)
