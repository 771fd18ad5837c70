"""A pretended process group: one process acts as one rank of any world size, and its collectives move nothing.

PyTorch's ``fake`` backend does most of it. DDP needs more: its reducer wants futures that hold their tensors, and while
it rebuilds its buckets it reads small integer tensors in C++, so those must be real even in a sketch.
"""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import wraps
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from foretrace.record.watch.communication import c10d

MESH_METHODS = ("__init__", "__getitem__", "_flatten", "get_local_rank")
"""Methods of a device mesh that compute with small tensors of ranks, and read them: these must be real."""


@contextmanager
def pretended_group(world: int, rank: int) -> Iterator[PretendCollectives]:
    """Act as ``rank`` of ``world``: scripts that initialise a group find it initialised.

    >>> with pretended_group(world=64, rank=3):
    ...     dist.get_world_size(), dist.get_rank()
    (64, 3)
    """
    from torch.testing._internal.distributed.fake_pg import FakeStore

    # The pretended machine has one GPU, the first: whichever rank this is, that one is its own.
    variables = {"RANK": rank, "WORLD_SIZE": world, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": world}
    address = {"MASTER_ADDR": "localhost", "MASTER_PORT": "0"}
    with ExitStack() as stack:
        stack.enter_context(patch.dict(os.environ, {k: str(v) for k, v in variables.items()} | address))
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)
        stack.callback(_destroy)
        stack.enter_context(patch.object(dist, "init_process_group", lambda *_, **__: None))
        stack.enter_context(patch.object(dist, "destroy_process_group", lambda *_, **__: None))
        mode = stack.enter_context(PretendCollectives())
        stack.enter_context(patch.object(dist, "_verify_params_across_processes", lambda *_: None))
        rebuild = dist.Reducer._rebuild_buckets
        stack.enter_context(patch.object(dist.Reducer, "_rebuild_buckets", mode.with_real_integers(rebuild)))
        for name in MESH_METHODS:
            stack.enter_context(patch.object(DeviceMesh, name, _without_modes(getattr(DeviceMesh, name))))
        with suppress(ImportError, AttributeError):  # where FSDP2 has moved it, large worlds are slower
            from torch.distributed.fsdp._fully_shard import _fsdp_param

            stack.enter_context(patch.object(_fsdp_param, "_chunk_with_empty", Parts))
        stack.enter_context(patch.object(distributed_c10d, "_object_to_tensor", _pickled))
        with suppress(ImportError, AttributeError):  # before torch 2.12
            from torch.distributed.tensor import _dispatch

            # Sets the GPU's random state, and is an operator of higher order, of which modes know nothing.
            stack.enter_context(patch.object(_dispatch, "run_dtensor_rng_op", _run))
        for module in _importers_of(init_device_mesh):
            stack.enter_context(patch.object(module, "init_device_mesh", _without_modes(init_device_mesh)))
        yield mode


_destroy = dist.destroy_process_group


class Parts:
    """Chunks of a tensor, each cut on access: a rank under FSDP2 needs two, however many there are.

    >>> parts = Parts(torch.ones(10, 2), 4, dim=0)
    >>> [len(parts[rank]) for rank in range(4)] == [len(part) for part in torch.chunk(torch.ones(10, 2), 4)]
    True
    """

    def __init__(self, tensor: torch.Tensor, count: int, dim: int) -> None:
        self._tensor, self._dim = tensor, dim
        self._each = -(-tensor.size(dim) // count)

    def __getitem__(self, rank: int) -> torch.Tensor:
        start = rank * self._each
        length = min(self._each, self._tensor.size(self._dim) - start)
        return self._tensor.narrow(self._dim, start, length) if length > 0 else self._tensor.new_empty(0)


def _pickled(obj: Any, device: Any, group: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """An object that is sent, as constants: what a storage is made from is lost on fake tensors."""
    text = pickle.dumps(obj)
    return torch.tensor(list(text), dtype=torch.uint8).to(device), torch.tensor([len(text)]).to(device)


def _run(start: int, end: int, op: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a random op of a distributed tensor, whatever part of the random numbers is this rank's."""
    return op(*args, **kwargs)


def _importers_of(function: Any) -> list[Any]:
    """Loaded modules that have imported a function under its name."""
    name = function.__name__
    return [module for module in list(sys.modules.values()) if getattr(module, name, None) is function]


def _without_modes(method: Any) -> Any:
    """The method, run without fake tensors."""

    @wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        with _disable_current_modes():
            return method(*args, **kwargs)

    return call


class PretendCollectives(TorchDispatchMode):
    """Dispatch mode that gives each collective a completed work whose future holds its tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.reducing = False
        """Whether DDP's reducer is in use: it rebuilds its buckets in the second step."""
        self._real_integers = False

    def with_real_integers(self, function: Any) -> Any:
        """The function, with real int32 tensors while it runs."""

        def call(*args: Any, **kwargs: Any) -> Any:
            self.reducing = self._real_integers = True
            try:
                return function(*args, **kwargs)
            finally:
                self._real_integers = False

        return call

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._real_integers and _on_int32_only(args, kwargs):
            with _disable_current_modes():
                return func(*args, **kwargs)
        result = func(*args, **kwargs)
        if func.namespace != "c10d":
            return result
        results = result if isinstance(result, tuple) else (result,)
        if not (isinstance(results[-1], torch.ScriptObject) and "Work" in str(results[-1]._type())):
            return result
        work = _completed_work([leaf for leaf in tree_leaves(args) if isinstance(leaf, torch.Tensor)])
        return (*results[:-1], work) if isinstance(result, tuple) else work


def _on_int32_only(args: Any, kwargs: dict[str, Any]) -> bool:
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    return all(t.dtype == torch.int32 for t in tensors) if tensors else kwargs.get("dtype") == torch.int32


def _completed_work(tensors: list[torch.Tensor]) -> Any:
    future: Any = torch.futures.Future()
    future.set_result(tensors)
    return c10d._create_work_from_future(future).boxed()
