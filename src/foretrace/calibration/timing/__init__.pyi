from foretrace.calibration.timing.collectives import measure_collectives as measure_collectives
from foretrace.calibration.timing.compiled_kernels import measure_compiled as measure_compiled
from foretrace.calibration.timing.device import device_facts as device_facts
from foretrace.calibration.timing.device import find_device as find_device
from foretrace.calibration.timing.kernels import MeasuredFamily as MeasuredFamily
from foretrace.calibration.timing.kernels import measure_families as measure_families
from foretrace.calibration.timing.timer import time_cases as time_cases
from foretrace.calibration.timing.workers import Workers as Workers
