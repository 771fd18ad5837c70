"""timm, as its train.py does: mixup, layer decay, EMA, GradScaler-less AMP, clipping, a schedule by epochs."""

import argparse

import numpy as np
import timm
import torch
from timm.data import Mixup
from timm.loss import SoftTargetCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler
from timm.utils import ModelEmaV3, NativeScaler

parser = argparse.ArgumentParser()
parser.add_argument("--full", action="store_true")
full = parser.parse_args().full


def main() -> None:
    torch.manual_seed(0)
    np.random.seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    name, size, batch = ("vit_base_patch16_224", 224, 256) if full else ("convnext_atto", 32, 4)
    model = timm.create_model(name, num_classes=1000 if full else 10, drop_path_rate=0.1).to(device)
    model = model.to(memory_format=torch.channels_last)
    optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-3, weight_decay=0.05, layer_decay=0.75)
    average = ModelEmaV3(model, decay=0.999)
    mixup = Mixup(mixup_alpha=0.8, cutmix_alpha=0.0, num_classes=model.num_classes, label_smoothing=0.1)
    schedule = CosineLRScheduler(optimizer, t_initial=10, warmup_t=2)
    scaler, loss_fn = NativeScaler(device=device.type), SoftTargetCrossEntropy()
    for step in range(12):
        images = torch.randn(batch, 3, size, size).to(device, memory_format=torch.channels_last, non_blocking=True)
        targets = torch.randint(0, model.num_classes, (batch,)).to(device, non_blocking=True)
        images, targets = mixup(images, targets.cpu()) if device.type == "cpu" else (images, targets)
        if targets.dim() == 1:
            targets = torch.nn.functional.one_hot(targets, model.num_classes).float()
        with torch.autocast(device.type, torch.bfloat16, enabled=full):
            loss = loss_fn(model(images), targets)
        scaler(loss, optimizer, clip_grad=1.0, parameters=model.parameters())
        optimizer.zero_grad()
        average.update(model, step=step)
        schedule.step(step)
    print("loss", loss.item())


if __name__ == "__main__":
    main()
