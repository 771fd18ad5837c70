from foretrace import edits as edits
from foretrace import platform as platform
from foretrace import record as record
from foretrace import replay as replay
from foretrace import transforms as transforms
from foretrace import whatif as whatif
from foretrace.analysis.report import StepReport as StepReport
from foretrace.api import benchmark as benchmark
from foretrace.api import difference as difference
from foretrace.api import load as load
from foretrace.api import observe as observe
from foretrace.api import predict as predict
from foretrace.api import replay_step as replay_step
from foretrace.api import scaling as scaling
from foretrace.calibration.machine import calibrate_host as calibrate_host
from foretrace.errors import ForetraceError as ForetraceError
from foretrace.platform.registry import load_platform as load_platform
from foretrace.record.sketch.sketch import sketch as sketch
from foretrace.record.watch.session import record_step as record_step
from foretrace.record.watch.session import recording as recording
from foretrace.record.watch.session import step as step
from foretrace.report.notebook import as_html as as_html
from foretrace.sharding.planner import shard as shard
from foretrace.transforms.parallel.parallelize import parallelize as parallelize
from foretrace.whatif.sweep import sweep as sweep
from foretrace.whatif.what_if import what_if as what_if

__version__: str
