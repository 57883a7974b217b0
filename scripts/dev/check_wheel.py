"""Build the wheel, install it into an empty environment, and solve a problem with it in another folder."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOLVE = """
import json, reason
from reason.tasks.synthetic import Synthetic
problem = Synthetic(families=["residues"], size=1)[0]
with reason.load("search.n=4") as solver:
    solution = solver.solve(problem)
report = {"where": reason.__file__, "answer": solution.answer, "gold": problem.answer, "nodes": len(solution.tree)}
print(json.dumps(report))
"""


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        run_command(sys.executable, "-m", "build", "--wheel", "--outdir", str(here), str(ROOT))
        (wheel,) = here.glob("*.whl")
        venv.create(here / "env", with_pip=True)
        python = str(here / "env" / "bin" / "python")
        run_command(python, "-m", "pip", "install", "-q", "-c", str(ROOT / "constraints.txt"), str(wheel))
        report = json.loads(run_command(python, "-c", SOLVE, cwd=here).splitlines()[-1])
        if str(here) not in report["where"] or report["answer"] is None:
            raise SystemExit(f"the installed wheel did not solve the problem: {report}")
        print(json.dumps({"wheel": wheel.name, "wheel_mb": round(wheel.stat().st_size / 1e6, 1), **report}))


def run_command(*command: str, cwd: Path | None = None) -> str:
    """Returns the output of a command. Raises: SystemExit with its output when it fails."""
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command[:4])} failed:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    return done.stdout


if __name__ == "__main__":
    main()
