"""Put on the path of a recorded job: attaches the recorder, then gives way to the site's own customisation."""

import importlib
import importlib.util
import sys
from pathlib import Path


def _attach() -> None:
    """Import foretrace from where this file lies: the job's own environment need not have it installed."""
    package = Path(__file__).resolve().parents[2]
    if "foretrace" not in sys.modules:
        spec = importlib.util.spec_from_file_location(
            "foretrace", package / "__init__.py", submodule_search_locations=[str(package)]
        )
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["foretrace"] = module
        spec.loader.exec_module(module)
    importlib.import_module("foretrace.record.watch.attach").attach()


def _give_way() -> None:
    here = str(Path(__file__).resolve().parent)
    sys.path[:] = [entry for entry in sys.path if entry != here]
    own = sys.modules.pop("sitecustomize", None)
    try:
        importlib.import_module("sitecustomize")
    except ImportError:
        if own is not None:
            sys.modules["sitecustomize"] = own


try:
    _attach()
except Exception as error:  # the job must run whatever happens to its recorder
    print(f"foretrace: can't record this process ({error})", file=sys.stderr)
_give_way()
