"""A plan as Python: ``step.py``, one line a call, and ``inputs.py``, one line a tensor that is there before."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from foretrace.graph import Content, Tensor
from foretrace.graph.operators import LAYOUTS, NAMESPACES
from foretrace.graph.tensor import ITEMSIZE, contiguous_strides
from foretrace.replay.fillings import FACTS
from foretrace.replay.lines import Lines
from foretrace.replay.literals import Name, NotWritableError, device_name, literal
from foretrace.replay.plan import Input, Plan
from foretrace.replay.sections import Section, sections

WIDTH = 120


@dataclass(frozen=True)
class Code:
    """The text of a benchmark, and which calls it does not make, with the reason."""

    step: str
    inputs: str
    stand_ins: dict[int, str]


def code_of(plan: Plan, packages: Mapping[str, str] | None = None, modules: bool = True) -> Code:
    """The benchmark's own files.

    Parameters
    ----------
    plan
        What it consists of.
    packages
        Namespaces of operators that may be called besides PyTorch's own, and the package that brings each, or none.
    modules
        Whether comments name the modules that calls came from.
    """
    lines = Lines(tuple(packages or ()), modules, plan.groups)
    made = sections(plan)
    body: list[str] = []
    for section in made:
        body += ["", "", *_function(section, lines, section is made[-1], plan.tail_us)]
    lines.words.add("begin")
    step = [*_head(plan, lines, packages or {}), *body, "", "", *_step(made, plan)]
    return Code("\n".join(step) + "\n", _inputs(plan), lines.stand_ins)


def _head(plan: Plan, lines: Lines, packages: Mapping[str, str]) -> Iterator[str]:
    yield f'"""One training step as {len(plan.recorded)} calls, in the original\'s order, with its frees.'
    yield ""
    yield "The number behind a call is its own in calls.json. Edit the lines as you like: run.py runs what it finds."
    yield '"""'
    yield ""
    yield "from math import inf, nan  # noqa: F401"
    yield ""
    yield "import torch"
    used = {{**packages, **NAMESPACES}[namespace] for namespace in lines.namespaces} - {""}
    yield from (f"import {package}  # noqa: F401" for package in sorted(used))
    together = lines.opaque.words | (lines.words & {"wait"})
    yield from _imports("harness.host", (lines.words - together) | ({"device"} if lines.devices else set()))
    yield from _imports("harness.together", together)
    yield ""
    yield from (f"{namespace} = torch.ops.{namespace}" for namespace in sorted(lines.namespaces))
    yield from _devices(lines.devices)
    yield from lines.opaque.lines()


def _imports(module: str, words: Iterable[str]) -> list[str]:
    return [f"from {module} import {', '.join(sorted(words))}"] if words else []


def _devices(devices: Iterable[str]) -> list[str]:
    return [f'{device_name(text)} = device("{text}")' for text in sorted(devices)]


def _function(section: Section, lines: Lines, last: bool, tail_us: float) -> Iterator[str]:
    yield from _wrapped(f"def {section.name}(", ["kept", *section.inputs], "):")
    inner: list[str] = []
    if section.taken:
        inner += [*_wrapped("[", section.taken, "] = kept"), "kept.clear()"]
    for call, frees in zip(section.calls, section.frees):
        inner += lines.of(call, frees)
    if last:
        inner += lines.end(tail_us)
    if section.left:
        inner += _wrapped("kept += [", section.left, "]")
    yield from (f"    {line}" for line in inner or ["pass"])


def _step(made: Sequence[Section], plan: Plan) -> Iterator[str]:
    yield from _wrapped("def step(", [entry.name for entry in plan.inputs], "):")
    yield '    """The whole step. What it leaves behind is returned."""'
    yield "    kept = []"
    yield "    begin()"
    for section in made:
        yield from (f"    {line}" for line in _wrapped(f"{section.name}(", ["kept", *section.inputs], ")"))
    yield "    return kept"


def _wrapped(begin: str, names: Sequence[str], end: str) -> list[str]:
    """Names between brackets, on as many lines as they need."""
    text = f"{begin}{', '.join(names)}{end}"
    if len(text) <= WIDTH - 8:
        return [text]
    inside = textwrap.wrap(f"{', '.join(names)},", WIDTH - 12)
    return [begin, *(f"    {line}" for line in inside), end]


def _inputs(plan: Plan) -> str:
    on_memory: dict[Name, int] = {}
    for entry in plan.inputs:
        if entry.memory is not None:
            on_memory[entry.memory.name] = on_memory.get(entry.memory.name, 0) + 1
    lines: list[str] = []
    made: set[Name] = set()
    words: set[str] = set()
    devices: set[str] = set()
    for entry in plan.inputs:
        for line in _input(entry, on_memory, made):
            lines.append(line)
            words.add(line.partition(" = ")[2].partition("(")[0])
        devices.add(entry.tensor.device or "cpu")
    kinds = {entry.content.kind for entry in plan.inputs if not entry.parts}
    kinds |= {content.kind for content in plan.received.values()}
    if plan.received:
        lines += ["", "# What other ranks send, where one plays alone: by the number of the call that receives it."]
        brought = (f"{int(number)}: {content_text(content)}" for number, content in plan.received.items())
        lines += _wrapped("received = {", list(brought), "}")
    head = [
        '"""What is there before the step: descriptions, no data. Edit sizes and contents as you like."""',
        "",
        "from math import inf, nan  # noqa: F401",
        "",
        "import torch",
        *_imports("harness.contents", kinds),
        *_imports("harness.host", ["device"]),
        *_imports("harness.inputs", words),
        "",
        *_devices(devices),
        "",
    ]
    return "\n".join([*head, *lines]) + "\n"


def _input(entry: Input, on_memory: dict[Name, int], made: set[Name]) -> Iterator[str]:
    tensor = entry.tensor
    where = device_name(tensor.device or "cpu")
    dtype, shape = _dtype(tensor), _numbers(tensor.shape)
    if tensor.layout not in LAYOUTS:
        raise NotWritableError(f"a layout {tensor.layout!r}")
    if tensor.layout != "strided":
        indices, values = entry.parts if len(entry.parts) == 2 else ("None", "None")
        yield f"{entry.name} = sparse({indices}, {values}, {shape}, {dtype}, {where})"
        return
    content = content_text(entry.content)
    memory = entry.memory
    assert memory is not None
    dense = tensor.offset == 0 and tensor.stride in (None, contiguous_strides(tensor.shape))
    if on_memory[memory.name] == 1 and dense and memory.nbytes == tensor.nbytes:
        yield f"{entry.name} = tensor({shape}, {dtype}, {where}, {content})"
        return
    if memory.name not in made:
        made.add(memory.name)
        yield f"{memory.name} = memory({literal(int(memory.nbytes))}, {where})"
    stride = _numbers(tensor.stride or contiguous_strides(tensor.shape))
    yield f"{entry.name} = view({memory.name}, {shape}, {stride}, {literal(int(tensor.offset))}, {dtype}, {content})"


def _dtype(tensor: Tensor) -> str:
    if tensor.dtype not in ITEMSIZE:
        raise NotWritableError(f"a tensor of {tensor.dtype!r}")
    return f"torch.{tensor.dtype}"


def _numbers(numbers: Iterable[int]) -> str:
    return literal([int(number) for number in numbers])


def content_text(content: Content) -> str:
    """How a content is written.

    >>> content_text(Content("normal", {"mean": 0.0, "std": 0.125}))
    'normal(mean=0.0, std=0.125)'
    """
    if content.kind not in FACTS or not set(content.facts) <= {*FACTS[content.kind][0], *FACTS[content.kind][1]}:
        raise NotWritableError(f"a content {content.kind!r}")
    facts = (f"{name}={literal(value)}" for name, value in content.facts.items())  # type: ignore[arg-type]
    return f"{content.kind}({', '.join(facts)})"
