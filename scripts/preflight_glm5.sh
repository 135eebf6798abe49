#!/usr/bin/env bash
# Says whether this machine is ready to serve GLM-5-NVFP4, before minutes of loading tell.
# PYTHON names the interpreter that will serve (default: python3). --help lists the options.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
python=${PYTHON:-python3}

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || {
  echo "error: $python is no Python of 3.10 or later; set PYTHON to the one that will serve" >&2
  exit 2
}
exec "$python" "$here/preflight" "$@"
