"""Density maps as the DISCO data set stores them: a matrix `map` in a MATLAB file."""

import io

import numpy as np
import torch
from torch import Tensor

from supple.data.source import Source, read_bytes
from supple.errors import DataError

MOST = 50_000_000  # cells


def read_map(source: Source) -> Tensor:
    """The matrix `map` of a file, float32 (height, width); anything else is a DataError that names the file."""
    from scipy.io import loadmat, whosmat

    name = "a density map" if isinstance(source, bytes) else str(source)
    try:
        content = read_bytes(source)
        sizes = {name: shape for name, shape, _ in whosmat(io.BytesIO(content))}
        height, width = sizes["map"]
        if not 0 < height * width <= MOST:
            raise ValueError(f"its map has {height} x {width} cells")
        values = np.asarray(loadmat(io.BytesIO(content), variable_names=["map"])["map"], dtype=np.float32)
        if not np.isfinite(values).all() or values.min() < 0:
            raise ValueError("its map has cells that are negative or no numbers")
    except KeyError:
        raise DataError(
            f'{name} holds no matrix "map".', "Take the density maps of the data set as they are."
        ) from None
    except DataError:
        raise
    except Exception as problem:  # damaged files make scipy raise errors of many kinds
        reason = " ".join(str(problem).split())[:200] or type(problem).__name__
        raise DataError(f"{name} is not a readable MATLAB file: {reason}.", "Copy or unpack it again.") from None
    return torch.from_numpy(np.ascontiguousarray(values))
