"""torchtitan: its Llama 3, sharded by FSDP2 in bfloat16, with weights made on the meta device first."""

import argparse
import os

for name, value in {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "localhost",
                    "MASTER_PORT": "29535"}.items():  # fmt: skip
    os.environ.setdefault(name, value)

import torch  # noqa: E402 - it reads the environment
import torch.distributed as dist  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.nn.attention.flex_attention import create_block_mask  # noqa: E402
from torchtitan.distributed.fsdp import apply_fsdp_to_decoder  # noqa: E402
from torchtitan.models.llama3 import model_registry  # noqa: E402

parser = argparse.ArgumentParser()
parser.add_argument("--full", action="store_true")
full = parser.parse_args().full


def main() -> None:
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    config = model_registry("8B" if full else "debugmodel").model
    with torch.device("meta"):
        model = config.build()
    mesh = init_device_mesh(device.type, (dist.get_world_size(),), mesh_dim_names=("fsdp",))
    apply_fsdp_to_decoder(model, mesh, param_dtype=torch.bfloat16, reduce_dtype=torch.float32, pp_enabled=False)
    model.to_empty(device=device)
    with torch.no_grad():
        model.init_states()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=device.type == "cuda")
    batch, length = (1, 8192) if full else (2, 64)
    mask = create_block_mask(lambda b, h, query, key: query >= key, None, None, length, length, device=device)
    for _ in range(10):
        ids = torch.randint(0, config.vocab_size, (batch, length + 1), device=device)
        loss = torch.nn.functional.cross_entropy(
            model(ids[:, :-1], attention_masks=mask).flatten(0, 1).float(), ids[:, 1:].flatten()
        )
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    print("loss", loss.item())


if __name__ == "__main__":
    main()
