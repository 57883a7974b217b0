#!/bin/sh
# setup.sh [FOLDER [VERSION]]: SGLang on a CPU, in a virtual environment of its own (.venv-sglang), with our plugin in it.
# SGLang declares GPU packages that do not load here, so it comes without its dependencies, and requirements.txt has
# those it really imports. decoding/sglang_plugin/cpu_stand_ins replaces the packages that are compiled for GPUs only.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
folder=${1:-"$here/../../.venv-sglang"}
version=${2:-0.5.23}
"${PYTHON:-python3}" -m venv "$folder"
pip() { "$folder/bin/python" -m pip install -q --no-compile "$@"; }
pip -r "$here/requirements.txt"
pip --no-deps "sglang==$version" sglang-router==0.3.2
pip --no-deps -e "$here/../.."
"$folder/bin/python" -m compileall -q -j 0 "$folder/lib" || true # on all cores; a server starts in half the time
