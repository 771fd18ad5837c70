"""A GAN with two optimizers, as DCGAN of pytorch/examples with several updates of the critic for one of the generator."""

import argparse

import torch
import torch.nn as nn
import torch.optim as optim

parser = argparse.ArgumentParser()
parser.add_argument("--batchSize", type=int, default=64)
parser.add_argument("--nz", type=int, default=100)
parser.add_argument("--ngf", type=int, default=64)
parser.add_argument("--ndf", type=int, default=64)
parser.add_argument("--niter", type=int, default=25)
parser.add_argument("--critics", type=int, default=3)
parser.add_argument("--outf", default=".")
opt = parser.parse_args()
device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
nz, ngf, ndf, nc = opt.nz, opt.ngf, opt.ndf, 3


def weights_init(m):
    classname = m.__class__.__name__
    if classname.find("Conv") != -1:
        torch.nn.init.normal_(m.weight, 0.0, 0.02)
    elif classname.find("BatchNorm") != -1:
        torch.nn.init.normal_(m.weight, 1.0, 0.02)
        torch.nn.init.zeros_(m.bias)


def up(i, o, stride=2, padding=1):
    return [nn.ConvTranspose2d(i, o, 4, stride, padding, bias=False), nn.BatchNorm2d(o), nn.ReLU(True)]


def down(i, o):
    return [nn.Conv2d(i, o, 4, 2, 1, bias=False), nn.BatchNorm2d(o), nn.LeakyReLU(0.2, inplace=True)]


netG = nn.Sequential(
    *up(nz, ngf * 8, 1, 0),
    *up(ngf * 8, ngf * 4),
    *up(ngf * 4, ngf * 2),
    *up(ngf * 2, ngf),
    nn.ConvTranspose2d(ngf, nc, 4, 2, 1, bias=False),
    nn.Tanh(),
).to(device)
netG.apply(weights_init)
netD = nn.Sequential(
    nn.Conv2d(nc, ndf, 4, 2, 1, bias=False),
    nn.LeakyReLU(0.2, inplace=True),
    *down(ndf, ndf * 2),
    *down(ndf * 2, ndf * 4),
    *down(ndf * 4, ndf * 8),
    nn.Conv2d(ndf * 8, 1, 4, 1, 0, bias=False),
).to(device)
netD.apply(weights_init)
optimizerD = optim.Adam(netD.parameters(), lr=2e-4, betas=(0.5, 0.999))
optimizerG = optim.Adam(netG.parameters(), lr=2e-4, betas=(0.5, 0.999))
fixed_noise = torch.randn(opt.batchSize, nz, 1, 1, device=device)

for epoch in range(opt.niter):
    for i in range(1000):
        for _ in range(opt.critics):
            netD.zero_grad()
            real = torch.randn(opt.batchSize, nc, 64, 64).to(device)
            noise = torch.randn(opt.batchSize, nz, 1, 1, device=device)
            fake = netG(noise)
            errD = netD(fake.detach()).mean() - netD(real).mean()
            errD.backward()
            optimizerD.step()
        netG.zero_grad()
        errG = -netD(fake).mean()
        errG.backward()
        optimizerG.step()
        if i % 100 == 0:
            print(f"[{epoch}/{opt.niter}][{i}] Loss_D: {errD.item():.4f} Loss_G: {errG.item():.4f}")
    torch.save(netG.state_dict(), f"{opt.outf}/netG_epoch_{epoch}.pth")
    torch.save(netD.state_dict(), f"{opt.outf}/netD_epoch_{epoch}.pth")
