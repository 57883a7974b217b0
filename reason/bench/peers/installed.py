"""Lists the engines that can be compared, and opens those that are installed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import torch

from decoding.model.transformers_checkpoint import HFBackend
from reason.bench.baselines import TransformersModel
from reason.bench.peers.conversion import convert_once
from reason.bench.peers.ctranslate import CTranslate2Peer, convert_checkpoint
from reason.bench.peers.gguf_file import write_gguf
from reason.bench.peers.interface import PeerEngine
from reason.bench.peers.llama_cpp_engine import LlamaCppPeer
from reason.bench.peers.local_engine import LocalPeer, TransformersPeer

OURS = "ours"


@dataclass(frozen=True)
class PeerModel:
    """The model that all engines decode: its folder, opened by the local engine and by transformers, in one dtype."""

    source: str
    backend: HFBackend
    model: TransformersModel
    threads: int

    @property
    def is_bfloat16(self) -> bool:
        """Whether it is decoded in bfloat16; otherwise in float32."""
        return self.backend.dtype == torch.bfloat16


@dataclass(frozen=True)
class PeerPackage:
    """What an engine needs: packages, as pip and as Python call them, and a function that opens it."""

    packages: Mapping[str, str]
    open_engine: Callable[[PeerModel], PeerEngine]

    def list_missing(self) -> list[str]:
        """Returns the packages that are not installed, as pip calls them."""
        return [package for package, module in self.packages.items() if find_spec(module) is None]


def _open_llama_cpp(model: PeerModel, *, shares_cells: bool) -> LlamaCppPeer:
    name, dtype = ("bf16.gguf", "bfloat16") if model.is_bfloat16 else ("f32.gguf", "float32")
    write = partial(write_gguf, is_bfloat16=model.is_bfloat16)
    file = convert_once(model.source, name, version("gguf"), write)
    return LlamaCppPeer(file, model.threads, dtype=dtype, shares_cells=shares_cells)


def _open_ctranslate2(model: PeerModel) -> CTranslate2Peer:
    folder = convert_once(model.source, "ctranslate2", version("ctranslate2"), convert_checkpoint)
    return CTranslate2Peer(folder, model.threads, wants_bfloat16=model.is_bfloat16)


_LLAMA_CPP = {"llama-cpp-python": "llama_cpp", "gguf": "gguf"}
PEERS: Mapping[str, PeerPackage] = {
    OURS: PeerPackage({}, lambda model: LocalPeer(model.backend)),
    "transformers": PeerPackage({}, lambda model: TransformersPeer(model.model)),
    "llama.cpp": PeerPackage(_LLAMA_CPP, lambda model: _open_llama_cpp(model, shares_cells=True)),
    "llama.cpp copies": PeerPackage(_LLAMA_CPP, lambda model: _open_llama_cpp(model, shares_cells=False)),
    "ctranslate2": PeerPackage({"ctranslate2": "ctranslate2"}, _open_ctranslate2),
}
"""Every engine by its name in tables."""


def open_peers(
    model: PeerModel, names: Sequence[str], packages: Mapping[str, PeerPackage] = PEERS
) -> tuple[dict[str, PeerEngine], dict[str, str]]:
    """Returns the engines that are installed, and for each of the others a sentence about what to install."""
    missing = {name: packages[name].list_missing() for name in names}
    engines = {name: packages[name].open_engine(model) for name in names if not missing[name]}
    advice = {name: f"not installed: pip install {' '.join(absent)}" for name, absent in missing.items() if absent}
    return engines, advice


def make_peer_model(source: str, backend: HFBackend, model: TransformersModel, threads: int) -> PeerModel:
    """Returns the model of a comparison. Raises: ValueError where `source` is no folder: others convert files."""
    if not Path(source).is_dir():
        raise ValueError(f"--model must be a folder or bundled:NAME, got {source}: the other engines convert its files")
    return PeerModel(source, backend, model, threads)
