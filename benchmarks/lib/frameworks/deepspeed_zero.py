"""DeepSpeed: ZeRO with two groups of weights, one of which decays."""

import argparse
import os

for name, value in {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "localhost",
                    "MASTER_PORT": "29533"}.items():  # fmt: skip
    os.environ.setdefault(name, value)

import deepspeed  # noqa: E402 - it reads the environment
import torch  # noqa: E402
from torch import nn  # noqa: E402

parser = argparse.ArgumentParser()
parser.add_argument("--full", action="store_true")
full = parser.parse_args().full


def main() -> None:
    torch.manual_seed(0)
    width, layers, rows = (4096, 16, 8192) if full else (64, 3, 32)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(layers)))
    decayed = [weight for weight in model.parameters() if weight.dim() > 1]
    others = [weight for weight in model.parameters() if weight.dim() < 2]
    optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}])
    config = {"train_micro_batch_size_per_gpu": rows, "zero_optimization": {"stage": 1}, "bf16": {"enabled": True},
              "zero_allow_untested_optimizer": True, "gradient_clipping": 1.0}  # fmt: skip
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    for _ in range(16):
        loss = engine(torch.randn(rows, width).to(engine.device, torch.bfloat16)).float().square().mean()
        engine.backward(loss)
        engine.step()
    print("loss", loss.item())


if __name__ == "__main__":
    main()
