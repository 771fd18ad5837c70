"""Edits of compiled steps: each program is opened to the calls of its graph, these are edited, and fused anew.

An edited graph is other code for TorchInductor: other sizes, other kernels. So the calls of each program are written as
a script of plain calls, as in a benchmark, and that script is sketched: its kernels take the place of the calls.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count

from foretrace.graph import ForetraceError, Graph, Op, Tensor, tensors_in
from foretrace.graph.codec import to_lines
from foretrace.graph.op import (
    COMPILED_PROGRAM,
    COMPILED_REGION,
    GRAPH_LAUNCH,
    contiguous_strides,
    end_in_storage,
    with_tensors,
)
from foretrace.graph.programs import Program, fold, program_of, unfold
from foretrace.processes import temporary_folder
from foretrace.transforms.step import EditedCall, assemble, flatten

BEGIN, END = "compile::begin", "compile::end"
"""Side calls around the calls of an opened program; the first says whether it is launched as a CUDA graph."""
MARKED = 40
"""Arguments of a program are known in its sketch by the sizes of their storages: the n-th has n more of 2^40 bytes."""
ADVICE = "Make the change in the script, or record the changed job."


def open_programs(graph: Graph) -> Graph:
    """The step with the calls of each compiled program's graph in the place of what was generated from it."""
    flat = flatten(graph)
    ops = list(flat.ops)
    for op in ops:
        if op.name == COMPILED_REGION:
            program = program_of(op, graph.programs)
            why = "the graph of a program is not known" if program is None else program.failed
            if program is None or not program.ops:
                raise ForetraceError(f"{graph.title} is compiled, and can't be changed: {why}", ADVICE)
            if not any(tensor.device.startswith("cuda") for tensor in tensors_in(list(program.given))):
                raise ForetraceError(f"{graph.title} was compiled for a CPU: it can't be fused anew", ADVICE)
    numbers = count(1 + max((max(t.id, t.storage) for op in ops for t in (*op.tensors, *op.produced)), default=0))
    calls: list[EditedCall] = []
    pending: tuple[int, ...] = ()
    for op, parts, ended in zip(*fold(ops, graph.programs)):
        op.frees, pending = (*pending, *op.frees), ()
        if op.name != COMPILED_PROGRAM:
            calls.append(EditedCall(op, parts[0]))
            continue
        program = graph.programs[int(str(op.args[0]))]
        graphed = any(ops[part].name == GRAPH_LAUNCH for part in parts)
        calls.append(EditedCall(replace(op, name=BEGIN, args=(int(graphed),), outputs=()), parts[0]))
        inside = unfold(op, program, numbers)
        outside = {t.storage for t in (*tensors_in(list(op.args)), *tensors_in(list(op.outputs)))}
        pending = _free_inside(inside, outside)
        calls += [EditedCall(each) for each in inside]
        calls.append(EditedCall(Op(END, phase=op.phase, thread=op.thread, stream=op.stream, frees=pending)))
        pending = ended
    return replace(assemble(flat, calls), programs=())


def _free_inside(ops: Sequence[Op], outside: set[int]) -> tuple[int, ...]:
    """Let calls free storages of their own after the last use; returns what is freed after the last call."""
    last = {tensor.storage: place for place, op in enumerate(ops) for tensor in (*op.tensors, *op.produced)}
    freed: dict[int, list[int]] = {}
    for storage, place in last.items():
        if storage >= 0 and storage not in outside:
            freed.setdefault(place + 1, []).append(storage)
    for place, op in enumerate(ops):
        op.frees = tuple(freed.get(place, ()))
    return tuple(freed.get(len(ops), ()))


def fuse_programs(graph: Graph) -> Graph:
    """The step with programs that were opened fused anew, as TorchInductor would generate them now."""
    if BEGIN not in graph.ops.names.items:
        return graph
    calls, opened = list[EditedCall](), list[_OpenedProgram]()
    inside: _OpenedProgram | None = None
    for row, op in enumerate(graph.ops):
        if op.name == BEGIN:
            inside = _OpenedProgram(op, len(calls))
            opened.append(inside)
        elif inside is not None and op.name != END:
            inside.ops.append(op)
            continue
        elif op.name == END:
            inside = None
        calls.append(EditedCall(op, row))
    for each in opened:
        each.close([call.op for call in calls])
    fused = _generated([each.program for each in opened], graph.title)
    numbers = count(1 + max(max(t.id, t.storage) for op in graph.ops for t in (*op.tensors, *op.produced)))
    by_begin = {each.begin: each.spliced(made, numbers) for each, made in zip(opened, fused)}
    made = [new for place, call in enumerate(calls) for new in by_begin.get(place, [call]) if new.op.name != END]
    return assemble(graph, made)


class _OpenedProgram:
    """The calls between two marks, which become one program."""

    def __init__(self, mark: Op, begin: int) -> None:
        self.mark, self.begin = mark, begin
        self.ops: list[Op] = []
        self.given: list[Tensor] = []
        self.returned: list[Tensor] = []
        self.program = Program()

    def close(self, others: Sequence[Op]) -> None:
        """Find what the calls take from outside, and what outlives them."""
        made: dict[int, Tensor] = {}
        given: dict[int, Tensor] = {}
        for op in self.ops:
            for tensor in op.tensors:
                if tensor.id not in made:
                    given.setdefault(tensor.id, tensor)
            made.update({tensor.id: tensor for tensor in op.produced if tensor.id not in given})
        used = {tensor.id for op in others for tensor in (*op.tensors, *op.produced)}
        freed = {storage for op in self.ops for storage in op.frees} | set(others[self.begin + 1].frees)
        ours = {tensor.storage for tensor in given.values()}
        returned = [tensor for tensor in made.values() if tensor.id in used]
        kept = ours | freed | {tensor.storage for tensor in returned}
        returned += {t.storage: t for t in made.values() if t.storage not in kept}.values()
        self.given, self.returned = list(given.values()), returned
        ids, storages = dict[int, int](), dict[int, int]()

        def local(tensor: Tensor) -> Tensor:
            number, storage = ids.setdefault(tensor.id, len(ids)), storages.setdefault(tensor.storage, len(storages))
            return replace(tensor, id=number, storage=storage)

        self.program = Program(
            tuple(map(local, self.given)),
            tuple(map(local, returned)),
            tuple(with_tensors(op, local) for op in self.ops),
        )

    def spliced(self, generated: tuple[Op, list[Op]], numbers: Iterator[int]) -> list[EditedCall]:
        """The generated calls with the step's own tensors, after the marks that a compiled program has."""
        mark, ops = generated
        ids, storages = dict[int, int](), dict[int, int]()
        for tensor in tensors_in(mark.kwargs["given"]):
            outer = self.given[int(str(mark.kwargs["places"][len(ids)]))]  # type: ignore[index]
            ids[tensor.id], storages[tensor.storage] = outer.id, outer.storage
        for tensor, outer in zip(tensors_in(list(mark.outputs)), self.returned):
            ids[tensor.id], storages[tensor.storage] = outer.id, outer.storage
        lasting = set(storages)

        def outside(tensor: Tensor) -> Tensor:
            for names, number in ((ids, tensor.id), (storages, tensor.storage)):
                if number not in names:
                    names[number] = next(numbers)
            return replace(tensor, id=ids[tensor.id], storage=storages[tensor.storage])

        made = [with_tensors(op, outside) for op in ops]
        for op, was in zip(made, ops):
            op.phase, op.module, op.thread, op.stream = self.mark.phase, self.mark.module, self.mark.thread, 0
            op.frees = tuple(storages[n] for n in was.frees if n in storages and n not in lasting)
        inner = sum(not op.is_side_call for op in made)
        head = replace(self.mark, name=COMPILED_REGION, args=(inner, len(self.given)), kwargs={}, outputs=())
        graphs = [Op(GRAPH_LAUNCH, (inner,), phase=self.mark.phase)] if self.mark.args[:1] == (1,) else []
        return [EditedCall(op) for op in (head, *graphs, *made)]


def _generated(programs: Sequence[Program], title: str) -> list[tuple[Op, list[Op]]]:
    """For each program the mark of its sketch, and the calls that were generated."""
    from foretrace.record.script import sketch_script
    from foretrace.replay.generate.code import regions_code

    forms = [
        "\n".join(to_lines([Op("", program.given, outputs=program.returned), *program.ops])) for program in programs
    ]
    distinct = {form: number for number, form in reversed(list(enumerate(forms)))}
    numbered = {number: programs[number] for number in sorted(distinct.values())}
    code, unwritable = regions_code(numbered, {}, {})
    for why in unwritable.values():
        raise ForetraceError(f"{title} can't be fused anew: {why}", ADVICE)
    with temporary_folder() as folder:
        script = folder / "fused.py"
        script.write_text(code.replace("from harness.host import device", "from torch import device") + _main(numbered))
        graph = sketch_script(script, device="cuda")
    if wrong := [note for note in graph.notes if note.startswith("torch.compile was left out")]:
        raise ForetraceError(f"{title} can't be fused anew: {wrong[0]}", ADVICE)
    ops = list(graph.ops)
    places = [place for place, op in enumerate(ops) if op.name == COMPILED_REGION]
    found: dict[int, tuple[Op, list[Op]]] = {}
    for place, (number, program) in zip(places, numbered.items()):
        mark, calls, left = ops[place], list[Op](), int(str(ops[place].args[0]))
        for op in ops[place + 1 :]:
            if left == 0:
                break
            left -= not op.is_side_call
            calls.append(op)
        sizes = [graph.storages[tensor.storage].nbytes >> MARKED for tensor in tensors_in(mark.kwargs.get("given"))]
        mark.kwargs["places"] = [size - 1 for size in sizes]
        shapes = [[tensor.shape for tensor in tensors_in(list(some))] for some in (mark.outputs, program.returned)]
        if shapes[0] != shapes[1] or not all(0 < size <= len(program.given) for size in sizes):
            raise ForetraceError(f"{title} can't be fused anew: a program returns other tensors", ADVICE)
        found[number] = mark, calls
    if len(places) != len(numbered):
        raise ForetraceError(f"{title} can't be fused anew: {len(places)} of {len(numbered)} programs", ADVICE)
    return [found[distinct[form]] for form in forms]


def _main(programs: dict[int, Program]) -> str:
    """The part of the script that calls each program once."""
    lines = ["", "", "def make_step():", "    calls = []"]
    for number, program in programs.items():
        lines.append(f"    run, given = torch.compile(region_{number}), []")
        for place, tensor in enumerate(tensors_in(list(program.given)), 1):
            where = "cpu" if tensor.device == "cpu" else "cuda:0"
            nbytes = (place << MARKED) + -(-end_in_storage(replace(tensor, offset=0)) // 16) * 16
            layout = f"{list(tensor.shape)}, {list(tensor.stride or contiguous_strides(tensor.shape))}"
            made = f"torch.empty({nbytes // max(tensor.itemsize, 1)}, dtype=torch.{tensor.dtype}, device={where!r})"
            lines.append(f"    given.append({made}.as_strided({layout}))")
        lines.append("    calls.append((run, given))")
    lines += ["    @torch.no_grad()", "    def step():", "        for run, given in calls:", "            run(*given)"]
    return "\n".join([*lines, "    return step"]) + "\n"
