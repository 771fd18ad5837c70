from foretrace.calibration.host.measure import HostOutcome as HostOutcome
from foretrace.calibration.host.measure import measure_host as measure_host
from foretrace.calibration.host.steps import STEPS as STEPS
from foretrace.calibration.host.training import Training as Training
