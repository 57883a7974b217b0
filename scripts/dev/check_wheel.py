"""Build the wheel, install it beside packages of the same names as our folders, and use it as a user does.

In a new environment and another folder: the command solves, resumes, loads a plug-in, serves a request and names its
benchmarks; SGLang's entry point resolves; `search`, `conf`, `decoding` and `scripts` of other projects stay as they
were, and nothing of ours but `reason` is at the top of the installed packages. Alone, without extras, it takes less
than 1 GB (beside the bytecode that pip compiles, a fifth more) and solves without drafts; with `full` it drafts.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NAMESAKES = ("search", "conf", "decoding", "scripts")
LEAN_MB = 1000
QUESTION = "x0 = 3. Each next term is 5 times the one before plus 8, modulo 19. Find x3."
LIBRARY = f"""
import json, reason
from reason.search.strategies.best_of_n import BestOfN
with reason.load("search.n=16") as solver:
    solution = solver.solve({QUESTION!r})
    assert isinstance(solver.strategy, BestOfN), solver.strategy
print(json.dumps({{"where": reason.__file__, "answer": solution.answer, "version": reason.__version__}}))
"""
ENTRY_POINT = """
from importlib.metadata import entry_points
(found,) = entry_points(group="sglang.srt.plugins")
print(found.load().__module__)
"""


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        run_command(sys.executable, "-m", "build", "--wheel", "--outdir", str(here), str(ROOT))
        (wheel,) = here.glob("*.whl")
        venv.create(here / "env", with_pip=True)
        programs = here / "env" / "bin"
        python, reason = str(programs / "python"), str(programs / "reason")
        packages = Path(run_command(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
        before, before_mb = write_namesakes(packages), megabytes(packages)
        work = here / "work"
        work.mkdir()
        sizes: dict[str, object] = {"wheel_mb": megabytes(wheel)}
        sizes["lean_seconds"] = install(python, f"{wheel}")
        lean_mb = sizes["lean_mb"] = round(megabytes(packages) - before_mb, 1)
        require(lean_mb < LEAN_MB, f"without extras it takes {lean_mb} MB, not under {LEAN_MB}")
        require(not check_drafts(reason, work), "without the extra `full` tokens are drafted")
        sizes["full_seconds"] = install(python, f"{wheel}[full,serve]")
        sizes["full_mb"] = round(megabytes(packages) - before_mb, 1)
        require(check_drafts(reason, work), "with the extra `full` no tokens are drafted")
        checks = {
            "library": check_library(python, work),
            "command": check_command(reason, work),
            "plug_in": check_plug_in(reason, work),
            "server": check_server(reason, work),
            "entry_point": run_command(python, "-c", ENTRY_POINT, cwd=work).strip(),
        }
        check_namesakes(python, packages, before, work)
        print(json.dumps({"wheel": wheel.name, **sizes, **checks}))


def install(python: str, package: str) -> int:
    """Installs a package with the tested versions; returns the seconds."""
    start = time.monotonic()
    run_command(python, "-m", "pip", "install", "-q", "-c", str(ROOT / "constraints.txt"), package)
    return round(time.monotonic() - start)


def check_drafts(reason: str, work: Path) -> bool:
    """Solves a question and requires its answer; returns whether tokens were drafted."""
    summary = solve(reason, work, f"question={QUESTION}", "search.n=16")
    (row,) = (work / str(summary["folder"]) / "results.jsonl").read_text(encoding="utf-8").splitlines()
    require(json.loads(row)["answer"] == "15", f"the question gave {row[:500]}")
    return summary["speculation"] != "off"


def check_library(python: str, work: Path) -> str:
    """Solves from Python with the installed package; returns the answer."""
    report = json.loads(run_command(python, "-c", LIBRARY, cwd=work).splitlines()[-1])
    require(str(work.parent) in report["where"] and report["answer"] == "15", f"the library answered {report}")
    return str(report["answer"])


def check_command(reason: str, work: Path) -> str:
    """Solves and resumes with the installed command, and asks it about itself; returns its version."""
    version = run_command(reason, "--version").strip()
    for arguments, expected in (
        (["--help"], "serve-models"),
        (["bench"], "replay"),
        (["solve", "--help"], "search"),
        (["report", "--help"], "reason report"),
        (["doctor"], "ready: reason solve"),
    ):
        require(expected in run_command(reason, *arguments, cwd=work), f"reason {' '.join(arguments)}: no {expected}")
    wrong = subprocess.run([reason, "solv"], capture_output=True, text=True, check=False)
    require(wrong.returncode == 2 and "did you mean solve?" in wrong.stderr, f"reason solv: {wrong}")
    summary = solve(reason, work, "+task=synthetic", "limit=1", "search.n=4", "hydra.run.dir=run")
    require(summary["problems"] == 1 and summary["errors"] == 0, f"the command solved {summary}")
    saved = json.loads((work / "run" / "run.json").read_text(encoding="utf-8"))
    require(saved["command"].startswith("reason solve +task=synthetic"), f"run.json: {saved['command']}")
    require(solve(reason, work, "resume=run", "limit=2")["resumed"] == 1, "the run is not resumed")
    return version


def check_plug_in(reason: str, work: Path) -> str:
    """Searches with the example of a strategy, whose imports have the prefix; returns its name."""
    shutil.copytree(ROOT / "examples", work / "examples")
    options = ["--config-dir", "examples/settings", "plugins=[examples/add_a_strategy.py]", "search=above_average"]
    summary = solve(reason, work, *options, "search.n=4", f"question={QUESTION}")
    require(summary["search"] == "above_average" and summary["errors"] == 0, f"the plug-in gave {summary}")
    return str(summary["search"])


def check_server(reason: str, work: Path) -> str:
    """Sends one request to the installed server; returns the text of its answer."""
    command = [reason, "serve", "serve.port=0", "serve.presets=[best-of-16]"]
    server = subprocess.Popen(command, cwd=work, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    try:
        url = next((line.split()[-1] for line in server.stdout if line.startswith("base url ")), None)
        require(url is not None, "the server did not start")
        body = {"model": "best-of-16", "messages": [{"role": "user", "content": QUESTION}]}
        request = urllib.request.Request(f"{url}/chat/completions", json.dumps(body).encode())
        request.add_header("Content-Type", "application/json")
        with urllib.request.urlopen(request, timeout=300) as reply:
            text = str(json.load(reply)["choices"][0]["message"]["content"])
    finally:
        server.send_signal(signal.SIGTERM)
        server.communicate(timeout=60)
    require("15" in text, f"the server answered {text!r}")
    return text.splitlines()[-1]


def write_namesakes(packages: Path) -> dict[str, bytes]:
    """Installs packages of other projects with the names of our folders; returns their sources."""
    sources = {f"{name}/__init__.py": f"NAME = 'the {name} of another project'\n".encode() for name in NAMESAKES}
    for path, source in sources.items():
        (packages / path).parent.mkdir()
        (packages / path).write_bytes(source)
    return sources


def check_namesakes(python: str, packages: Path, before: dict[str, bytes], work: Path) -> None:
    """The packages of other projects are what they were, alone and beside ours."""
    for path, source in before.items():
        require((packages / path).read_bytes() == source, f"{path} was overwritten")
        extra = [
            file.name
            for file in (packages / path).parent.iterdir()
            if file.name not in (Path(path).name, "__pycache__")
        ]
        require(not extra, f"{path} has ours beside it: {extra}")
    code = "import reason; reason.load\n" + "".join(f"import {name}; print({name}.NAME)\n" for name in NAMESAKES)
    printed = run_command(python, "-c", code, cwd=work).splitlines()
    require(printed == [f"the {name} of another project" for name in NAMESAKES], f"imported: {printed}")


def solve(reason: str, work: Path, *settings: str) -> dict[str, object]:
    """Returns the summary of a run of the installed command."""
    summary: dict[str, object] = json.loads(run_command(reason, "solve", *settings, cwd=work).splitlines()[-1])
    return summary


def megabytes(path: Path) -> float:
    """Returns the size of a file, or of all files below a folder without bytecode, in MB."""
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file() and file.suffix != ".pyc"]
    return round(sum(file.stat().st_size for file in files) / 1e6, 1)


def require(is_met: bool, message: str) -> None:
    """Raises: SystemExit with the message where a condition is not met."""
    if not is_met:
        raise SystemExit(f"the installed wheel: {message}")


def run_command(*command: str, cwd: Path | None = None) -> str:
    """Returns the output of a command. Raises: SystemExit with its output when it fails."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command[:4])} failed:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    return done.stdout


if __name__ == "__main__":
    main()
