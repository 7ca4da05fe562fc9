"""What changes with the steps of a run: linear annealing, and what happens every so many steps. No torch.

Invariants: an annealed value is the whole one at the first step and exactly 0 at the last of the budget, wherever a
run was resumed and whatever was dropped (test_final_lr_is_zero_at_the_budget); what is due every `every` steps is due
once for each multiple that is passed, also where steps come by the round (test_a_crossing_fires_once_per_multiple).
"""

from __future__ import annotations


def progress_of(steps: int, budget: int) -> float:
    """The share of the budget that is behind us, in [0, 1]. Both in environment steps."""
    return min(max(steps / budget, 0.0), 1.0)


def annealed(start: float, progress: float, enabled: bool = True) -> float:
    """From `start` in a straight line to 0."""
    return start * (1.0 - progress) if enabled and progress > 0.0 else start


def crossings(before: int, after: int, every: int) -> int:
    """How many multiples of `every` lie in (before, after]; 0 for `every` = 0, which means never."""
    return after // every - before // every if every > 0 else 0
