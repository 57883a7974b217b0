"""Chooses the token of each row and measures its log-probability on a CPU, in one pass over the logits. Needs Numba.

Shapes: T rows of logits, V vocabulary, k largest.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from decoding.compiled import compiled
from decoding.logsumexp import add_run
from decoding.sampler_kernels import RUN, Floats, Hashes, draw_from_run, new_runs
from decoding.sampling_vectors import copy_run
from decoding.top_logits import keep_largest

Ints = npt.NDArray[np.int64]


@compiled
def draw_and_measure(
    thread: int, num_threads: int, barrier: Ints, logits_TV: Floats, inverse_temperature_T: Floats, keys_T2: Hashes,
    is_filtered_T: npt.NDArray[np.bool_], tokens_T: Ints, logsumexp_T1: Floats, logprobs_T: Floats, ids_Tk: Ints,
    top_Tk: Floats,
) -> None:  # fmt: skip
    """Computes this thread's rows: draws the token of a row without filters, and writes of each row the raw
    log-probability of its token, what `sum_exponentials` does, and the ids and raw log-probabilities of its k most
    likely tokens; k may be 0.

    Rows with filters have their tokens already.
    """
    run, bounds, hashes = new_runs()
    for t in range(thread, len(logits_TV), num_threads):
        row, inverse, is_drawn = logits_TV[t], inverse_temperature_T[t], not is_filtered_T[t]
        best, token = np.float32(-np.inf), 0
        largest, total = -np.inf, 0.0
        for start in range(0, len(row), RUN):
            count = min(RUN, len(row) - start)
            largest_of_run = copy_run(row, start, count, run)
            if is_drawn:
                best, token = draw_from_run(
                    run, start, count, largest_of_run, inverse, keys_T2[t, 0], keys_T2[t, 1], bounds, hashes,
                    best, token,
                )  # fmt: skip
            if ids_Tk.shape[1]:
                keep_largest(run, start, count, largest_of_run, ids_Tk[t], top_Tk[t])
            # last: it overwrites the run
            largest, total = add_run(run, count, largest_of_run, largest, total)
        if is_drawn:
            tokens_T[t] = token
        logsumexp_T1[t, 0] = largest + np.log(total)
        logprobs_T[t] = row[tokens_T[t]] - logsumexp_T1[t, 0]
        for rank in range(ids_Tk.shape[1]):
            top_Tk[t, rank] -= logsumexp_T1[t, 0]
