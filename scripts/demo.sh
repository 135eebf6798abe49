#!/usr/bin/env bash
# From a fresh clone to a served Mixture-of-Experts model, with OEA off and on side by side.
# demo.sh --help lists its options.
# SGLANG_OEA_VENV names the folder of the Python environment, if not one in the user's cache.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=environment.sh
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
# what is wrong with the arguments is said before anything is installed
python=$(find_python)
"$python" "$root/scripts/demo.py" --cache "$cache" --check "$@"
for argument; do
  [[ $argument != -h && $argument != --help ]] || exit 0
done
use_environment
exec "$PYTHON" "$root/scripts/demo.py" --cache "$cache" "$@"
