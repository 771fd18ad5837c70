"""Parallelism: the step of one rank as the job of many.

`parallelize.parallelize` combines all kinds. A kind is a module that takes the calls of a `draft` and a process group
and returns calls with collectives between them: `data` (DDP), `fsdp`, `tensor` (with `sequence`), `pipeline` (with
`schedules`), `experts`, and `hybrid` (embedding tables on ranks of their own).
`splitting` and `split_rules` follow a split dimension through the calls; `fsdp_reshard` changes the number of ranks of
an FSDP step.
"""
