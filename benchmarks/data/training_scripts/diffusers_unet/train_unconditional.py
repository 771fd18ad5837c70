"""Trains an unconditional diffusion model as diffusers' example does: UNet2DModel, DDPMScheduler, EMA and accelerate."""

import argparse
import inspect
import math
import os

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.logging import get_logger
from diffusers import DDPMScheduler, UNet2DModel
from diffusers.optimization import get_scheduler
from diffusers.training_utils import EMAModel
from tqdm.auto import tqdm

logger = get_logger(__name__, log_level="INFO")


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--resolution", type=int, default=64)
    parser.add_argument("--train_batch_size", type=int, default=16)
    parser.add_argument("--num_epochs", type=int, default=100)
    parser.add_argument("--gradient_accumulation_steps", type=int, default=1)
    parser.add_argument("--learning_rate", type=float, default=1e-4)
    parser.add_argument("--lr_warmup_steps", type=int, default=500)
    parser.add_argument("--mixed_precision", type=str, default="no")
    parser.add_argument("--use_ema", action="store_true")
    parser.add_argument("--output_dir", type=str, default="ddpm-model-64")
    parser.add_argument("--checkpointing_steps", type=int, default=500)
    parser.add_argument("--ddpm_num_steps", type=int, default=1000)
    return parser.parse_args()


class Images(torch.utils.data.Dataset):
    def __init__(self, resolution):
        self.resolution = resolution

    def __len__(self):
        return 8189

    def __getitem__(self, index):
        return {"input": torch.rand(3, self.resolution, self.resolution) * 2 - 1}


def main(args):
    accelerator = Accelerator(
        gradient_accumulation_steps=args.gradient_accumulation_steps, mixed_precision=args.mixed_precision
    )
    if accelerator.is_main_process:
        os.makedirs(args.output_dir, exist_ok=True)
    model = UNet2DModel(
        sample_size=args.resolution,
        in_channels=3,
        out_channels=3,
        layers_per_block=2,
        block_out_channels=(128, 128, 256, 256, 512, 512),
        down_block_types=("DownBlock2D",) * 4 + ("AttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "AttnUpBlock2D") + ("UpBlock2D",) * 4,
    )
    if args.use_ema:
        ema_model = EMAModel(model.parameters(), decay=0.9999, model_cls=UNet2DModel, model_config=model.config)
    accepts = "prediction_type" in set(inspect.signature(DDPMScheduler.__init__).parameters.keys())
    extra = {"prediction_type": "epsilon"} if accepts else {}
    noise_scheduler = DDPMScheduler(num_train_timesteps=args.ddpm_num_steps, beta_schedule="linear", **extra)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate, betas=(0.95, 0.999), weight_decay=1e-6)
    loader = torch.utils.data.DataLoader(
        Images(args.resolution), batch_size=args.train_batch_size, shuffle=True, num_workers=0
    )
    lr_scheduler = get_scheduler(
        "cosine",
        optimizer=optimizer,
        num_warmup_steps=args.lr_warmup_steps * args.gradient_accumulation_steps,
        num_training_steps=len(loader) * args.num_epochs,
    )
    model, optimizer, loader, lr_scheduler = accelerator.prepare(model, optimizer, loader, lr_scheduler)
    if args.use_ema:
        ema_model.to(accelerator.device)
    if accelerator.is_main_process:
        accelerator.init_trackers("train_unconditional")
    num_update_steps_per_epoch = math.ceil(len(loader) / args.gradient_accumulation_steps)
    global_step = 0
    for epoch in range(args.num_epochs):
        model.train()
        progress_bar = tqdm(total=num_update_steps_per_epoch, disable=not accelerator.is_local_main_process)
        progress_bar.set_description(f"Epoch {epoch}")
        for step, batch in enumerate(loader):
            clean_images = batch["input"]
            noise = torch.randn(clean_images.shape, dtype=clean_images.dtype, device=clean_images.device)
            bsz = clean_images.shape[0]
            timesteps = torch.randint(
                0, noise_scheduler.config.num_train_timesteps, (bsz,), device=clean_images.device
            ).long()
            noisy_images = noise_scheduler.add_noise(clean_images, noise, timesteps)
            with accelerator.accumulate(model):
                model_output = model(noisy_images, timesteps).sample
                loss = F.mse_loss(model_output.float(), noise.float())
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                lr_scheduler.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                if args.use_ema:
                    ema_model.step(model.parameters())
                progress_bar.update(1)
                global_step += 1
                if accelerator.is_main_process and global_step % args.checkpointing_steps == 0:
                    accelerator.save_state(os.path.join(args.output_dir, f"checkpoint-{global_step}"))
            logs = {"loss": loss.detach().item(), "lr": lr_scheduler.get_last_lr()[0], "step": global_step}
            progress_bar.set_postfix(**logs)
            accelerator.log(logs, step=global_step)
        progress_bar.close()
        accelerator.wait_for_everyone()
    accelerator.end_training()


if __name__ == "__main__":
    main(parse_args())
