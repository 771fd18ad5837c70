from foretrace.cost_models.collectives.contention import gpu_contention as gpu_contention
from foretrace.cost_models.collectives.pricing import Range as Range
from foretrace.cost_models.collectives.pricing import assumptions as assumptions
from foretrace.cost_models.collectives.pricing import price_collective as price_collective
from foretrace.cost_models.host.pricing import HostCosts as HostCosts
from foretrace.cost_models.host.pricing import price_host as price_host
from foretrace.cost_models.kernels.pricing import KernelCosts as KernelCosts
from foretrace.cost_models.kernels.pricing import price_kernels as price_kernels
