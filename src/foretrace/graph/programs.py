"""Programs that torch.compile generated: the graph of each as plain calls, and what is known of the program."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from foretrace.errors import ForetraceError
from foretrace.graph.op import (
    COMPILED_PROGRAM,
    COMPILED_REGION,
    Op,
    Tensor,
    Value,
    end_in_storage,
    tensors_in,
    with_tensors,
)

KINDS = ("forward", "backward", "inference")
MAX_SHOWN = 3
"""Reasons that a note gives."""


@dataclass(frozen=True)
class Program:
    """A generated program: the calls of the FX graph that it was generated from, with its arguments and results.

    Ids of tensors and storages are its own, and arguments have the first ones.
    """

    given: tuple[Value, ...] = ()
    returned: tuple[Value, ...] = ()
    ops: tuple[Op, ...] = ()
    origins: tuple[str, ...] = ()
    """The operator of the eager code that each call is a part of: TorchInductor names kernels by them."""
    kind: str = "forward"
    kernels: tuple[str, ...] = ()
    """Generated kernels that it launches, in order."""
    cuda_graph: bool = False
    without_cuda_graph: str = ""
    """Why it is not captured in a CUDA graph, where that was asked for."""
    static: tuple[int, ...] = ()
    """Arguments that stay at their addresses, such as weights."""
    donated: tuple[int, ...] = ()
    """Arguments of a backward whose memory it may use for its results: what was saved for it alone."""
    visible: tuple[int, ...] = ()
    """Results that the user's code sees: their strides are those of the eager code."""
    settings: dict[str, bool | int] = field(default_factory=dict)
    """Options of TorchInductor."""
    failed: str = ""
    """Why its calls are unknown; empty where they are known."""


def programs_of(ops: Sequence[Op], source: str) -> tuple[Program, ...]:
    """The programs that a recording lists: for each a head, and its calls.

    >>> head = Op(COMPILED_PROGRAM, (), {"kind": "backward", "calls": 1})
    >>> [(program.kind, program.ops[0].name) for program in programs_of([head, Op("aten::relu")], "here")]
    [('backward', 'aten::relu')]
    """
    found: list[Program] = []
    at = 0
    while at < len(ops):
        head, facts = ops[at], ops[at].kwargs
        count, settings = facts.get("calls", 0), facts.get("settings")
        if head.name != COMPILED_PROGRAM or not isinstance(count, int) or not 0 <= count < len(ops) - at:
            raise ForetraceError(f"{source}: line {at + 1} is no program", "Restore it, or record the job again.")
        kind = facts.get("kind")
        found.append(
            Program(
                head.args,
                head.outputs,
                tuple(ops[at + 1 : at + 1 + count]),
                _texts(facts.get("origins")),
                kind if kind in KINDS else "forward",
                _texts(facts.get("kernels")),
                facts.get("cuda_graph") is True,
                str(facts.get("without_cuda_graph") or ""),
                _numbers(facts.get("static")),
                _numbers(facts.get("donated")),
                _numbers(facts.get("visible")),
                {n: v for n, v in settings.items() if isinstance(v, (bool, int))} if isinstance(settings, dict) else {},
                str(facts.get("failed") or ""),
            )
        )
        at += 1 + count
    return tuple(found)


def program_lines(programs: Iterable[Program]) -> Iterator[Op]:
    """For each program a head, and its calls: what `programs_of` reads.

    >>> [op.name for op in program_lines([Program(ops=(Op("aten::relu"),))])]
    ['compile::program', 'aten::relu']
    """
    for program in programs:
        facts: dict[str, Value] = {
            "kind": program.kind, "kernels": list(program.kernels), "cuda_graph": program.cuda_graph,
            "without_cuda_graph": program.without_cuda_graph, "static": list(program.static),
            "donated": list(program.donated), "visible": list(program.visible),
            "settings": dict(program.settings), "failed": program.failed,
            "origins": list(program.origins), "calls": len(program.ops),
        }  # fmt: skip
        yield Op(COMPILED_PROGRAM, program.given, facts, program.returned)
        yield from program.ops


def _texts(values: Value) -> tuple[str, ...]:
    return tuple(str(value) for value in values) if isinstance(values, list) else ()


def _numbers(values: Value) -> tuple[int, ...]:
    return tuple(value for value in values if isinstance(value, int)) if isinstance(values, list) else ()


def program_of(op: Op, programs: Sequence[Program]) -> Program | None:
    """The program that a side call runs; None for other calls, and where the program's graph is not known.

    >>> program_of(Op("aten::relu"), [Program()])
    """
    number = op.kwargs.get("program") if op.name == COMPILED_REGION else None
    return programs[number] if isinstance(number, int) and 0 <= number < len(programs) else None


def compilation_notes(programs: Sequence[Program], compiled: Mapping[str, Any]) -> list[str]:
    """What a reader should know of what was compiled: programs, graph breaks, recompilations, CUDA graphs.

    >>> compilation_notes([Program(kernels=("triton_0",)), Program(kind="backward")], {"graph_breaks": {"print": 2}})
    ['compiled: 2 programs (1 forward, 1 backward), which launch 1 generated kernel', '2 graph breaks: print']
    """
    notes = []
    if programs:
        kinds = Counter(program.kind for program in programs)
        counted = ", ".join(f"{kinds[kind]} {kind}" for kind in KINDS if kinds[kind])
        kernels = sum(len(program.kernels) for program in programs)
        launched = f"{kernels} generated {'kernel' if kernels == 1 else 'kernels'}"
        notes.append(f"compiled: {_counted(len(programs), 'program')} ({counted}), which launch {launched}")
    elif compiled.get("graphs"):
        notes.append("compiled before the recording began: the graphs of compiled programs are not known")
    if graphs := sum(program.cuda_graph for program in programs):
        notes.append(f"{_counted(graphs, 'program')} of them in CUDA graphs")
    for what, field_name in (("graph break", "graph_breaks"), ("recompilation", "recompilations")):
        reasons = compiled.get(field_name)
        if isinstance(reasons, dict) and reasons and all(isinstance(n, int) for n in reasons.values()):
            more = ", …" if len(reasons) > MAX_SHOWN else ""
            why = "; ".join(str(reason) for reason in list(reasons)[:MAX_SHOWN])
            notes.append(f"{_counted(sum(reasons.values()), what)}: {why}{more}")
    again = compiled.get("graphs_while_recorded", 0)
    if isinstance(again, int) and again > 0:
        notes.append(f"{_counted(again, 'graph')} compiled while the steps were recorded: they take longer than others")
    for what, why in Counter(
        [("not in a CUDA graph", program.without_cuda_graph) for program in programs if program.without_cuda_graph]
        + [("whose calls are not known", program.failed) for program in programs if program.failed]
    ):
        notes.append(f"compiled programs {what}: {why}")
    return notes


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


class FoldedStep(NamedTuple):
    """Calls of a step in which a compiled program is one call, and the positions of the calls that each stands for."""

    ops: list[Op]
    parts: list[tuple[int, ...]]
    ended: list[tuple[int, ...]]
    """Storages that each call of a program frees while it runs."""


def fold(ops: Sequence[Op], programs: Sequence[Program]) -> FoldedStep:
    """The step with each program that can be made again as one call: of its number, and of the tensors that it takes.

    >>> x = Tensor((4,), "float32")
    >>> mark = Op(COMPILED_REGION, (1, 1), {"program": 0, "given": [x]}, outputs=(x,))
    >>> step = fold([mark, Op("aten::mm"), Op("aten::relu")], [Program(given=(x,), ops=(Op("aten::mm"),))])
    >>> step.parts[0], step.ops[0].args[0], step.ops[1].name
    ((0, 1), 0, 'aten::relu')
    """
    folded = FoldedStep([], [], [])
    at = 0
    while at < len(ops):
        op, program, begin, inside = ops[at], program_of(ops[at], programs), at, list[int]()
        left = op.args[0] if op.args else 0
        at += 1
        if program is not None and program.ops and isinstance(left, int):
            while at < len(ops) and left > 0:
                left -= not ops[at].is_side_call
                inside += ops[at].frees
                at += 1
            given = tensors_in(op.kwargs.get("given"))
            number, made = op.kwargs["program"], list(op.outputs)
            op = replace(op, name=COMPILED_PROGRAM, args=(number, *given), kwargs={}, outputs=(made,))
        elif op.name == COMPILED_REGION:  # its results are those of calls inside, or of kernels that can't be called
            op = replace(op, kwargs={}, outputs=())
        folded.ops.append(op)
        folded.parts.append(tuple(range(begin, at)))
        folded.ended.append(tuple(inside))
    return folded


def unfold(call: Op, program: Program, numbers: Iterator[int]) -> list[Op]:
    """The calls of a program's graph in the place of a folded call of it; other tensors get ids from ``numbers``.

    >>> from itertools import count
    >>> x, y = (Tensor((4,), "float32", id=n, storage=n) for n in (0, 1))
    >>> program = Program((x,), (y,), (Op("aten::relu", (x,), outputs=(y,)),))
    >>> call = Op(COMPILED_PROGRAM, (0, Tensor((4,), "float32", id=7, storage=8)), outputs=([None],))
    >>> relu, = unfold(call, program, count(100))
    >>> relu.args[0].id, relu.args[0].storage, relu.outputs[0].id
    (7, 8, 100)
    """
    results = call.outputs[0] if call.outputs and isinstance(call.outputs[0], list) else []
    pairs = [*zip(tensors_in(list(program.given)), call.args[1:]), *zip(program.returned, results)]
    known = [(inner, outer) for inner, outer in pairs if isinstance(inner, Tensor) and isinstance(outer, Tensor)]
    ids = {inner.id: outer.id for inner, outer in reversed(known)}
    storages = {inner.storage: outer.storage for inner, outer in reversed(known)}

    def outside(tensor: Tensor) -> Tensor:
        for names, number in ((ids, tensor.id), (storages, tensor.storage)):
            if number not in names:
                names[number] = next(numbers)
        return replace(tensor, id=ids[tensor.id], storage=storages[tensor.storage])

    made = [with_tensors(op, outside) for op in program.ops]
    for op in made:
        op.phase, op.module, op.thread, op.stream = call.phase, call.module, call.thread, call.stream
    return made


def scratch_bytes(program: Program) -> int:
    """Most bytes that the calls of a graph hold at once besides its arguments, if each is freed after its last use.

    >>> x, y, z = (Tensor((8,), "float32", id=n, storage=n) for n in range(3))
    >>> scratch_bytes(Program((x,), (z,), (Op("aten::relu", (x,), outputs=(y,)), Op("aten::neg", (y,), outputs=(z,)))))
    64
    """
    given = {tensor.storage for tensor in tensors_in(list(program.given))}
    held = {tensor.storage for tensor in tensors_in(list(program.returned))}
    last, sizes = dict[int, int](), dict[int, int]()
    for place, op in enumerate(program.ops):
        for tensor in (*op.tensors, *op.produced):
            last[tensor.storage] = len(program.ops) if tensor.storage in held else place
            sizes[tensor.storage] = max(sizes.get(tensor.storage, 0), end_in_storage(tensor))
    now = peak = 0
    seen = set(given)
    for place, op in enumerate(program.ops):
        new = {tensor.storage for tensor in op.produced} - seen
        seen |= new
        now += sum(sizes[storage] for storage in new)
        peak = max(peak, now)
        ended = {tensor.storage for tensor in (*op.tensors, *op.produced)} - given
        now -= sum(sizes[storage] for storage in ended if last[storage] == place)
    return peak
