"""The audit behind `Ledger.check`: stored rows and journal records, compared by sorting, never by a loop over rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tests.rig import ledger_rules as rules
from tests.rig.ledger_rules import RecordKind, Records

_SHOWN = 5  # examples of each violation in a report


class Loss(NamedTuple):
    """An instance went away while `steps` of its steps were unanswered."""

    slot: int
    incarnation: int
    steps: int
    cause: str


@dataclass
class Report:
    """What the audit found; empty `violations` means that every invariant held."""

    executed: int = 0
    stored: int = 0
    lost_in_flight: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    instances: int = 0
    episodes: int = 0
    violations: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.violations

    def __str__(self) -> str:
        dropped = f" + {sum(self.dropped.values())} dropped {self.dropped}" if self.dropped else ""
        head = (
            f"executed {self.executed} = stored {self.stored} + {self.lost_in_flight} lost in flight{dropped}; "
            f"{self.instances} instances, {self.episodes} episodes"
        )
        return "\n".join([head if self.ok else f"VIOLATED ({head})", *(f"  {line}" for line in self.violations)])

    def raise_if_violated(self) -> Report:
        if self.violations:
            raise AssertionError(str(self))
        return self

    def blame(self, invariant: str, rows: Records, bad: npt.NDArray[np.bool_], what: str) -> None:
        """One line for all rows where `bad` `[N]` is true, with a few examples."""
        found = np.flatnonzero(bad)
        if found.size:
            names = [
                name for name in ("slot", "incarnation", "nonce", "episode", "t") if name in (rows.dtype.names or ())
            ]
            examples = "; ".join(
                " ".join(f"{name} {rows[name][index]}" for name in names) for index in found[:_SHOWN].tolist()
            )
            more = f" and {found.size - _SHOWN} more" if found.size > _SHOWN else ""
            self.violations.append(f"{invariant}: {what}: {examples}{more}")


def audit(
    rows: Records,
    records: Records,
    losses: list[Loss],
    dropped: dict[str, int],
    seed_of: Callable[[int, int], int] | None,
) -> Report:
    """`rows` `[N]` of ledger.ROW, `records` `[M]` of ledger_rules.RECORD."""
    steps = records[records["kind"] == RecordKind.STEP]
    report = Report(len(steps), len(rows), dropped=dict(dropped), instances=len(np.unique(records["nonce"])))
    _check_headers(rows, report)
    _check_keys(rows, report)
    owners = _check_instances(rows, seed_of, report)
    missing = _check_journal(rows, steps, report)
    _check_losses(missing, steps, owners, losses, report)
    balance = report.stored + report.lost_in_flight + sum(dropped.values())
    if report.executed != balance:
        report.violations.append(f"I2: executed {report.executed}, accounted for {balance}")
    return report


def _check_headers(rows: Records, report: Report) -> None:
    """I3 and I5, row by row."""
    report.blame("I3", rows, ~rows["intact"], "an observation is damaged")
    one = (rows["nonce"] == rows["next_nonce"]) & (rows["seed"] == rows["next_seed"])
    report.blame("I3", rows, ~one, "the row mixes two instances")
    one = rows["env_episode"] == rows["next_episode"]
    report.blame("I3", rows, ~one, "the row mixes two episodes")
    report.blame("I3", rows, rows["env_t"] + 1 != rows["next_t"], "the observations are not neighbours")
    report.blame("I3", rows, rows["env_t"] != rows["t"], "the observation has another t than its row")
    report.blame("I5", rows, rows["action"] != rows["next_action"], "the next observation names another action")
    reward = rules.rewards_of(rows["seed"], rows["env_episode"], rows["env_t"], rows["action"])
    report.blame("I5", rows, reward != rows["reward"], "the reward is not this action's")


def _check_keys(rows: Records, report: Report) -> None:
    """I1: sorted by key, a row starts an episode at t = 0 or follows the row before it."""
    ordered = rows[np.lexsort((rows["t"], rows["episode"], rows["incarnation"], rows["slot"]))]
    if not len(ordered):
        return
    same = np.ones(len(ordered) - 1, np.bool_)
    for name in ("slot", "incarnation", "episode"):
        same &= ordered[name][1:] == ordered[name][:-1]
    ahead = ordered["t"][1:] - ordered["t"][:-1]
    later = ordered[1:]
    report.episodes = int(len(ordered) - same.sum())
    report.blame("I1", later, same & (ahead == 0), "stored twice")
    report.blame("I1", later, same & (ahead > 1), "rows are missing before")
    starts = np.concatenate([[True], ~same])
    report.blame("I1", ordered, starts & (ordered["t"] != 0), "the episode's first rows are missing")
    report.blame("I1", ordered[:-1], same & ordered["at_end"][:-1], "rows follow the end of the episode")
    wrong = same & (ahead == 1) & (later["last_action"] != ordered["action"][:-1])
    report.blame("I5", later, wrong, "the observation names another action than the row before took")


def _check_instances(
    rows: Records, seed_of: Callable[[int, int], int] | None, report: Report
) -> dict[int, tuple[int, int]]:
    """I3: nonce and (slot, incarnation) name each other. Gives the owner of each nonce."""
    seen = _distinct(rows, "slot", "incarnation", "nonce", "seed")
    report.blame("I3", seen, _repeats(seen, "nonce"), "two (slot, incarnation) share one instance")
    report.blame("I3", seen, _repeats(seen, "slot", "incarnation"), "an incarnation has two instances")
    if seed_of is not None:
        wanted = [seed_of(int(row["slot"]), int(row["incarnation"])) for row in seen]
        report.blame("I3", seen, seen["seed"] != np.array(wanted, np.uint64), "the instance has another's seed")
    pairs = _distinct(rows, "nonce", "env_episode", "episode")
    report.blame("I3", pairs, _repeats(pairs, "nonce", "env_episode"), "one episode of an instance is stored as two")
    return {int(row["nonce"]): (int(row["slot"]), int(row["incarnation"])) for row in seen}


def _keys(*fields: npt.NDArray[Any]) -> rules.Words:
    """One u64 for each row's values in these fields: sorting numbers is ten times faster than sorting records."""
    total = np.zeros(len(fields[0]), np.uint64)
    for values in fields:
        total = rules.mix(total ^ values.astype(np.uint64)) + np.uint64(1)
    return total


def _distinct(rows: Records, *names: str) -> Records:
    """One row for each combination of values in these fields."""
    _, index = np.unique(_keys(*(rows[name] for name in names)), return_index=True)
    return rows[index]


def _repeats(rows: Records, *names: str) -> npt.NDArray[np.bool_]:
    """b1 `[N]`: whether another row has the same values in these fields."""
    _, inverse, counts = np.unique(_keys(*(rows[name] for name in names)), return_inverse=True, return_counts=True)
    return np.asarray(counts[inverse.reshape(-1)] > 1)


def _check_journal(rows: Records, steps: Records, report: Report) -> Records:
    """I2, stored against executed. Gives the records that were not stored."""
    executed = _keys(steps["nonce"], steps["episode"], steps["t"])
    stored = _keys(rows["nonce"], rows["env_episode"], rows["next_t"])
    report.blame("I2", steps, _repeats(steps, "nonce", "episode", "t"), "one instance journalled a step twice")
    order = np.argsort(executed)
    if len(executed):
        spot = order[np.minimum(np.searchsorted(executed, stored, sorter=order), len(executed) - 1)]
        absent = executed[spot] != stored
        other = ~absent & ((steps["action"][spot] != rows["action"]) | (steps["reward"][spot] != rows["reward"]))
        report.blame("I5", rows, other, "the journal has another action or reward for the row")
    else:
        spot, absent = np.zeros(len(rows), np.int64), np.ones(len(rows), np.bool_)
    report.blame("I2", rows, absent, "stored but never executed")
    kept = np.zeros(len(steps), np.bool_)
    kept[spot[~absent]] = True
    return steps[~kept]


def _check_losses(
    missing: Records, steps: Records, owners: dict[int, tuple[int, int]], losses: list[Loss], report: Report
) -> None:
    """I2: what was executed and not stored is the tail of an instance whose loss was announced."""
    budget: dict[tuple[int, int], int] = {}
    for loss in losses:
        key = (loss.slot, loss.incarnation)
        budget[key] = budget.get(key, 0) + loss.steps
    seeds = {int(record["nonce"]): int(record["seed"]) for record in missing}
    unseen = _unseen_budget(set(seeds) - set(owners), owners, budget)
    allowance = sum(report.dropped.values())
    for nonce in seeds:
        gone = missing[missing["nonce"] == nonce]
        executed = steps[steps["nonce"] == nonce]
        tail = executed[len(executed) - len(gone) :]
        allowed = unseen if nonce not in owners else budget.get(owners[nonce], 0)
        if len(gone) > allowed + allowance:
            everything = np.ones(len(gone), np.bool_)
            report.blame("I2", gone, everything, f"{len(gone)} executed steps vanished, {allowed} were in flight")
        elif not report.dropped and not np.array_equal(tail["t"], gone["t"]):
            report.blame(
                "I2", gone, np.ones(len(gone), np.bool_), "vanished steps are not the last ones of their instance"
            )
        report.lost_in_flight += len(gone)
    report.lost_in_flight -= min(allowance, report.lost_in_flight)


def _unseen_budget(unseen: set[int], owners: dict[int, tuple[int, int]], budget: dict[tuple[int, int], int]) -> int:
    """Steps that an instance may have made of which no row was stored: those in flight when its first lane was lost."""
    spare = [steps for key, steps in budget.items() if key not in owners.values()]
    return max(spare, default=0) if unseen else 0
