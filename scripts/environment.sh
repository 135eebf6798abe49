# shellcheck shell=bash
# Makes or reuses the Python environment that the demo and the tests share; sourced by demo.sh and
# test.sh. Sets PYTHON. The folder lies outside the clone and is named by what it holds, so that
# clones share it; SGLANG_OEA_VENV names another one.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/sglang-oea
needed_gb=12

say() { printf '%s\n' "$*" >&2; }
die() { say "error: $*"; exit 2; }

# prints the first Python of a release that SGLang has wheels for
find_python() {
  local name
  for name in python3.11 python3.12 python3.13 python3; do
    "$name" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' \
      >/dev/null 2>&1 && { command -v "$name"; return; }
  done
  die "no Python 3.11, 3.12 or 3.13 on PATH (got: $(python3 --version 2>&1 || true)); install one"
}

check_machine() {
  [[ $(uname -s)-$(uname -m) == Linux-x86_64 ]] ||
    die "this is $(uname -s) on $(uname -m); SGLang's wheels need Linux on x86_64"
  local glibc
  glibc=$("$1" -c 'import platform; print(platform.libc_ver()[1] or "none")')
  [[ $glibc != none && $(printf '%s\n' 2.34 "$glibc" | sort -V | head -n 1) == 2.34 ]] ||
    die "glibc is $glibc; SGLang's wheels need 2.34 or newer (Debian 12, Ubuntu 22.04, RHEL 9)"
  "$1" -c 'import ensurepip, venv' 2>/dev/null ||
    die "$1 cannot make virtual environments; on Debian: apt-get install python3-venv"
}

# prints the requirements of the extras serve and dev, one a line: pyproject.toml is their one home
requirements() {
  "$1" - "$root/pyproject.toml" <<'PY'
import sys, tomllib
extras = tomllib.load(open(sys.argv[1], "rb"))["project"]["optional-dependencies"]
print("\n".join(sorted(extras["serve"] + extras["dev"])))
PY
}

check_disk() {
  local free
  free=$(df -Pk "$1" | awk 'NR == 2 { print int($4 / 1024 / 1024) }')
  ((free >= needed_gb)) ||
    die "$1 has $free GB free, and SGLang needs $needed_gb GB; set SGLANG_OEA_VENV to a roomier place"
}

# runs a command, and says every 15 seconds that it is still at work
with_progress() {
  local start=$SECONDS job
  "$@" &
  job=$!
  # the command is a background job: without this it would outlive an interrupt
  trap 'kill "$job" 2>/dev/null; exit 130' INT TERM HUP
  while kill -0 "$job" 2>/dev/null; do
    sleep 1
    (((SECONDS - start) % 15)) || say "  ... $((SECONDS - start)) s"
  done
  trap - INT TERM HUP
  wait "$job"
}

make_venv() {
  local python=$1 venv=$2
  mkdir -p "$venv"
  check_disk "$venv"
  say "installing SGLang into $venv (about 11 GB; some minutes, once)"
  touch "$venv/.unfinished"
  "$python" -m venv --clear "$venv"
  touch "$venv/.unfinished"
  # shellcheck disable=SC2046  # one requirement a word
  with_progress "$venv/bin/python" -m pip install --quiet --disable-pip-version-check \
    setuptools $(requirements "$python") || die "pip could not install SGLang; see above"
  rm "$venv/.unfinished"
}

use_environment() {
  local python venv key wanted found
  python=$(find_python)
  check_machine "$python"
  wanted=$(requirements "$python")
  key=$(printf '%s\n' "$("$python" -VV)" "$wanted" | sha256sum | cut -c 1-12)
  venv=${SGLANG_OEA_VENV:-$cache/venv-$key}
  mkdir -p "$(dirname "$venv")" || die "cannot make $(dirname "$venv")"
  # two runs at once must not install into one folder
  exec 9>"$venv.lock"
  flock 9
  if [[ ! -e $venv || -e $venv/.unfinished || -z $(ls -A "$venv") ]]; then
    make_venv "$python" "$venv"
  fi
  PYTHON=$venv/bin/python
  found=$("$PYTHON" -c 'from importlib.metadata import version; print(version("sglang"))' 2>&1) ||
    die "$venv is no virtual environment with SGLang; set SGLANG_OEA_VENV to another folder, or unset it"
  grep -qx "sglang==$found" <<<"$wanted" ||
    die "$venv holds sglang $found, expected: $(grep ^sglang <<<"$wanted"); set SGLANG_OEA_VENV to another folder"
  # editable, so that this clone is what runs; needs no network
  "$PYTHON" -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation \
    -e "$root" -e "$root/scripts/cpu_platform" || die "this clone could not be installed into $venv"
  exec 9>&-
  export PYTHONNOUSERSITE=1
  unset SGLANG_OEA_VENV PYTHONPATH
}
