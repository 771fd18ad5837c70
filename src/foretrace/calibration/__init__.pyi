from foretrace.calibration.fabric import make_fabric as make_fabric
from foretrace.calibration.fitting import fit as fit
from foretrace.calibration.machine import Outcome as Outcome
from foretrace.calibration.machine import calibrate as calibrate
from foretrace.calibration.machine import calibrate_host as calibrate_host
