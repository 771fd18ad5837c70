from foretrace.cost_models.kernels.estimators.dataset import Dataset as Dataset
from foretrace.cost_models.kernels.estimators.dataset import dataset_of as dataset_of
from foretrace.cost_models.kernels.estimators.forests import Forest as Forest
from foretrace.cost_models.kernels.estimators.residual import Blend as Blend
from foretrace.cost_models.kernels.estimators.residual import ResidualNet as ResidualNet
from foretrace.cost_models.kernels.estimators.residual import ResidualTrees as ResidualTrees
from foretrace.cost_models.kernels.estimators.residual import ScaledRoofline as ScaledRoofline
