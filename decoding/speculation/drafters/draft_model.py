"""A smaller language model says what may follow; it reads what the branches commit, and guesses level by level.

It has KV of its own. What is committed is read as in `decoding.prefill`: prefixes that branches share are computed and
kept once, and those of branches no longer around go when room is needed. Guesses have pages only until the next
round, when those that were committed become the branch's and the others go back.
"""

from __future__ import annotations

from collections.abc import Sequence as Items

import numpy as np

from decoding.core import Tokens
from decoding.kv.kv_cache import SharedKV
from decoding.kv.shared_prefix import Group, group_by_prefix
from decoding.kv.slots import PagePool
from decoding.model.backend import Backend, RowBatch
from decoding.model.batch import Feed, pack
from decoding.scheduler import Scheduler, Turn
from decoding.sequence import Sequence
from decoding.speculation.drafters.draft_nodes import NOWHERE, DraftNodes
from decoding.speculation.drafters.source import Floats, Ints, Successors
from decoding.speculation.interfaces import Branch, Feedback
from decoding.validation import is_count


class _Text(Sequence):
    """A branch as the draft model reads it; `top` is what may follow its last token, once none is pending."""

    def __init__(self, request_id: int, tokens: Tokens) -> None:
        super().__init__(request_id, tokens)
        self.top: tuple[Ints, Floats] = (np.empty(0, dtype=np.int64), np.empty(0, dtype=np.float32))
        self.published = False


class DraftModel:
    """Implements `Source` over a backend whose vocabulary is the target's.

    k            candidates for each context
    kv_bytes     size of the KV pool
    max_rows     tokens fed in one forward pass
    max_running  branches drafted for together; the others are not
    vocab_size   ids from here on are never guessed: what a padded embedding has more than the tokenizer

    State: a node of the round's `DraftNodes` for each context.

    rows   rows fed so far
    """

    feedback_k = 0
    has_probabilities = True

    def __init__(
        self,
        backend: Backend,
        *,
        k: int = 10,
        kv_bytes: int = 1 << 28,
        max_rows: int = 1024,
        max_running: int = 256,
        vocab_size: int | None = None,
    ) -> None:
        knobs = {"k": k, "kv_bytes": kv_bytes, "max_rows": max_rows, "max_running": max_running}
        for name, value in knobs.items():
            if not is_count(value, at_least=1):
                raise ValueError(f"{name} must be an int >= 1, got {value!r}")
        if vocab_size is not None and not is_count(vocab_size, at_least=1):
            raise ValueError(f"vocab_size must be an int >= 1 or None, got {vocab_size!r}")
        self._backend, self._k, self._max_rows, self._vocab_size = backend, k, max_rows, vocab_size
        self._kv = SharedKV(PagePool.of_bytes(kv_bytes, backend.page_bytes))
        self._pool = backend.new_pool(self._kv.pool.capacity)
        self._scheduler: Scheduler[_Text] = Scheduler(self._kv, max_running=max_running, max_rows=max_rows)
        self._texts: dict[int, _Text] = {}
        self._nodes = DraftNodes((), k)
        self._groups: list[tuple[list[int], int]] = []  # of the round's branches: those, and how many pages in common
        self._grouping: tuple[object, list[Group]] = (None, [])
        self.rows = 0

    def anchors(self, branches: Items[Branch]) -> Ints:
        """A branch that does not fit the pool or the model's window is not drafted for."""
        try:
            self._settle({branch.request_id: branch.tokens for branch in branches})
            self._catch_up()
        except BaseException:
            self._forget()
            raise
        texts = [self._texts.get(branch.request_id) for branch in branches]
        ready = [text if text is not None and not text.pending else None for text in texts]
        self._nodes = DraftNodes(ready, self._k)
        at = {text.arrival: i for i, text in enumerate(ready) if text is not None}
        if at:
            ordered = [self._texts[arrival] for arrival in sorted(at)]
            self._groups = [
                ([at[ordered[i].arrival] for i in group.members], group.shared) for group in self._grouped(ordered)
            ]
            ids, logp = zip(*(text.top for text in ordered), strict=True)
            self._nodes.learn([at[text.arrival] for text in ordered], np.stack(ids), np.stack(logp))
        return np.array([self._nodes.anchor(i) for i in range(len(branches))], dtype=np.int64)

    def successors(self, state: Ints) -> Successors:
        """Runs the model over the contexts it has not seen."""
        unfed = self._nodes.unfed(state.tolist())[: self._kv.available]
        try:
            for first in range(0, len(unfed), self._max_rows):
                self._feed(unfed[first : first + self._max_rows])
        except BaseException:
            self._forget()
            raise
        return Successors(*self._nodes.top(state), np.zeros(len(state), dtype=np.int64))

    def descend(self, state: Ints, tokens_F: Ints) -> Ints:
        below = [self._below(*step) for step in zip(state.tolist(), tokens_F.tolist(), strict=True)]
        return np.array(below, dtype=np.int64)

    def observe(self, feedback: Items[Feedback]) -> None:
        """Nothing to learn: the next round's branches say what was kept."""

    def check(self) -> None:
        """Asserts the account of pages. *Mutates*: lets go of the guesses."""
        self._drop_nodes(keep=[])
        self._scheduler.check()

    def _below(self, node: int, token: int) -> int:
        if node == NOWHERE or token >= self._backend.vocab_size:
            return NOWHERE
        return (
            NOWHERE if self._nodes.position(node) + 1 >= self._backend.max_positions else self._nodes.add(node, token)
        )

    def _settle(self, branches: dict[int, Tokens]) -> None:
        """Ends the last round: guesses that were committed are kept, texts grow, come and go. *Mutates*."""
        kept: list[int] = []
        for i, text in enumerate(self._nodes.sequences):
            if text is not None and self._goes_on(text, branches):
                assert isinstance(text, _Text)
                kept += self._commit(i, text, branches[text.arrival][len(text.tokens) :])
        self._drop_nodes(keep=kept)
        for text in list(self._texts.values()):
            if self._goes_on(text, branches):
                text.extend(branches[text.arrival][len(text.tokens) :])
            else:
                self._scheduler.leave(self._texts.pop(text.arrival), keep_kv=True)
        for request_id, tokens in branches.items():
            if request_id not in self._texts and self._fits(tokens) and max(tokens) < self._backend.vocab_size:
                text = self._texts[request_id] = _Text(request_id, tokens)
                self._scheduler.enqueue(text)

    def _goes_on(self, text: Sequence, branches: dict[int, Tokens]) -> bool:
        tokens = branches.get(text.arrival, ())
        known = len(text.tokens)
        return len(tokens) >= known and self._fits(tokens) and max(tokens[known:], default=0) < self._backend.vocab_size

    def _fits(self, tokens: Tokens) -> bool:
        return len(tokens) <= min(self._backend.max_positions, self._kv.pool.capacity)

    def _commit(self, branch: int, text: _Text, tokens: Tokens) -> list[int]:
        """Adds what was committed; the guesses among it that had been fed, whose pages now are the text's."""
        path = self._nodes.walk(branch, tokens)
        text.extend(tokens)
        text.append_pages(self._nodes.pages(path))
        if path and not text.pending:
            ids_FK, logp_FK = self._nodes.top(np.array(path[-1:]))
            text.top = ids_FK[0], logp_FK[0]
        return path

    def _drop_nodes(self, keep: Items[int]) -> None:
        pages = self._nodes.pages()
        self._kv.pool.give(pages[~np.isin(pages, self._nodes.pages(keep))])
        self._nodes, self._groups = DraftNodes((), self._k), []

    def _catch_up(self) -> None:
        """Reads what is committed and not read yet, as far as there is room."""
        while True:
            self._scheduler.admit()
            turns = self._scheduler.turns()
            if not turns:
                return
            self._read(turns)

    def _read(self, turns: Items[Turn[_Text]]) -> None:
        turns = sorted(turns, key=lambda turn: turn.sequence.arrival)
        pages, at, feeds = self._kv.take(sum(turn.count for turn in turns)), 0, []
        for turn in turns:
            wanted = turn.count - 1 if turn.complete else turn.count
            feeds.append(Feed(turn.sequence, turn.count, pages[at : at + turn.count], wanted))
            at += turn.count
        batch, ordered = pack(feeds, self._grouped([turn.sequence for turn in turns]))
        ids_WK, logp_WK = self._run(batch)
        row = 0
        for feed in ordered:
            text = feed.sequence
            assert isinstance(text, _Text)
            text.append_pages(feed.pages)
            if feed.wanted == feed.rows:
                continue
            text.top = ids_WK[row], logp_WK[row]
            row += 1
            if not text.published:
                self._kv.publish(text)  # at once, so that siblings find their common prompt
                text.published = True

    def _grouped(self, texts: list[_Text]) -> list[Group]:
        # Valid until somebody joins, leaves or publishes: usually from the reading to the guesses.
        key = [(text, text.borrowed) for text in texts]
        if self._grouping[0] != key:
            self._grouping = key, group_by_prefix(texts)
        return self._grouping[1]

    def _feed(self, nodes: Items[int]) -> None:
        """Runs the model over guesses. *Mutates* the nodes."""
        batch, rows = self._nodes.feed(nodes, self._kv.take(len(nodes)), self._groups)
        self._nodes.learn(rows, *self._run(batch))

    def _run(self, batch: RowBatch) -> tuple[Ints, Floats]:
        """Ids and log-probabilities of the candidates after the wanted rows, best first."""
        self.rows += len(batch.tokens_T)
        hidden = self._backend.forward(batch, self._pool)
        if not len(batch.wanted_W):
            return np.empty((0, 0), dtype=np.int64), np.empty((0, 0), dtype=np.float32)
        logp_WV = self._backend.head(hidden).float().log_softmax(-1)[:, : self._vocab_size]
        logp_WK, ids_WK = logp_WV.topk(min(self._k, logp_WV.shape[1]), dim=-1)
        return ids_WK.cpu().numpy(), logp_WK.cpu().numpy()

    def _forget(self) -> None:
        """Starts over, after a forward pass that broke: what was taken for it has no holder."""
        self._scheduler.abandon_running()
        self._scheduler.waiting.clear()
        self._texts.clear()
        self._nodes, self._groups = DraftNodes((), self._k), []
