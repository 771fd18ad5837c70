from foretrace.transforms.parallel.data import data_parallel as data_parallel
from foretrace.transforms.parallel.experts import expert_parallel as expert_parallel
from foretrace.transforms.parallel.fsdp import fully_sharded_data_parallel as fully_sharded_data_parallel
from foretrace.transforms.parallel.fsdp_reshard import shards as shards
from foretrace.transforms.parallel.hybrid import tables_on_ranks as tables_on_ranks
from foretrace.transforms.parallel.parallelize import ParallelConfig as ParallelConfig
from foretrace.transforms.parallel.pipeline import pipeline_parallel as pipeline_parallel
from foretrace.transforms.parallel.tensor import tensor_parallel as tensor_parallel
