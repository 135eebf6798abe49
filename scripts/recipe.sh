# shellcheck shell=bash
# What the launchers share; sourced by them. A launcher is a recipe: `title`, `model`, `max_running`
# (and `mtp_model`, where a checkpoint with an MTP layer exists), a function `recipe` that calls
# `flag` and `variable`, and `launch "$@"` at its end. Flags are named as in the newest release.

here=$(dirname "${BASH_SOURCE[0]}")
python=${PYTHON:-python3}
title='' model='' mtp_model='' max_running=64
declare -A given=() switches=() asked=() left_out=() checkpoint=()
extra=() names=() lines=() variables=() serve=()

say() { printf '%s\n' "$*" >&2; }
die() { say "error: $*"; exit 2; }

# switch NAME HELP: an option of this recipe alone; the recipe asks for it with [[ -v asked[NAME] ]]
switch() { switches[$1]=$2; }

# flag NAME [VALUE...] REASON
flag() {
  local name
  name=$(spelled "$1")
  names+=("$name")
  lines+=("$(words "$name" "${@:2:$#-2}")  # ${*: -1}")
}

# variable NAME VALUE REASON: what is set already stays
variable() {
  if [[ -v $1 ]]; then
    variables+=("$(words "$1=${!1}")  # yours; the recipe has $2: $3")
  else
    variables+=("$(words "$1=$2")  # $3")
  fi
}

# the name of a flag in this release
spelled() {
  case $release$1 in
    0.5.9--cuda-graph-bs-decode) printf %s --cuda-graph-bs ;;
    *) printf %s "$1" ;;
  esac
}

# the first of SGLang's names for one flag
canonical() {
  case $1 in
    --model) printf %s --model-path ;;
    --tp | --tensor-parallel-size) printf %s --tp-size ;;
    # a list and a largest batch say the same; given both, 0.5.9 heeds the list alone
    --cuda-graph-bs | --cuda-graph-max-bs | --cuda-graph-max-bs-decode)
      spelled --cuda-graph-bs-decode ;;
    *) spelled "$1" ;;
  esac
}

# words as bash reads them back, quoted where they have to be
words() {
  local word space=
  for word; do
    [[ $word =~ ^[A-Za-z0-9_./:,=+@%-]+$ ]] || word=${word@Q}
    printf '%s%s' "$space" "$word"
    space=' '
  done
}

usage() {
  local name
  cat <<TEXT
usage: ${0##*/} [options] [-- SGLang's own flags]

$title, stock or with OEA.

  --k0 SPEC            serve with OEA: SGLANG_OEA_K0=SPEC, such as 4 or 1:8,8:5,16:4; else stock
TEXT
  [[ -z $mtp_model ]] ||
    echo "  --mtp                draft with the model's own MTP layer (default model: $mtp_model)"
  for name in "${!switches[@]}"; do printf '  %-20s %s\n' "$name" "${switches[$name]}"; done
  cat <<TEXT
  --model ID_OR_PATH   a Hugging Face id or the folder of a checkpoint (default: $model)
  --max-running N      requests at once, and the largest captured batch (default: $max_running)
  --host H, --port P   where to listen (default: 127.0.0.1, 30000)
  --without FLAG       leave out a flag of the recipe; may be repeated
  --dry-run            print the environment and the command, each flag with its reason
  --sglang-version V   with --dry-run: for 0.5.9, 0.5.18 or 0.5.23 instead of what is installed
  --help               this text

What follows -- goes to SGLang; a flag that the recipe has too is replaced. Variables that are set
already win over the recipe's, except SGLANG_OEA_K0, which is --k0's. PYTHON names the Python that
has SGLang (default: python3).
TEXT
}

parse() {
  while (($#)); do
    case $1 in
      --) extra=("${@:2}"); return ;;
      --*=*) set -- "${1%%=*}" "${1#*=}" "${@:2}"; continue ;;
      --help | -h) usage; exit 0 ;;
      --dry-run) asked[$1]=1 ;;
      --mtp)
        [[ -n $mtp_model ]] || die "this recipe has no --mtp: its model has no MTP layer"
        asked[$1]=1 ;;
      --without)
        [[ ${2-} == --?* ]] || die "--without expects a flag such as --tp-size, got '${2-}'"
        left_out[$2]=1
        shift ;;
      --k0 | --model | --max-running | --host | --port | --sglang-version)
        [[ -n ${2-} && $2 != --* ]] || die "$1 expects a value, got '${2-}'; see --help"
        given[$1]=$2
        shift ;;
      *)
        [[ ${switches[$1]+set} ]] ||
          die "unknown option $1; see --help (SGLang's own flags follow --)"
        asked[$1]=1 ;;
    esac
    shift
  done
}

check_options() {
  max_running=${given[--max-running]-$max_running} port=${given[--port]-30000}
  [[ $max_running =~ ^[1-9][0-9]{0,3}$ ]] ||
    die "--max-running expects a whole number from 1 to 9999, got '$max_running'"
  [[ $port =~ ^[1-9][0-9]{0,4}$ && $port -lt 65536 ]] ||
    die "--port expects a whole number from 1 to 65535, got '$port'"
  [[ ! -v given[--sglang-version] || -v asked[--dry-run] ]] ||
    die "--sglang-version only prints: add --dry-run, or leave it out to launch what is installed"
}

# prints SGLang's version and the ways by which OEA can get into it. From metadata and files alone:
# importing SGLang takes seconds and may want a GPU
installed() {
  "$python" - <<'PY'
import importlib.metadata, importlib.util, pathlib

def found(module):
    try:
        return importlib.util.find_spec(module)
    except ModuleNotFoundError:
        return None

ways = [importlib.metadata.version("sglang")]
for folder in found("sglang").submodule_search_locations:
    # a folder of bytecode, left by a patch that was reversed by hand, is no patch
    if pathlib.Path(folder, "srt", "layers", "moe", "oea", "__init__.py").is_file():
        ways.append("patch")
if any(e.name == "oea" for e in importlib.metadata.entry_points(group="sglang.srt.plugins")):
    ways.append("plugin")
if found("sglang_oea.launch_server"):
    ways.append("launcher")
print(*ways)
PY
}

# sets release (what the recipe is for) and module (what Python runs)
find_release() {
  local version=${given[--sglang-version]-} ways=launcher
  if [[ -z $version ]]; then
    ways=$(installed 2>/dev/null) ||
      die "$python has no SGLang; install 0.5.9, 0.5.18 or 0.5.23, or name its Python: PYTHON=..."
    version=${ways%% *}
  fi
  # a post-release, or a build of one's own, has the flags of its release
  release=${version%%+*} release=${release%%.post*}
  case $release in
    0.5.9 | 0.5.18 | 0.5.23) ;;
    *) die "no recipe for SGLang $version; expected 0.5.9, 0.5.18 or 0.5.23: install one of them," \
      "or print the nearest one's command with --dry-run --sglang-version and adapt it" ;;
  esac
  module=sglang.launch_server
  # this release loads no plugins: ours hands over to SGLang's own module, with OEA or without
  [[ $release != 0.5.9 || $ways != *launcher* ]] || module=sglang_oea.launch_server
  if [[ -v given[--k0] && ! -v given[--sglang-version] ]]; then check_oea "$ways"; fi
}

# a requested OEA that is not there is said before the load, not after the benchmark
check_oea() {
  local needed=plugin
  [[ $release != 0.5.9 ]] || needed=launcher
  [[ $1 != *patch* ]] || return 0
  [[ $1 == *$needed* ]] ||
    die "--k0: neither the package sglang-oea nor its patch is in the SGLang of $python;" \
      "install it there (pip install --no-deps .), or apply patches/sglang-$release.patch"
  [[ $needed == launcher || -z ${SGLANG_PLUGINS-} || ,${SGLANG_PLUGINS// /}, == *,oea,* ]] ||
    die "--k0: SGLANG_PLUGINS=$SGLANG_PLUGINS keeps the plugin out; add oea to it, or unset it"
}

# sets model, and what its folder says of it; nothing is known of a hub id but what the recipe knows
find_model() {
  local key value described plain=$model
  if [[ -v asked[--mtp] ]]; then model=$mtp_model; fi
  model=${given[--model]-$model}
  if [[ -d $model ]]; then
    described=$("$python" "$here/checkpoint.py" "$model") || exit 2
    while IFS='=' read -r key value; do checkpoint[$key]=$value; done <<<"$described"
  else
    [[ $model != [/.~]* ]] ||
      die "--model: there is no folder $model; give the folder of a checkpoint, or a hub id"
    [[ $model != "$plain" || $plain == "$mtp_model" ]] || checkpoint[mtp_layers]=0
  fi
  [[ ! -v asked[--mtp] || ${checkpoint[mtp_layers]-1} != 0 ]] ||
    die "--mtp: $model has no MTP layer; give a checkpoint that has one, such as $mtp_model"
}

# requests, not tokens, in each release. Every size up to 16: a padded graph activates experts for
# rows that nobody sent. Then SGLang's own steps, finer with MTP, and the cap itself
graph_sizes() {
  local size=1
  while ((size < max_running)); do
    printf '%s\n' "$size"
    if ((size < 16)); then ((size += 1))
    elif [[ -v asked[--mtp] ]] && ((size < 64)); then ((size += size < 32 ? 2 : 4))
    elif ((size < 256)); then ((size += 8))
    else ((size += 16)); fi
  done
  printf '%s\n' "$max_running"
}

common_flags() {
  local sizes
  flag --model-path "$model" 'the checkpoint'
  flag --host "${given[--host]-127.0.0.1}" 'where to listen'
  flag --port "$port" 'where to listen'
  flag --max-running-requests "$max_running" 'the largest batch; beyond it requests wait'
  mapfile -t sizes < <(graph_sizes)
  flag --cuda-graph-bs-decode "${sizes[@]}" \
    'every batch up to 16, so that no row is padding; capped, since graphs take memory'
}

mtp() {
  [[ $release != 0.5.9 ]] ||
    variable SGLANG_ENABLE_SPEC_V2 True 'MTP runs out of memory without; later releases always do'
  variable SGLANG_OEA_MODES decode,verify \
    'MTP decodes in verification, 4 rows a request; nothing to stock'
  flag --speculative-algorithm EAGLE 'how SGLang runs an MTP layer'
  flag --speculative-num-steps 3 'drafts a step'
  flag --speculative-eagle-topk 1 'a chain, not a tree: all that spec v2 takes'
  flag --speculative-num-draft-tokens 4 'steps + 1: the rows a request has in verification'
}

# drops what --without names and what the caller gives, then adds that
replace() {
  local i name value
  for name in "${!left_out[@]}"; do
    drop "$name" || die "--without $name: the recipe has no such flag; it has ${names[*]}"
  done
  while ((${#extra[@]})); do
    [[ ${extra[0]} == --?* ]] || die "expected a flag of SGLang after --, got '${extra[0]}'"
    i=1
    while ((i < ${#extra[@]})) && [[ ${extra[i]} != --* ]]; do ((i += 1)); done
    value=$(words "${extra[@]:0:i}")
    name=${extra[0]%%=*}
    [[ $name != --max-running-requests ]] ||
      die "$name after --: use --max-running, since the captured batches follow it"
    if drop "$name"; then value+="  # yours, in place of the recipe's"; else value+='  # yours'; fi
    lines+=("$value")
    extra=("${extra[@]:i}")
  done
}

# removes a flag of the recipe by any of its names; fails where the recipe has none
drop() {
  local i name
  name=$(canonical "$1")
  for i in "${!names[@]}"; do
    [[ ${names[i]} == "$name" ]] || continue
    unset "names[i]" "lines[i]"
    return
  done
  return 1
}

# what is not as the caller may think
notes() {
  local limit=${SGLANG_OEA_MAX_ROWS:-256} rows=$max_running
  if [[ -n ${SGLANG_OEA_K0-} && ! -v given[--k0] ]]; then
    say "note: SGLANG_OEA_K0=$SGLANG_OEA_K0 is not passed on; without --k0 this is stock SGLang"
  fi
  # a limit that is no number is the server's to refuse
  [[ -v given[--k0] && $limit =~ ^[1-9][0-9]{0,4}$ ]] || return 0
  if [[ -v asked[--mtp] ]]; then ((rows *= 4)); fi
  ((rows <= limit)) ||
    say "note: $max_running requests are $rows rows; OEA steps aside in batches and graphs of" \
      "more than SGLANG_OEA_MAX_ROWS=$limit"
}

# an array in bash's own syntax, so that what is printed is what runs
command_text() {
  local k0="-u SGLANG_OEA_K0  # stock routing, whatever this shell has set"
  [[ ! -v given[--k0] ]] ||
    k0="$(words "SGLANG_OEA_K0=${given[--k0]}")  # OEA: so many experts a row keeps of its own"
  printf 'serve=(\n  env\n'
  printf '  %s\n' "$k0" "${variables[@]}" "$(words "$python" -m "$module")" "${lines[@]}"
  printf ')\n'
}

launch() {
  parse "$@"
  check_options
  find_release
  find_model
  common_flags
  recipe
  if [[ -v asked[--mtp] ]]; then mtp; fi
  replace
  notes
  if [[ -v asked[--dry-run] ]]; then
    command_text
    # shellcheck disable=SC2016  # for the shell that it is pasted into
    echo '"${serve[@]}"'
  else
    eval "$(command_text)"
    exec "${serve[@]}"
  fi
}
