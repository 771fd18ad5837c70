"""From graphs to answers: what a step took and why, and what it will take.

- What was measured: `observe` says it in the words of an `observation`. `host` cuts host time into segments,
  `dependencies` finds who waited for whom, `measured` makes a program of both, `critical` walks its critical path.
- What is predicted: `predict` leads from a graph to a `forecast`. `flat` takes its dispatcher calls, `step` prices them
  (`work` on the device, `waits` between both), `timetable` makes a program of them, and `predicted` a graph of its
  timeline, which is then looked at with the same eyes as one that was measured. `doubt` says how sure all that is.
- What both are told in: `totals` by op, family, phase and module, `device`, `memory`, `collectives`, `ranks`,
  `stragglers`. `check` and `difference` hold two of them side by side.
- Several ranks in one simulation: `jobs`.
"""
