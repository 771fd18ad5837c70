"""FBGEMM's table-batched lookups on a pretended GPU: one kernel for all tables, and a backward that updates their rows.

FBGEMM's CPU build has the functions that modules call, and they ask in C++ for tensors of a GPU. Here they make the two
calls that they make on one: the lookup, and in the backward pass the update by the optimizer of the tables.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from foretrace.graph.operators import FBGEMM

LOOKUP = re.compile(
    rf"{FBGEMM}(?:(?:split|ssd)_embedding_codegen_lookup_(?P<optimizer>\w+)_function_pt2|"
    r"(?P<dense>dense)_embedding_codegen_lookup_function)$"
)
"""Names of the functions that modules call."""
FORWARD = "{split}_embedding_{nobag}codegen_forward_{weighted}{vbe}_pt2_wrapper"
BACKWARD = "{split}_embedding_{nobag}backward_codegen_{optimizer}_{weighted}{vbe}_pt2_wrapper"
WEIGHT_GRADIENT = "{split}_embedding_codegen_grad_indice_weights{vbe}_pt2_wrapper"
CALLS = re.compile(
    rf"{FBGEMM}(split|ssd|dense)_embedding_(nobag_)?(codegen_forward|backward_codegen|codegen_grad_indice_weights)"
)
"""Names of the calls that those make on a GPU."""
STATES = ("momentum1", "momentum2", "row_counter", "prev_iter")
"""Lists of an optimizer's tensors: on the device, in unified memory, their placements and offsets."""
NO_POOLING = 2
"""The pooling mode in which each id gives a row."""
DTYPES = {0: torch.float32, 1: torch.float16, 2: torch.int8, 5: torch.bfloat16}
"""FBGEMM's numbers of dtypes."""
UPDATED = "Tensor grad_output, Tensor(a!) dev_weights, Tensor D_offsets, Tensor hash_size_cumsum, Tensor indices, "


class Lookup(NamedTuple):
    """What a module calls, with its arguments by name."""

    optimizer: str
    """The optimizer that updates rows in the backward pass; ``dense`` where it makes a gradient of the whole table."""
    given: dict[str, Any]

    @property
    def dense(self) -> bool:
        """Whether the backward pass makes a gradient as large as the tables."""
        return self.optimizer == "dense"

    @property
    def weights(self) -> Tensor:
        """The rows of all tables, one after the other."""
        held: Tensor = self.given["dev_weights"] if self.dense else self.given["weights"][0]
        return held

    def name(self, pattern: str) -> str:
        """The name of one of its calls on a GPU."""
        pooled = self.given["pooling_mode"] != NO_POOLING
        return pattern.format(
            split="dense" if self.dense else "split",
            nobag="" if pooled else "nobag_",
            optimizer=self.optimizer,
            weighted="unweighted" if self.given.get("indice_weights") is None else "weighted",
            vbe="_vbe" if self.given.get("max_B", -1) >= 0 else "",
        )

    def arguments(self, schema: Any, gradient: Tensor | None) -> dict[str, Any]:
        """The arguments of a call by name; those of no weight for the time are what the schema has, or nothing."""
        empty = self.weights.new_empty(0)
        known = {name: value for name, value in self.given.items() if value is not None} | {"grad_output": gradient}
        known["D"] = self.given["max_D"]
        held = zip(("dev_weights", "uvm_weights", "weights_placements", "weights_offsets", "lxu_cache_weights"),
                   () if self.dense else self.given["weights"])  # fmt: skip
        known |= dict(held)
        for state in STATES:
            parts = ("dev", "uvm", "placements", "offsets")
            known |= {f"{state}_{part}": tensor for part, tensor in zip(parts, self.given.get(state) or ())}
        found = {}
        for argument in schema.arguments:
            value = known.get(argument.name)
            if value is not None:
                found[argument.name] = value
            elif not argument.has_default_value():
                found[argument.name] = empty if "Tensor" in str(argument.type) else _nothing(str(argument.type))
        return found


def _nothing(kind: str) -> Any:
    return False if kind == "bool" else 0.0 if kind == "float" else 0


def lookup_of(packet: Any, args: Any, kwargs: dict[str, Any]) -> Lookup | None:
    """The lookup that a call of a module's is; None for other calls."""
    found = LOOKUP.match(packet._qualified_op_name)
    if found is None:
        return None
    given = dict(zip((argument.name for argument in packet.default._schema.arguments), args)) | kwargs
    return Lookup(found["optimizer"] or found["dense"], given)


def looked_up(lookup: Lookup) -> Any:
    """The embeddings of a lookup."""
    given = lookup.given
    trained = lookup.weights if lookup.dense else given.get("placeholder_autograd_tensor")
    return BatchedLookup.apply(trained, given.get("indice_weights"), lookup)


class BatchedLookup(torch.autograd.Function):
    """A lookup in all tables, and its backward."""

    @staticmethod
    def forward(ctx: Any, trained: Any, weights: Any, lookup: Lookup) -> Any:
        """The embeddings: a row for each example, with those of all tables beside each other."""
        ctx.lookup = lookup
        with torch._C._AutoDispatchBelowAutograd():
            func = _operator(lookup.name(FORWARD), UPDATED.replace("Tensor grad_output, Tensor(a!)", "Tensor")
                             + "Tensor offsets, SymInt total_D, SymInt max_D, int pooling_mode, Tensor indice_weights, "
                             "int output_dtype, SymInt vbe_output_size")  # fmt: skip
            return func(**lookup.arguments(func._schema, None))

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Update the rows that were looked up, or make a gradient of the table; the gradient of the ids' weights."""
        lookup: Lookup = ctx.lookup
        of_weights = made = None
        if lookup.optimizer == "none":
            return None, None, None
        states = "".join(f"Tensor({letter}!) {state}_dev, " for letter, state in zip("bcde", STATES)
                         if lookup.given.get(state))  # fmt: skip
        with torch._C._AutoDispatchBelowAutograd():
            if ctx.needs_input_grad[1]:
                func = _operator(lookup.name(WEIGHT_GRADIENT), "Tensor grad_output, Tensor dev_weights, Tensor indices")
                of_weights = func(**lookup.arguments(func._schema, gradients[0]))
            func = _operator(lookup.name(BACKWARD), f"{UPDATED}{states}Tensor offsets, SymInt max_D, int pooling_mode")
            made = func(**lookup.arguments(func._schema, gradients[0]))
        return made if lookup.dense else None, of_weights, None


BatchedLookup._backward_cls.__name__ = "CppNode<SplitLookupFunction_Op_pt2>"


@cache
def _operator(name: str, arguments: str) -> Any:
    """An operator of FBGEMM; declared where the CPU build lacks it."""
    if not hasattr(torch.ops.fbgemm, name):
        library = torch.library.Library("fbgemm", "FRAGMENT")
        library.define(f"{name}({arguments}) -> Tensor")
        _declared.append(library)
    return getattr(torch.ops.fbgemm, name).default


_declared: list[torch.library.Library] = []
"""Operators exist as long as the library that declares them."""


def result_on_gpu(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """What a lookup's call on a GPU gives; None for other calls."""
    if not CALLS.match(func._schema.name):
        return None
    given = dict(zip((argument.name for argument in func._schema.arguments), args)) | kwargs
    name, weights, ids = func._schema.name, given["dev_weights"], given["indices"]
    if "grad_indice_weights" in name:
        return ids.new_empty(ids.shape, dtype=torch.float32)
    if "backward" in name:
        return weights.new_empty(weights.shape if "dense" in name else 0)
    dtype = DTYPES.get(given.get("output_dtype", 0), torch.float32)
    if "nobag" in name:
        return weights.new_empty((ids.numel(), given.get("D", given.get("max_D"))), dtype=dtype)
    if "vbe" in name:
        return weights.new_empty(given["vbe_output_size"], dtype=dtype)
    bags = (given["offsets"].numel() - 1) // max(1, given["D_offsets"].numel() - 1)
    return weights.new_empty((bags, given["total_D"]), dtype=dtype)
