"""Finds what is new in a reply that is sent while it is written."""

from __future__ import annotations

from dataclasses import dataclass, replace

from reason.serve.choices import CompletionChoice, cut_at_stop
from reason.thinking import SplitText, hold_back


@dataclass
class LiveReply:
    """What a stream has sent of a thought and the text behind it. What does not begin with that is sent whole.

    stop  strings that end the text

    >>> reply = LiveReply(stop=("Question:",))
    >>> reply.take(SplitText("so", "", False)), reply.take(SplitText("so 4", "It is 4. Que", True))
    (SplitText(thought='so', text='', is_finished=False), SplitText(thought=' 4', text='It is 4. ', is_finished=True))
    """

    stop: tuple[str, ...] = ()
    thought: str = ""
    text: str = ""

    def take(self, split: SplitText) -> SplitText:
        """Returns what has not been sent, of a solution that begins like this; counts it as sent. *Mutates*."""
        text = hold_back(cut_at_stop(split.text, self.stop), self.stop)
        part = SplitText(split.thought.removeprefix(self.thought), text.removeprefix(self.text), split.is_finished)
        self.thought, self.text = self.thought + part.thought, self.text + part.text
        return part

    def drop_from(self, choice: CompletionChoice) -> CompletionChoice:
        """Returns the choice without the parts that have been sent."""
        is_whole = bool(self.text) and self.text == choice.text
        text = None if choice.text is None or is_whole else choice.text.removeprefix(self.text)
        return replace(choice, thought=choice.thought.removeprefix(self.thought), text=text)
