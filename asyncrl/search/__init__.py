"""Search in real simulators: PUCT, Gumbel and plain rollouts; docs/search.md has worked examples.

    results = await search(roots, simulator, evaluate, SearchConfig(...), rng)

It knows neither torch nor gRPC: the simulator and whoever judges leaves are passed in. For Gymnasium environments in
this process there is `asyncrl.search.local`.
"""

from asyncrl.search.config import SearchConfig
from asyncrl.search.expanding import Root
from asyncrl.search.planner import search
from asyncrl.search.playing import SearchResult
from asyncrl.search.reuse import advance, release_tree
from asyncrl.search.simulator import Evaluate, Expansion, Outcome, Proposal, Propose, Rollout, Simulator
from asyncrl.search.tree import Tree

__all__ = [
    "Evaluate",
    "Expansion",
    "Outcome",
    "Proposal",
    "Propose",
    "Rollout",
    "Root",
    "SearchConfig",
    "SearchResult",
    "Simulator",
    "Tree",
    "advance",
    "release_tree",
    "search",
]
