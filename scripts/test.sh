#!/usr/bin/env bash
# Lint and test: from a fresh clone, without a GPU. Arguments go to pytest.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=environment.sh
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
use_environment
cd "$root"
"$PYTHON" -m ruff check .
"$PYTHON" -m ruff format --check .
exec "$PYTHON" -m pytest -q "$@"
