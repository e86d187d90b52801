"""Labelled pictures as clients send them, and the requests made of them."""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from serve_client import Request

from supple.data.loaders import resolve
from supple.inference.predictor import Predictor
