"""Defines the texts with which the bundled thinker is spoken to; strategies, tests and training share them."""

from __future__ import annotations

OPENING = "<think>"
CLOSING = "</think>"
TURN_START = "<|im_start|>"
TURN_END = "<|im_end|>"

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
)

ANSWER_BEGINS = "The answer is \\boxed{"
ANSWER_REQUEST = f"\n{CLOSING}\n\n{ANSWER_BEGINS}"
"""Ends a thought, or asks for an interim answer in a running one; the model goes on with the number.

It is what the model writes itself behind a finished thought: one form is learned, not three."""
NOTES_REQUEST = "\n\nWrite notes.\n</think>\n\nNotes so far: "
"""Ends a thought; the model goes on with its notes."""
NOTES_BEGIN = "Notes so far: "
"""Begins the notes of earlier thoughts on a question. They stand before it.

So how far its numbers are from the thought does not depend on their length; small models copy numbers by distance."""

NO_NOTES = "nothing yet."


def render_answer(answer: int) -> str:
    r"""Returns the text behind a thought.

    >>> render_answer(14)
    'The answer is \\boxed{14}.'
    """
    return f"{ANSWER_BEGINS}{answer}}}."


def render_prompt(question: str) -> str:
    """Returns the prompt of a question, or of one with notes; it opens the thought."""
    return f"{TURN_START}user\n{question}{TURN_END}\n{TURN_START}assistant\n{OPENING}\n"


def add_notes(question: str, notes: str) -> str:
    """Returns a question with the notes of earlier thoughts.

    >>> add_notes("Find x.", "x = 4 works.")
    'Notes so far: x = 4 works.\\nFind x.'
    """
    return f"{NOTES_BEGIN}{notes}\n{question}"
