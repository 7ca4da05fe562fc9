"""What changes with the steps of a run: linear annealing, and what happens every so many steps. No torch.

Invariants: an annealed value is the whole one before the first round and exactly 0 after the last of the budget
(test_final_lr_is_zero_at_the_budget); what is due every `every` steps is due once for each multiple that is passed,
also where steps come by the round (test_a_crossing_fires_once_per_multiple).
"""

from __future__ import annotations


def annealed(start: float, progress: float, enabled: bool = True) -> float:
    """From `start` in a straight line to 0."""
    return start * (1.0 - progress) if enabled and progress > 0.0 else start


def crossings(before: int, after: int, every: int) -> int:
    """How many multiples of `every` lie in (before, after]; 0 for `every` = 0, which means never."""
    return after // every - before // every if every > 0 else 0
