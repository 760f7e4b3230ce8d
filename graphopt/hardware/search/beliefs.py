"""`Beliefs`: errors of predicted times on one program, learned from its measured times, and the choice of measurements.

The logarithm of measured over predicted time is a sum of effects: one for each trait of a decision, and the decision's
own. Traits are settings of knobs and the ops with a request. As costs of kinds of instruction are off, the share of a
decision's time on a kind, less the default's share, is a trait as well. Effects are normally distributed around 0
before anything is measured; so is the sum, and afterwards as well (Rasmussen and Williams 2006, Gaussian Processes for
Machine Learning, 2.1). The decision of the largest expected improvement is measured next (Jones et al. 1998). Of
several that are measured together each is taken to be as fast as expected (Ginsbourger et al. 2010, the Kriging
believer).

Shape legend: P decisions, M measured ones, T traits.
"""

from collections.abc import Hashable, Mapping, Sequence
from math import pi, sqrt

import numpy as np
from scipy.special import ndtr

from graphopt.core.graph import F64

# standard deviations: of a kind's cost, of a knob, of a request about ops, of a decision's own, of a measurement
KIND, KNOB, ASKED, OWN, NOISE = 1.0, 0.2, 0.1, 0.1, 0.01
Kinds = Mapping[str, float]  # kind of instruction -> its part of a predicted time
Traits = Mapping[Hashable, float]


def traits(asked: Sequence[Hashable], knobs: Sequence[Hashable], kinds: Kinds, default: Kinds) -> Traits:
    """Of a decision: its requests about single ops, its settings of knobs, and the predicted time of each kind of
    instruction, of its code and of the default's; no kinds where it was not lowered."""
    found = dict.fromkeys(asked, ASKED / sqrt(max(1, len(asked)))) | dict.fromkeys(knobs, KNOB)
    if kinds:
        ours, theirs = sum(kinds.values()) or 1.0, sum(default.values()) or 1.0
        found |= {kind: KIND * (kinds.get(kind, 0.0) / ours - default.get(kind, 0.0) / theirs)
                  for kind in {*kinds, *default}}  # fmt: skip
    return found


class Beliefs:
    """Logarithms of times over the default's, of decisions with traits."""

    def __init__(self) -> None:
        self._traits, self._off = list[Traits](), list[float]()
        self.lowest = 0.0  # measured

    def learn(self, traits: Traits, predicted: float, measured: float) -> None:
        """Learns from a measured decision."""
        self._traits.append(traits)
        self._off.append(measured - predicted)
        self.lowest = min(self.lowest, measured)

    def most_promising(self, traits: Sequence[Traits], predicted: F64, most: int) -> list[int]:
        """Places of at most so many decisions [P], the largest expected improvement first."""
        known, off = len(self._off), [*self._off]
        keys = {key: place for place, key in enumerate({key for of in (*self._traits, *traits) for key in of})}
        vectors = np.zeros((known + len(traits), len(keys)))
        for row, of in enumerate((*self._traits, *traits)):
            vectors[row, [keys[key] for key in of]] = [*of.values()]
        taken, left = list(range(known)), list(range(known, len(vectors)))
        found = list[int]()
        while left and len(found) < most:
            mean, spread = _posterior(vectors[left], vectors[taken], np.array(off), known)
            mean += predicted[np.array(left) - known]
            better = (self.lowest - mean) / spread
            density = np.exp(-(better**2) / 2) / sqrt(2 * pi)
            best = int(np.argmax(spread * (density + better * ndtr(better))))
            off.append(float(mean[best] - predicted[left[best] - known]))
            found.append(left[best] - known)
            taken.append(left.pop(best))
        return found


def _posterior(new: F64, known: F64, off: F64, measured: int) -> tuple[F64, F64]:
    """(mean, standard deviation) [P] of the errors of new decisions [P, T]. known: [M, T], off: [M]; of these, only the
    first so many are measured, with noise."""
    noise = np.where(np.arange(len(off)) < measured, NOISE, 1e-4)
    together, beside = known @ known.T + np.diag(OWN**2 + noise**2), new @ known.T
    solved = np.linalg.solve(together, np.column_stack([off, beside.T])) if len(off) else np.zeros((0, 1 + len(new)))
    spread = (new**2).sum(1) + OWN**2 - np.einsum("pm,mp->p", beside, solved[:, 1:])
    return beside @ solved[:, 0], np.sqrt(np.maximum(spread, 1e-12))
