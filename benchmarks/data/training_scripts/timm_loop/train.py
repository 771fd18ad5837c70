"""Trains an image classifier as timm's train.py does: argparse, create_model, create_optimizer_v2, AMP, EMA, a scheduler."""

import argparse
import logging
import os
import time
from collections import OrderedDict
from contextlib import suppress
from functools import partial

import torch
from timm.data import Mixup
from timm.loss import SoftTargetCrossEntropy
from timm.models import create_model
from timm.optim import create_optimizer_v2
from timm.scheduler import create_scheduler_v2
from timm.utils import AverageMeter, ModelEmaV2, NativeScaler, dispatch_clip_grad, random_seed, setup_default_logging

_logger = logging.getLogger("train")
parser = argparse.ArgumentParser(description="PyTorch ImageNet Training")
parser.add_argument("--model", default="resnet50", type=str)
parser.add_argument("--num-classes", type=int, default=1000)
parser.add_argument("--img-size", type=int, default=224)
parser.add_argument("-b", "--batch-size", type=int, default=128)
parser.add_argument("-j", "--workers", type=int, default=4)
parser.add_argument("--opt", default="adamw", type=str)
parser.add_argument("--lr", type=float, default=1e-3)
parser.add_argument("--weight-decay", type=float, default=0.05)
parser.add_argument("--sched", type=str, default="cosine")
parser.add_argument("--epochs", type=int, default=300)
parser.add_argument("--warmup-epochs", type=int, default=5)
parser.add_argument("--drop-path", type=float, default=None)
parser.add_argument("--mixup", type=float, default=0.0)
parser.add_argument("--clip-grad", type=float, default=None)
parser.add_argument("--amp", action="store_true")
parser.add_argument("--amp-dtype", default="float16", type=str)
parser.add_argument("--channels-last", action="store_true")
parser.add_argument("--model-ema", action="store_true")
parser.add_argument("--log-interval", type=int, default=50)
parser.add_argument("--output", default="./output/train", type=str)
parser.add_argument("--seed", type=int, default=42)


class FakeImageNet(torch.utils.data.Dataset):
    def __init__(self, size, classes):
        self.size, self.classes = size, classes

    def __len__(self):
        return 1_281_167

    def __getitem__(self, index):
        return torch.randint(0, 256, (3, self.size, self.size), dtype=torch.uint8), index % self.classes


def main():
    setup_default_logging()
    args = parser.parse_args()
    if torch.cuda.is_available():
        torch.backends.cuda.matmul.allow_tf32 = True
        torch.backends.cudnn.benchmark = True
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    random_seed(args.seed, 0)
    model = create_model(args.model, pretrained=False, num_classes=args.num_classes, drop_path_rate=args.drop_path)
    _logger.info(f"Model {args.model} created, param count:{sum(m.numel() for m in model.parameters())}")
    model.to(device=device)
    if args.channels_last:
        model.to(memory_format=torch.channels_last)
    optimizer = create_optimizer_v2(model, opt=args.opt, lr=args.lr, weight_decay=args.weight_decay)
    amp_autocast, loss_scaler = suppress, None
    if args.amp:
        dtype = getattr(torch, args.amp_dtype)
        amp_autocast = partial(torch.autocast, device_type=device.type, dtype=dtype)
        if dtype == torch.float16:
            loss_scaler = NativeScaler()
    model_ema = ModelEmaV2(model, decay=0.9998) if args.model_ema else None
    loader = torch.utils.data.DataLoader(
        FakeImageNet(args.img_size, args.num_classes),
        batch_size=args.batch_size,
        shuffle=True,
        num_workers=args.workers,
        pin_memory=True,
        drop_last=True,
        persistent_workers=True,
    )
    mixup_fn = Mixup(mixup_alpha=args.mixup, num_classes=args.num_classes) if args.mixup else None
    train_loss_fn = (SoftTargetCrossEntropy() if mixup_fn else torch.nn.CrossEntropyLoss()).to(device)
    lr_scheduler, num_epochs = create_scheduler_v2(
        optimizer,
        sched=args.sched,
        num_epochs=args.epochs,
        warmup_epochs=args.warmup_epochs,
        updates_per_epoch=len(loader),
    )
    os.makedirs(args.output, exist_ok=True)
    for epoch in range(num_epochs):
        metrics = train_one_epoch(
            epoch, model, loader, optimizer, train_loss_fn, args, device, lr_scheduler, amp_autocast, loss_scaler,
            model_ema, mixup_fn,
        )  # fmt: skip
        lr_scheduler.step(epoch + 1, metrics["loss"])
        torch.save(model.state_dict(), os.path.join(args.output, "last.pth.tar"))


def train_one_epoch(
    epoch, model, loader, optimizer, loss_fn, args, device, lr_scheduler, amp_autocast, loss_scaler, model_ema, mixup_fn
):
    losses_m, batch_time_m = AverageMeter(), AverageMeter()
    mean = torch.tensor([0.485 * 255, 0.456 * 255, 0.406 * 255], device=device).view(1, 3, 1, 1)
    std = torch.tensor([0.229 * 255, 0.224 * 255, 0.225 * 255], device=device).view(1, 3, 1, 1)
    model.train()
    end = time.time()
    num_updates = epoch * len(loader)
    for batch_idx, (input, target) in enumerate(loader):
        input, target = input.to(device, non_blocking=True), target.to(device, non_blocking=True)
        input = input.float().sub_(mean).div_(std)
        if mixup_fn is not None:
            input, target = mixup_fn(input, target)
        if args.channels_last:
            input = input.contiguous(memory_format=torch.channels_last)
        with amp_autocast():
            output = model(input)
            loss = loss_fn(output, target)
        optimizer.zero_grad()
        if loss_scaler is not None:
            loss_scaler(loss, optimizer, clip_grad=args.clip_grad, parameters=model.parameters())
        else:
            loss.backward()
            if args.clip_grad is not None:
                dispatch_clip_grad(model.parameters(), value=args.clip_grad)
            optimizer.step()
        if model_ema is not None:
            model_ema.update(model)
        if device.type == "cuda":
            torch.cuda.synchronize()
        num_updates += 1
        batch_time_m.update(time.time() - end)
        if batch_idx % args.log_interval == 0:
            lr = sum(group["lr"] for group in optimizer.param_groups) / len(optimizer.param_groups)
            losses_m.update(loss.item(), input.size(0))
            _logger.info(
                f"Train: {epoch} [{batch_idx:>4d}/{len(loader)}] Loss: {losses_m.val:#.4g} ({losses_m.avg:#.3g})  "
                f"Time: {batch_time_m.val:.3f}s  LR: {lr:.3e}"
            )
        lr_scheduler.step_update(num_updates=num_updates, metric=losses_m.avg)
        end = time.time()
    return OrderedDict([("loss", losses_m.avg)])


if __name__ == "__main__":
    main()
