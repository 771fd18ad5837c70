"""torchvision, as references/classification/train.py does: RegNet, AMP with a GradScaler, EMA, metrics on the host."""

import argparse

import torch
import torchvision
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--full", action="store_true")
full = parser.parse_args().full


def main() -> None:
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    build = torchvision.models.regnet_y_16gf if full else torchvision.models.regnet_y_400mf
    model = build(num_classes=1000 if full else 10).to(device)
    batch, size = (64, 224) if full else (4, 32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    scaler = torch.amp.GradScaler("cuda") if device.type == "cuda" else None
    average = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.999))
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    classes = model.fc.out_features
    for step in range(12):
        image, target = torch.randn(batch, 3, size, size), torch.randint(0, classes, (batch,))
        image, target = image.to(device), target.to(device)
        with torch.amp.autocast(device.type, enabled=scaler is not None):
            output = model(image)
            loss = criterion(output, target)
        optimizer.zero_grad()
        if scaler is not None:
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
        else:
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        if step % 4 == 0:
            average.update_parameters(model)
        _, found = output.topk(5, 1, True, True)
        correct = found.t().eq(target[None])
        print(f"top 1 {correct[:1].flatten().sum().item()}, top 5 {correct[:5].flatten().sum().item()}")
    print("loss", loss.item())


if __name__ == "__main__":
    main()
