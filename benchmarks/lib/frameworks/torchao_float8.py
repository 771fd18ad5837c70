"""torchao: linear layers in float8, scaled dynamically."""

import argparse

import torch
from torch import nn
from torchao.float8 import Float8LinearConfig, convert_to_float8_training

parser = argparse.ArgumentParser()
parser.add_argument("--full", action="store_true")
full = parser.parse_args().full


def main() -> None:
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    width, layers, rows = (4096, 16, 16384) if full else (64, 2, 32)
    blocks = [nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)) for _ in range(layers)]
    model = nn.Sequential(*blocks).to(device, torch.bfloat16)
    convert_to_float8_training(model, config=Float8LinearConfig(emulate=device.type == "cpu"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(12):
        loss = model(torch.randn(rows, width, device=device, dtype=torch.bfloat16)).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print("loss", loss.item())


if __name__ == "__main__":
    main()
