"""How far drafters would guess recorded texts: `python scripts/bench/replay.py FILE`. No model is needed.

FILE holds JSON lines such as {"problem": "...", "samples": ["...", "..."]}; `question` or `prompt`, and `completions`
or `solutions`, will do as well. The trajectories of a problem are replayed one after the other. A table and perhaps a
plot; the last line of stdout is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import shlex
import sys
from pathlib import Path

from rich.console import Console

from reason.bench.arguments import counts, names


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    top.add_argument("file", type=Path, metavar="FILE")
    top.add_argument("--tokenizer", default="bundled:target", help="bundled:NAME, a folder or a hub id")
    top.add_argument("--nodes", type=counts, default=(8, 16, 64), help="draft nodes")
    top.add_argument("--drafters", type=names, help="NAME,NAME; default: all")
    top.add_argument("--limit", type=int, help="only the first so many problems")
    top.add_argument("--plot", type=Path, help="draw accepted length by trajectory to this file")
    top.add_argument("--out", type=Path, help="write a report to this file")
    return top


def main() -> None:
    args = parser().parse_args()
    logging.disable(logging.ERROR)  # transformers announces every setting it does not like
    from reason.bench.plots import plot_replay, require_matplotlib
    from reason.bench.replay import DRAFTERS, check_names, encoded, read, replay
    from reason.bench.replay_report import markdown, show

    console = Console(stderr=not sys.stdout.isatty(), width=120)
    try:
        if args.plot:
            require_matplotlib()
        drafters = check_names(args.drafters or tuple(DRAFTERS))
        recordings = encoded(read(args.file)[: args.limit], args.tokenizer)
    except (ValueError, OSError) as error:
        sys.exit(str(error))
    rows = []
    for nodes in args.nodes:
        for name in drafters:
            rows.append(replay(name, recordings, nodes))
            console.print(f"{nodes:3d} nodes {name:<18} {rows[-1]['tokens_per_forward']:5.2f} tokens/forward")
    result = {
        "replay": str(args.file),
        "tokenizer": args.tokenizer,
        "problems": len(recordings),
        "tokens": rows[0]["tokens"],
        "rows": rows,
    }
    show(result, console)
    if args.plot:
        plot_replay(args.plot, rows)
    if args.out:
        link = os.path.relpath(args.plot, args.out.parent) if args.plot else None
        args.out.write_text(markdown(result, shlex.join(["python", *sys.argv]), link), encoding="utf-8")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
