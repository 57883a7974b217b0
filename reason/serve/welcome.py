"""The pages that show what a server offers and what it did: plain HTML without scripts, nothing is fetched."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape

from reason.serve.preset_entries import describe_preset
from reason.serve.presets import Preset, PresetCatalog
from reason.serve.trees import TreeSummary

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title><style>
:root {{ color-scheme: light dark; }}
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }}
table {{ border-collapse: collapse; width: 100%; }}
th, td {{ text-align: left; vertical-align: top; padding: .3rem .8rem .3rem 0; border-bottom: 1px solid #8884; }}
td {{ overflow-wrap: anywhere; }}
pre {{ overflow-x: auto; padding: .8rem; border: 1px solid #8884; border-radius: .4rem; }}
</style></head><body><h1>{title}</h1>
{body}
</body></html>
"""

QUESTION = "x0 = 3. Each next term is 5 times the one before plus 8, modulo 19. Find x3."


def welcome_page(catalog: PresetCatalog, base: str, *, with_key: bool) -> str:
    """Returns the page at `/`: presets, a request to try, and the other addresses. `base` is the server's address."""
    presets = "".join(_preset_row(preset) for preset in catalog.presets.values())
    efforts = ", ".join(f"{escape(name)}: {escape(preset.name)}" for name, preset in catalog.efforts.items())
    body = json.dumps({"model": next(iter(catalog.presets)), "messages": [{"role": "user", "content": QUESTION}]})
    key = '-H "Authorization: Bearer $KEY" ' if with_key else ""
    curl = f"curl {base}/v1/chat/completions {key}-H 'Content-Type: application/json' -d '{body}'"
    links = [
        ("/trees", "searches that the server still has"),
        ("/v1/models", "the presets as data"),
        ("/health", "whether it can answer"),
        ("/metrics", "for Prometheus"),
        ("/openapi.json", "all addresses and fields, for tools"),
    ]
    items = "".join(f'<li><a href="{base}{path}">{path}</a>: {text}</li>' for path, text in links)
    names = catalog.spec.names
    return _PAGE.format(
        title="reason",
        body=(
            f"<p>Every request is answered by a search with model {escape(names['model'])}, scorer "
            f"{escape(names['scorer'])}, engine {escape(names['engine'])}. The base address for clients is "
            f"<code>{escape(base)}/v1</code>; <code>model</code> is one of these:</p>"
            f"<table><tr><th>model</th><th>search</th><th>width</th><th>scorer</th><th>needs</th></tr>{presets}</table>"
            f"<p><code>reasoning_effort</code> takes another search in its place: {efforts}.</p>"
            f"<pre>{escape(curl)}</pre><ul>{items}</ul>"
        ),
    )


def trees_page(trees: Sequence[TreeSummary], base: str, keep: int) -> str:
    """Returns the page at `/trees`: the searches in memory, the newest first."""
    rows = "".join(_tree_row(tree, base) for tree in trees)
    table = f"<table><tr><th>time</th><th>question</th><th>answer</th><th>score</th></tr>{rows}</table>"
    return _PAGE.format(
        title="Searches",
        body=f"<p>The last {keep} at most (serve.keep).</p>{table if trees else '<p>There are none yet.</p>'}",
    )


def _preset_row(preset: Preset) -> str:
    entry = describe_preset(preset, created=0)
    width = "" if entry["width"] is None else str(entry["width"])
    cells = [preset.name, preset.search, width, entry["scorer"] or "none: votes", ", ".join(entry["needs"])]
    return f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>"


def _tree_row(tree: TreeSummary, base: str) -> str:
    time = datetime.fromtimestamp(tree["created"], UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    score = "" if tree["score"] is None else f"{tree['score']:.3g}"
    link = f'<a href="{base}/trees/{tree["id"]}">{escape(tree["question"])}</a>'
    return f"<tr><td>{time}</td><td>{link}</td><td>{escape(tree['answer'] or '')}</td><td>{score}</td></tr>"
