"""How sure a model should be: one temperature, fitted on its owner's own validation half (after Guo et al. 2017).

Its logits are divided by it before anybody softens them further. Looked for on a fixed grid, in float64, so that the
same logits give the same number everywhere.

Shapes: B samples, C classes.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from crad.device import as_double

LOWEST_TEMPERATURE, HIGHEST_TEMPERATURE = 0.25, 8.0
STEPS_PER_OCTAVE = 32  # of the grid: 2.2 % between two of its values
# ln t is expected about 0, with a deviation of 1/2: nothing is fitted to no samples, and little to a few.
EXPECTED_DEVIATION = 0.5
# Nearest to one first: of equals that one is taken.
GRID: list[float] = sorted(
    (2.0 ** (step / STEPS_PER_OCTAVE) for step in range(-64, 97)), key=lambda t: (max(t, 1 / t), t)
)


def fit_temperature(logits_BC: Tensor, labels_B: Tensor, *, log_prior_C: Tensor | None = None) -> float:
    """Return the t that makes the labels likeliest under softmax(logits / t + log prior), drawn towards one.

    Minimises the summed cross-entropy plus (ln t)^2 / (2 x 0.5^2). `log_prior_C`: how often the owner sees each class,
    where its logits do without that. Logits that are no numbers tell nothing.
    """
    logits_BC, labels_B = as_double(logits_BC.cpu()), labels_B.cpu()
    if not len(labels_B) or not bool(logits_BC.isfinite().all()):
        return 1.0
    prior_C = torch.zeros_like(logits_BC[0]) if log_prior_C is None else as_double(log_prior_C.cpu())
    losses = torch.stack(
        [F.cross_entropy(logits_BC / t + prior_C, labels_B, reduction="sum") for t in GRID],
    )
    pulls = torch.tensor(GRID, dtype=torch.float64).log() ** 2 / (2 * EXPECTED_DEVIATION**2)
    return GRID[int((losses + pulls).argmin())]
