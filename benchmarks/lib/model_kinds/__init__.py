"""More models at random, of kinds beside image and language models: sequences, points, graphs, tables, rays, sound,
volumes, decompositions. As `benchmarks.lib.model_pool`, for their calls to be measured; sizes are drawn, none is the
zoo's.
"""

from __future__ import annotations

from benchmarks.lib.model_kinds import images, losses, sequences, simulations, tables_and_graphs
from benchmarks.lib.model_kinds.parts import Maker

DRAWN: dict[Maker, int] = {
    sequences.dilated: 5,
    sequences.separated: 2,
    sequences.vocoder: 3,
    sequences.spectra: 2,
    sequences.transformed: 6,
    sequences.heard: 1,
    sequences.cells: 4,
    sequences.scanned: 3,
    sequences.conformed: 2,
    images.grouped: 7,
    images.pyramid: 4,
    images.adversarial: 5,
    images.encoded: 3,
    images.resized: 2,
    images.warped: 2,
    images.solid: 4,
    images.folded: 2,
    tables_and_graphs.tabular: 6,
    tables_and_graphs.history: 3,
    tables_and_graphs.points: 4,
    tables_and_graphs.meshed: 4,
    tables_and_graphs.molecules: 2,
    tables_and_graphs.routed: 3,
    losses.vocabulary: 4,
    losses.ranked: 4,
    losses.products: 4,
    losses.samples: 2,
    losses.decomposed: 4,
    simulations.rays: 3,
    simulations.physics: 2,
    simulations.played: 2,
    simulations.densities: 2,
    simulations.quantized: 2,
    simulations.looped: 2,
}
"""How often each is drawn: kinds whose calls earlier models were worst at come more often."""
KINDS = {make.__name__: (make, often) for make, often in DRAWN.items()}
"""By name: what builds a step, and how often it is drawn."""
