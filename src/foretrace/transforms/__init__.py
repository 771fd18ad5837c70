"""Transforms: functions from a step's graph to another graph, or to a job of many ranks, that never change their input.

>>> from foretrace import transforms
>>> from foretrace.graph import Graph, Op, OpTable, Tensor
>>> x, y = (Tensor((8, 4), "float32", "cpu", (4, 1), id=number, storage=number) for number in (0, 1))
>>> step = Graph(OpTable.of([Op("aten::relu", (x,), outputs=(y,), overload="default", phase="forward")]))
>>> larger = transforms.batch(step, 32)
>>> [tensor.shape for tensor in transforms.dtype(larger, "bf16").ops[0].produced], step.ops[0].outputs[0].shape
([(32, 4)], (8, 4))

==============  ======================================================================================================
``resize/``     batch, sequence length, widths, heads, embedding tables: sizes propagated through all calls
``numerics``    dtype of the whole step, autocast
``structure/``  depth, checkpointing, attention implementation, optimizer, inserted and removed ops
``fusion/``     fused lookups, element-wise chains, CUDA graphs, buckets and overlap of DDP
``parallel/``   the step of one rank as a job of many: data, FSDP, tensor, sequence, pipeline, expert, hybrid parallel
==============  ======================================================================================================

All take a recording, a sketch, or a trace with the arguments of its calls; what is about modules (depth, checkpointing,
widths, heads) needs calls that know theirs, which those of traces do not.

Shared machinery: ``step`` (flat steps to edit, and ids for new tensors), ``dataflow`` (calls over slots), ``inputs``
and ``weights`` (roles of tensors), ``blocks`` (repeated modules), ``draft`` (steps with collectives), ``meta_device``
(shapes and dtypes of results), ``composites`` and ``retrace`` (the forward sketched again).

To add a transform: write a function ``name(graph, ...) -> Graph`` in the module of the sub-package that fits, or in a
new one, by the pattern of ``step``; add it to ``__init__.pyi`` here, which exports it; name it in
``foretrace.whatif.grammar``, so that ``foretrace whatif --set name=value`` and sweeps know it; compare its result in a
test with a step that was sketched so from the start (``tests/transforms/agreement.py``).
"""

from foretrace._lazy import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__)
