"""Splits what a thinking model writes into its thought and the text behind it, in which the answer is."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from decoding.core import Tokens
from decoding.validation import require_count, require_switch, require_text
from search.tree import SearchTree, Step


class SplitText(NamedTuple):
    """A solution's thought, without its tags, and the text behind it; an unfinished thought has no text."""

    thought: str
    text: str
    is_finished: bool


@dataclass(frozen=True, kw_only=True)
class ThinkingFormat:
    """How a model marks its thought; the presets are in `conf/thinking/`.

    opening           text that begins a thought
    closing           text that ends it
    forced_end        text that ends a thought by force and asks for the answer; holds `closing`
    waits             how many times a thought that would end before its budget goes on (s1, arXiv 2501.19393)
    wait_text         text put in instead of its closing tag
    think_tokens      budget of the thought; None: as many as leave `answer_tokens`
    answer_tokens     room kept for the forced end and the answer within all limits of a solution, at most a quarter
                      of it; 0 keeps none
    interim_answers   whether the answer in an unfinished thought votes
    probe             text that asks for an interim answer in a running thought
    opened_by_prompt  whether solutions begin inside the thought; None: read from the rendered prompt, which is not
                      known where a server renders it

    Raises: ValueError naming the setting.
    """

    opening: str
    closing: str
    forced_end: str
    waits: int = 0
    wait_text: str = "Wait"
    think_tokens: int | None = None
    answer_tokens: int = 512
    interim_answers: bool = False
    opened_by_prompt: bool | None = None
    probe: str = "\n\nThe answer is \\boxed{"

    def __post_init__(self) -> None:
        for name in ("opening", "closing"):
            if not isinstance(getattr(self, name), str) or not getattr(self, name).strip():
                raise ValueError(f"model.thinking.{name} must be the text of a tag, got {getattr(self, name)!r}")
        if self.opening == self.closing:
            raise ValueError(f"model.thinking.opening and closing must differ, got {self.opening!r}")
        if not isinstance(self.forced_end, str) or self.closing not in self.forced_end:
            raise ValueError(
                f"model.thinking.forced_end must hold the closing tag {self.closing!r}, got {self.forced_end!r}"
            )
        if not isinstance(self.wait_text, str) or not self.wait_text.strip() or self.closing in self.wait_text:
            raise ValueError(f"model.thinking.wait_text must be a text without the closing tag, got {self.wait_text!r}")
        if not isinstance(self.probe, str) or not self.probe.strip():
            raise ValueError(f"model.thinking.probe must be a text that asks for the answer, got {self.probe!r}")
        require_count("model.thinking.waits", self.waits)
        for name in ("opening", "closing", "forced_end", "wait_text", "probe"):
            require_text(f"model.thinking.{name}", getattr(self, name))
        require_count("model.thinking.think_tokens", self.think_tokens, at_least=1, or_null=True)
        require_count("model.thinking.answer_tokens", self.answer_tokens)
        require_switch("model.thinking.interim_answers", self.interim_answers)
        if self.opened_by_prompt is not None:
            require_switch("model.thinking.opened_by_prompt", self.opened_by_prompt)

    @property
    def tags(self) -> tuple[str, str]:
        """The texts around a thought."""
        return self.opening, self.closing

    def is_open_after(self, prompt: str) -> bool:
        """Returns whether a solution that continues this text, the model's own turn, begins inside a thought.

        >>> form = ThinkingFormat(opening="<think>", closing="</think>", forced_end="</think>")
        >>> form.is_open_after("1+1?<think>"), form.is_open_after("1+1?<think></think>"), form.is_open_after("1+1?")
        (True, False, False)
        """
        if self.opened_by_prompt is not None:
            return self.opened_by_prompt
        return prompt.rfind(self.opening) > prompt.rfind(self.closing)

    def split(self, solution: str, *, starts_inside: bool) -> SplitText:
        """Splits a solution at the end of its first thought; without any tag all of it is text.

        An opening tag counts at the beginning alone: further on, a model may write about tags.

        >>> form = ThinkingFormat(opening="<think>", closing="</think>", forced_end="</think>")
        >>> form.split("<think>1 and 1</think>2", starts_inside=False)
        SplitText(thought='1 and 1', text='2', is_finished=True)
        >>> form.split("1 and", starts_inside=True), form.split("2", starts_inside=False).text
        (SplitText(thought='1 and', text='', is_finished=False), '2')
        """
        before, tag, after = solution.partition(self.closing)
        begun = before.lstrip()
        is_opened = begun.startswith(self.opening)
        thought = begun.removeprefix(self.opening) if is_opened else before
        if tag:
            return SplitText(thought, after, True)
        if is_opened or starts_inside:
            return SplitText(thought, "", False)
        return SplitText("", solution, True)


@dataclass(frozen=True)
class SolutionReader:
    """Reads the solutions of one problem: their thoughts, their texts, and the parts that may hold the answer.

    thinking       how the model marks its thoughts; None: it writes none, and a solution is all text
    starts_inside  whether solutions begin inside a thought
    decode         converts ids from the middle of a solution to text

    >>> SolutionReader().split("<think>1").text
    '<think>1'
    """

    thinking: ThinkingFormat | None = None
    starts_inside: bool = False
    decode: Callable[[Tokens], str] = str

    def split(self, solution: str) -> SplitText:
        """Splits a solution into its thought and the text behind it."""
        if self.thinking is None:
            return SplitText("", solution, True)
        return self.thinking.split(solution, starts_inside=self.starts_inside)

    def split_beginning(self, solution: str) -> SplitText:
        """Splits the beginning of a solution that is still being written, without an end that may be part of a tag.

        >>> reader = SolutionReader(ThinkingFormat(opening="<think>", closing="</think>", forced_end="</think>"))
        >>> [reader.split_beginning(text).thought for text in ("<th", "<think>so 4</t", "<think>so 4</than")]
        ['', 'so 4', 'so 4</than']
        """
        if self.thinking is None:
            return SplitText("", solution, True)
        if self._may_be_opening(solution):
            return SplitText("", "", False)
        split = self.split(solution)
        return split if split.is_finished else split._replace(thought=hold_back(split.thought, [self.thinking.closing]))

    @property
    def skipped_thought(self) -> str:
        """The text at the beginning of a solution whose thought is empty; "" for a model without thoughts."""
        if self.thinking is None:
            return ""
        return f"{'' if self.starts_inside else self.thinking.opening}\n\n{self.thinking.closing}\n\n"

    def may_be_thinking(self, solution: str) -> bool:
        """Returns whether what follows this text may belong to a thought; a model may open one at its beginning.

        So it may behind a part of the opening tag, where a solution is cut within its first tokens.
        """
        if self.thinking is None:
            return False
        return self._may_be_opening(solution) or not self.split(solution).is_finished

    def _may_be_opening(self, solution: str) -> bool:
        return self.thinking is not None and self.thinking.opening.startswith(solution.strip())

    def answer_part(self, solution: str) -> str:
        """Returns the part that holds the answer: the text, or with `interim_answers` an unfinished thought."""
        split = self.split(solution)
        if not split.is_finished and self.thinking is not None and self.thinking.interim_answers:
            return split.thought
        return split.text

    def remove_tags(self, text: str) -> str:
        """Returns a text without the tags of the thought."""
        if self.thinking is None:
            return text
        return text.replace(self.thinking.opening, "").replace(self.thinking.closing, "")

    def drop_thought(self, path: Sequence[Step]) -> list[Step]:
        """Returns the steps behind the thought; of the step that ends it, the rest. An unfinished thought has none."""
        solution = "".join(step.text for step in path)
        split = self.split(solution)
        left = len(solution) - len(split.text)
        rest: list[Step] = []
        for step in path if split.is_finished else ():
            inside = min(left, len(step.text))
            left -= inside
            if step.text[inside:].strip() or rest:
                rest.append(self._cut_step(step, inside))
        return rest

    def _cut_step(self, step: Step, length: int) -> Step:
        """Returns the step without its first `length` characters."""
        if not length:
            return step
        first = self._count_tokens(step.tokens, length)
        return step.drop_tokens(first, step.text[length:])

    def measure_thought(self, tree: SearchTree, node: int) -> dict[int, int]:
        """Returns for each step of the path to `node` the length of its text in the thought, tags included.

        Steps behind the thought are left out.
        """
        if self.thinking is None:
            return {}
        solution = tree.path_text(node)
        left = len(solution) - len(self.split(solution).text)
        lengths: dict[int, int] = {}
        for i in tree.path_nodes(node):
            if left <= 0:
                break
            lengths[i] = min(left, len(tree.nodes[i].step.text))
            left -= lengths[i]
        return lengths

    def count_thought_tokens(self, tree: SearchTree, node: int) -> dict[int, int]:
        """Returns for each step of the path to `node` the number of its tokens in the thought, tags included.

        Steps behind the thought are left out.
        """
        steps = {i: tree.nodes[i].step for i in tree.path_nodes(node)}
        return {
            i: len(steps[i].tokens) if length == len(steps[i].text) else self._count_tokens(steps[i].tokens, length)
            for i, length in self.measure_thought(tree, node).items()
        }

    def _count_tokens(self, tokens: Tokens, length: int) -> int:
        """Returns the number of tokens whose text has at least this length."""
        return bisect_left(range(len(tokens)), length, key=lambda count: len(self.decode(tokens[:count])))


def hold_back(text: str, ends: Sequence[str]) -> str:
    """Returns the text without an end of it that may be the beginning of one of `ends`.

    >>> hold_back("so 4</thi", ["</think>"]), hold_back("so 4", ["</think>", ""])
    ('so 4', 'so 4')
    """
    sizes = [size for end in ends for size in range(1, len(end) + 1) if text.endswith(end[:size])]
    return text[: len(text) - max(sizes, default=0)]
