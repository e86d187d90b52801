"""Vectors of many dimensions as spots on paper: UMAP, or PCA where umap-learn is not installed."""

import warnings

import numpy as np
import torch
from torch import Tensor

NEIGHBOURS = 15  # UMAP's default
Spots = np.ndarray  # (vectors, 2)


def project(vectors: Tensor, seed: int = 0) -> tuple[Spots, str]:
    """The spots, and the name of the way they were found."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of umap, numba and scikit-learn about one another
        try:
            from umap import UMAP
        except ImportError:
            return principal(vectors), "PCA"
        mapped = UMAP(n_neighbors=min(NEIGHBOURS, len(vectors) - 1), random_state=seed, n_jobs=1)
        return np.asarray(mapped.fit_transform(vectors.numpy()), dtype=float), "UMAP"


def principal(vectors: Tensor) -> Spots:
    """The two principal components, from the vectors' products with one another: they are fewer than dimensions.

    Each component's largest coordinate is positive, so that the same vectors always give the same picture.
    """
    centred = vectors.double() - vectors.double().mean(0)
    variances, directions = torch.linalg.eigh(centred @ centred.T)  # rising
    spots = (directions * variances.clamp_min(0).sqrt())[:, -2:].flip(1)
    largest = spots.gather(0, spots.abs().argmax(0, keepdim=True))
    return np.asarray(torch.where(largest < 0, -spots, spots).numpy())
