"""Torch computes with one thread in these tests: the networks are small, and the machine has others to serve."""

from __future__ import annotations

import torch

torch.set_num_threads(1)
