"""Bootstrap intervals, paired over sequences."""

import torch

RESAMPLES = 10_000
COVERAGE = 0.95


def interval(differences: torch.Tensor, seed: int = 0) -> tuple[float, float]:
    """The 95 % percentile interval of the mean of paired differences `[S]`.

    Sequences are drawn with replacement. Those of one decode batch share their union, so that for a
    large B the interval is a little too narrow.
    """
    generator = torch.Generator().manual_seed(seed)
    values = differences.double()
    # one resample after another would be slow, all at once large: S numbers each
    drawn = torch.randint(len(values), (RESAMPLES, len(values)), generator=generator)
    means = values[drawn].mean(-1)
    tail = (1 - COVERAGE) / 2
    low, high = means.quantile(torch.tensor([tail, 1 - tail], dtype=torch.float64)).tolist()
    return low, high
