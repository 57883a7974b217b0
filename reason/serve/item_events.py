"""Writes the events that announce the items of a reply of `/v1/responses`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from reason.serve.deltas import TextDelta
from reason.serve.responses import encode_json
from reason.serve.wire import Fields, list_logprobs

Item = Mapping[str, object]

_DELTAS = {"message": "output_text", "reasoning": "reasoning_text", "function_call": "function_call_arguments"}


class ItemEvents:
    """Writes events with numbers in order. An item begins, its text or its arguments grow, and it ends."""

    def __init__(self) -> None:
        self._num_events = 0

    def begin_item(self, index: int, item: Item) -> bytes:
        """Returns the events that announce the item number `index`, still without text or arguments."""
        empty: dict[str, object] = {"arguments": ""} if item["type"] == "function_call" else {"content": []}
        if "status" in item:
            empty["status"] = "in_progress"
        events = self.write_event("response.output_item.added", output_index=index, item={**item, **empty})
        if item["type"] == "message":
            part = {**_part_of(item), "text": "", "logprobs": []}
            events += self.write_event("response.content_part.added", **_place_of(index, item), part=part)
        return events

    def grow_item(self, index: int, item: Item, delta: TextDelta) -> bytes:
        """Returns the event with more text, or more of the arguments."""
        logprobs = {"logprobs": list_logprobs(delta.logprobs or ())} if item["type"] == "message" else {}
        kind = f"response.{_DELTAS[str(item['type'])]}.delta"
        return self.write_event(kind, **_place_of(index, item), delta=delta.text, **logprobs)

    def end_item(self, index: int, item: Item) -> bytes:
        """Returns the events that end the item, which is complete."""
        place, kind = _place_of(index, item), f"response.{_DELTAS[str(item['type'])]}.done"
        if item["type"] == "function_call":
            events = self.write_event(kind, **place, name=item["name"], arguments=item["arguments"])
        else:
            part = _part_of(item)
            events = self.write_event(
                kind, **place, **{name: part[name] for name in ("text", "logprobs") if name in part}
            )
            if item["type"] == "message":
                events += self.write_event("response.content_part.done", **place, part=part)
        return events + self.write_event("response.output_item.done", output_index=index, item=item)

    def write_event(self, kind: str, **fields: object) -> bytes:
        """Returns an event of any kind. *Mutates* the number of the next one."""
        data: Fields = {"type": kind, "sequence_number": self._num_events, **fields}
        self._num_events += 1
        return f"event: {kind}\n".encode() + b"data: " + encode_json(data) + b"\n\n"


def _place_of(index: int, item: Item) -> dict[str, object]:
    place = {"item_id": item["id"], "output_index": index}
    return place if item["type"] == "function_call" else {**place, "content_index": 0}


def _part_of(item: Item) -> dict[str, object]:
    (part,) = cast("list[dict[str, object]]", item["content"])
    return part
