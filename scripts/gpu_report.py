"""Check and measure everything of the GPU path on a machine with a GPU: three commands of at most nine minutes each.

python3 scripts/gpu_report.py --part a --out FOLDER       kernels, invariance, rounds at real sizes
python3 scripts/gpu_report.py --part b --out FOLDER       speculation, searches, reward model, transformers
python3 scripts/gpu_report.py --part c --out FOLDER       the project's own tests on the device
python3 scripts/gpu_report.py --merge FOLDER --out FILE   one Markdown report of what the folders hold

Needs torch, numpy, numba, scipy, triton, transformers and rich; no network, and the project need not be installed.
Every line is printed and saved as soon as it is known. --rehearse runs every part on a CPU at a tiny size.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # a bare machine has the repository, not the package


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--part", help="a, b, c, or single parts: a2 or a2,b1")
    what.add_argument("--merge", type=Path, nargs="+", metavar="FOLDER", help="folders with reports")
    parser.add_argument("--out", type=Path, required=True, help="folder of the report; with --merge its file")
    parser.add_argument("--minutes", type=float, default=8.5, help="parts that do not fit any more are left out")
    parser.add_argument("--rehearse", action="store_true", help="on the CPU, tiny: runs every part, measures nothing")
    parser.add_argument("--recordings", type=Path, metavar="FILE", help="recorded solutions, one problem per line")
    return parser


def main() -> None:
    args = make_parser().parse_args()
    from reason.bench.gpu_report.lines import ReportFiles, count_results, merge_reports
    from reason.bench.gpu_report.parts import choose_parts
    from reason.bench.gpu_report.rig import RigSettings
    from reason.bench.gpu_report.runner import run_parts

    try:
        if args.merge:
            args.out.write_text(merge_reports(args.merge), encoding="utf-8")
            return
        parts = choose_parts(args.part)
    except (ValueError, OSError) as error:
        sys.exit(str(error))
    # paths of this machine say nothing elsewhere
    words = [Path(word).name if Path(word).is_absolute() else word for word in sys.argv]
    about: dict[str, object] = {
        "command": f"`{shlex.join(['python', *words])}`",
        "date": time.strftime("%Y-%m-%d %H:%M"),
        "rehearsed": args.rehearse,
    }
    report = ReportFiles(args.out, args.part.replace(",", "_"), about)
    report.write_files()
    run_parts(parts, RigSettings(args.rehearse, args.recordings, ROOT), report, minutes=args.minutes)
    print(f"\n{count_results(report.lines)}; {report.json_file}")
    # a line that failed is a result; only a report without lines is an error
    sys.exit(0 if report.lines else 1)


if __name__ == "__main__":
    main()
