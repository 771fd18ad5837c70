"""What-ifs and sweeps: changes as users write them, made to a step or a job, predicted and compared."""

from foretrace._lazy import keep_callable, lazy_exports

__getattr__, __dir__ = lazy_exports(__name__)

keep_callable(__name__)
