"""The small training steps that a host is measured by: none is a model that people train, all use the same calls."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from foretrace.platform.measure import host_images, host_sequences, host_tables
from foretrace.platform.measure.host_training import Training

STEPS: dict[str, Callable[[Any], Training]] = {
    "classifier sgd": partial(host_tables.classifier, optimizer="sgd"),
    "classifier momentum": partial(host_tables.classifier, optimizer="momentum", layers=24),
    "classifier adam": partial(host_tables.classifier, optimizer="adam", activation=nn.GELU),
    "classifier adamw": partial(host_tables.classifier, optimizer="adamw", layers=24),
    "classifier one by one": partial(host_tables.classifier, optimizer="adamw one by one", layers=4),
    "classifier fused adamw": partial(host_tables.classifier, optimizer="fused adamw", layers=24, activation=nn.SiLU),
    "classifier fused sgd": partial(host_tables.classifier, optimizer="fused sgd"),
    "bare classifier": partial(host_tables.bare_classifier, optimizer="adam"),
    "bare classifier sgd": partial(host_tables.bare_classifier, optimizer="sgd"),
    "two towers": partial(host_tables.two_towers, bags=3, sparse=True),
    "tall towers": partial(host_tables.two_towers, bags=10, sparse=True),
    "dense towers": partial(host_tables.two_towers, bags=4, sparse=False),
    "crossed features": host_tables.crossed_features,
    "messages": host_tables.messages,
    "contrast": partial(host_tables.contrast, autocast=False),
    "contrast autocast": partial(host_tables.contrast, autocast=True),
    "residual": host_images.residual,
    "residual autocast": partial(host_images.residual, autocast=True, optimizer="adamw"),
    "residual channels last": partial(host_images.residual, layout=torch.channels_last),
    "gated": host_images.gated,
    "gated autocast": partial(host_images.gated, autocast=True),
    "mixer": host_images.mixer,
    "mixer autocast": partial(host_images.mixer, autocast=True, optimizer="momentum"),
    "u-net": host_images.u_net,
    "u-net autocast": partial(host_images.u_net, autocast=True),
    "autoencoder": host_images.autoencoder,
    "turning": partial(host_sequences.attention, kind="turning", autocast=False),
    "turning recomputed": partial(host_sequences.attention, kind="turning", autocast=False, recompute=True, layers=2),
    "turning autocast": partial(host_sequences.attention, kind="turning", autocast=True),
    "joined": partial(host_sequences.attention, kind="joined", autocast=False, optimizer="fused adamw"),
    "joined autocast": partial(host_sequences.attention, kind="joined", autocast=True),
    "joined recomputed": partial(host_sequences.attention, kind="joined", autocast=True, recompute=True),
    "spelled out": partial(host_sequences.attention, kind="spelled out", autocast=False),
    "spelled out autocast": partial(host_sequences.attention, kind="spelled out", autocast=True, optimizer="momentum"),
    "verbose": partial(host_sequences.verbose, autocast=False),
    "verbose autocast": partial(host_sequences.verbose, autocast=True),
    "verbose sgd": partial(host_sequences.verbose, autocast=True, optimizer="sgd"),
    "library": partial(host_sequences.library, autocast=False, decoder=False),
    "library autocast": partial(host_sequences.library, autocast=True, decoder=False),
    "library decoder": partial(host_sequences.library, autocast=False, decoder=True),
}
"""By name: how each is built on a device."""
