"""What a compiled call that drafts with a small model takes and returns (`level_kernels`). Imports no Numba.

Shapes: B branches, N nodes of all drafts, F of them that were fed, K candidates.
"""

from __future__ import annotations

from typing import NamedTuple

from decoding.kv.slots import Slots
from decoding.sampling_columns import SamplingColumns
from decoding.speculation.drafters.best_first import GroupedNodes
from decoding.speculation.drafters.calibration import Counts
from decoding.speculation.drafters.ngram_hash_table import Keys
from decoding.speculation.drafters.source import Floats, Ints


class RootContexts(NamedTuple):
    """The committed tokens of the branches, in the cache of the draft model.

    key_slots     slots of all of them, branch by branch, those of new tokens last
    num_keys_B    how many of each
    num_new_B     the last ones of each, which are to be computed
    new_tokens    these, branch by branch
    ids_BK, logp_BK   candidates after the last token, best first, of a branch without new tokens. *Mutated*: of all
    free_slots    for draft nodes
    """

    key_slots: Slots
    num_keys_B: Ints
    num_new_B: Ints
    new_tokens: Ints
    ids_BK: Ints
    logp_BK: Floats
    free_slots: Slots


class HeadIds(NamedTuple):
    """The id of each output of the head, -1 of one that may not be drafted.

    num_whole   the first outputs, all of which may be
    """

    ids_V: Ints
    num_whole: int


class LevelLimits(NamedTuple):
    """Limits of the drafts of a round.

    nodes_B, depth_B  maximum nodes and depth of each branch
    floor_B           path probability that a node must exceed. *Mutated*: raised from level to level
    total             maximum nodes over all branches; a draft may have more
    width             maximum children of a node
    node_cost         what a node costs, in accepted tokens
    level_seconds     duration of a level; it must add as many accepted tokens as the rate gives in that time
    plain_rate        tokens per second without drafts; 0 where rounds take no time
    seconds_N         duration of the round with 0, 1, ... nodes; empty: nodes take no time
    least_seconds     the least that one more node takes
    most_fed          nodes that the model is run over at most
    keep_gain         share of what the best number of nodes gains that is enough, for fewer nodes
    """

    nodes_B: Ints
    depth_B: Ints
    floor_B: Floats
    total: int
    width: int
    node_cost: float
    level_seconds: float
    plain_rate: float
    seconds_N: Counts
    least_seconds: float
    most_fed: int
    keep_gain: float


class NodeChoice(NamedTuple):
    """How children are drawn, and how probable they are.

    kind             LIKELY or COUPLED, for which the target draws with `seeds_B` from the positions `ends_B` on
    hits, trials, odds_BL   of an `AcceptanceCalibration`
    """

    kind: int
    sampling: SamplingColumns
    seeds_B: Keys
    ends_B: Ints
    hits: Counts
    trials: Counts
    odds_BL: Counts


class ModelDrafts(NamedTuple):
    """Nodes of all drafts, and what the model has computed of them.

    place_N     of each node its row among those that were fed, or -1
    ids_FK, logp_FK   candidates after each node that was fed
    num_levels  levels of nodes that were built
    """

    nodes: GroupedNodes
    place_N: Ints
    ids_FK: Ints
    logp_FK: Floats
    num_levels: int
