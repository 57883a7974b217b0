"""Compiles Triton kernels for GPUs that this machine need not have, and reads what the compiler made of them.

As a program it reads jobs from stdin and prints results, both as JSON: the kernels of the tests' own process are
interpreted, and cannot be compiled there.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.support.paths import ROOT


@dataclass(frozen=True)
class KernelJob:
    """A kernel, `module:name`, and how it is compiled.

    signature   types of the arguments in Triton's notation, such as *bf16 and i32; pointers are multiples of 16
    constants   values of the constexpr arguments
    capability  compute capability of the GPU: 80, 90
    options     num_warps, num_stages
    """

    kernel: str
    signature: Mapping[str, str]
    constants: Mapping[str, int]
    capability: int
    options: Mapping[str, int]


@dataclass(frozen=True)
class CompiledKernel:
    """What the GPU's assembler made of a kernel.

    registers     of each thread
    stack_bytes   of each thread; spilled registers are there
    shared_bytes  of each program
    instructions  how often each occurs, without suffixes
    """

    registers: int
    stack_bytes: int
    shared_bytes: int
    instructions: Mapping[str, int]


def compile_kernels(jobs: Sequence[KernelJob]) -> list[CompiledKernel]:
    """Returns the compiled kernels, in the order of the jobs."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.compiled_kernels"],
        input=json.dumps([asdict(job) for job in jobs]),
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | {"TRITON_INTERPRET": "0"},
    )
    assert done.returncode == 0, done.stderr
    return [CompiledKernel(**result) for result in json.loads(done.stdout)]


def _compile_kernel(job: KernelJob) -> CompiledKernel:
    import triton
    from triton.backends.compiler import GPUTarget

    module, _, name = job.kernel.partition(":")
    kernel = getattr(import_module(module), name)
    _bind_arguments(kernel, job)
    places = {argument: (i,) for i, argument in enumerate(kernel.arg_names)}
    source = triton.compiler.ASTSource(
        fn=kernel,
        signature={argument: job.signature.get(argument, "constexpr") for argument in kernel.arg_names},
        constexprs={places[argument]: value for argument, value in job.constants.items()},
        attrs={places[argument]: [["tt.divisibility", 16]] for argument, t in job.signature.items() if t[0] == "*"},
    )
    compiled = triton.compile(source, target=GPUTarget("cuda", job.capability, 32), options=dict(job.options))
    usage = _disassemble("--dump-resource-usage", compiled.asm["cubin"])
    registers, stack = re.search(rf"Function {name}:\s+REG:(\d+) STACK:(\d+)", usage).groups()  # type: ignore[union-attr]
    lines = re.findall(r"/\*[0-9a-f]{4}\*/ +(?:@!?\w+ )?(\w+)", _disassemble("--dump-sass", compiled.asm["cubin"]))
    return CompiledKernel(int(registers), int(stack), compiled.metadata.shared, dict(Counter(lines)))


def _bind_arguments(kernel: Any, job: KernelJob) -> None:
    """Binds arguments as a launch does: its code has names of its own, which an argument must not have.

    Raises: TypeError.
    """
    import torch
    from triton.backends.compiler import GPUTarget
    from triton.compiler import make_backend
    from triton.runtime.jit import create_function_from_signature

    backend = make_backend(GPUTarget("cuda", job.capability, 32))
    values = {name: torch.empty(1) if text[0] == "*" else 1 for name, text in job.signature.items()}
    create_function_from_signature(kernel.signature, kernel.params, backend)(**values, **job.constants)


def _disassemble(option: str, binary: bytes) -> str:
    from triton.backends import nvidia

    program = Path(nvidia.__path__[0]) / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary)
        file.flush()
        return subprocess.run([program, option, file.name], capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    read: list[dict[str, Any]] = json.load(sys.stdin)
    print(json.dumps([asdict(_compile_kernel(KernelJob(**job))) for job in read]))
