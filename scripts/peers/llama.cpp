#!/usr/bin/env bash
# llama.cpp through llama-cpp-python into the folder $1, compiled for this machine's CPU (needs cmake and a C++ compiler).
set -euo pipefail
root=$1
lock=$(dirname "$0")/llama.cpp.lock
[ -x "$root/bin/python" ] || "${PYTHON:-python3}" -m venv "$root"
export CMAKE_ARGS="-DGGML_NATIVE=ON -DCMAKE_BUILD_TYPE=Release" CMAKE_BUILD_PARALLEL_LEVEL
CMAKE_BUILD_PARALLEL_LEVEL=$(nproc)
"$root/bin/python" -m pip install --quiet --disable-pip-version-check --no-input -r "$lock"
"$root/bin/python" -c 'import llama_cpp'
