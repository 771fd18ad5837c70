from foretrace.cost_models.host.fitting import fit_host as fit_host
from foretrace.cost_models.host.pricing import HostCosts as HostCosts
from foretrace.cost_models.host.pricing import price_host as price_host
