"""diffusers: a latent diffusion UNet learns noise, with accelerate and EMA as in its text-to-image script."""

import argparse

import torch
from accelerate import Accelerator
from diffusers import DDPMScheduler, UNet2DConditionModel
from diffusers.training_utils import EMAModel, compute_snr

parser = argparse.ArgumentParser()
parser.add_argument("--full", action="store_true")
full = parser.parse_args().full

SMALL = {"sample_size": 8, "block_out_channels": (32, 64), "layers_per_block": 1, "cross_attention_dim": 32,
         "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"), "attention_head_dim": 8, "norm_num_groups": 8,
         "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D")}  # fmt: skip
LARGE = {"sample_size": 64, "cross_attention_dim": 768, "attention_head_dim": 8}


def main() -> None:
    torch.manual_seed(0)
    accelerator = Accelerator(mixed_precision="bf16" if full else "no")
    unet = UNet2DConditionModel(**(LARGE if full else SMALL))
    unet.enable_gradient_checkpointing()
    average = EMAModel(unet.parameters())
    noise_scheduler = DDPMScheduler(num_train_timesteps=1000)
    optimizer = torch.optim.AdamW(unet.parameters(), lr=1e-4)
    unet, optimizer = accelerator.prepare(unet, optimizer)
    average.to(accelerator.device)
    batch, width = (16, 768) if full else (2, 32)
    size = 64 if full else 8
    for _ in range(16):
        latents = torch.randn(batch, 4, size, size, device=accelerator.device)
        noise = torch.randn_like(latents)
        steps = torch.randint(0, 1000, (batch,), device=accelerator.device).long()
        noisy = noise_scheduler.add_noise(latents, noise, steps)
        text = torch.randn(batch, 77, width, device=accelerator.device)
        found = unet(noisy, steps, text, return_dict=False)[0]
        weights = compute_snr(noise_scheduler, steps).clamp(max=5.0)
        loss = (torch.nn.functional.mse_loss(found.float(), noise, reduction="none").mean((1, 2, 3)) * weights).mean()
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(unet.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        average.step(unet.parameters())
    print("loss", loss.item())


if __name__ == "__main__":
    main()
