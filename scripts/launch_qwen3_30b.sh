#!/usr/bin/env bash
# Serves Qwen3-30B-A3B in BF16 on one GPU: the paper's own model, and the cheapest way to repeat its
# result. Not tried on a GPU by us; every flag was checked against the releases' argument parsers.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=recipe.sh
source "$(dirname "${BASH_SOURCE[0]}")/recipe.sh"

title='Qwen3-30B-A3B in BF16 on one GPU'
model=Qwen/Qwen3-30B-A3B
max_running=16

recipe() {
  flag --tp-size 1 'one GPU of 80 GB holds the 61 GB of weights'
  flag --dtype bfloat16 'as the paper measured it'
  flag --kv-cache-dtype bfloat16 'as the weights, whatever auto may become'
  flag --mem-fraction-static 0.88 'the rest is for activations and graphs'
  flag --disable-radix-cache 'a prompt seen before would skip its prefill and flatter a benchmark'
}

launch "$@"
