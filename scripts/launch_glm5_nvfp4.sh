#!/usr/bin/env bash
# Serves GLM-5-NVFP4 on eight RTX PRO 6000 Blackwell (SM120, 96 GB each, PCIe), stock or with OEA.
#
# Not tried on SM120 by us: no such machine was at hand. Every flag was checked against the
# release's own argument parser; the choices are those of public reports, named by issue number.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=recipe.sh
source "$(dirname "${BASH_SOURCE[0]}")/recipe.sh"

title='GLM-5-NVFP4 on eight RTX PRO 6000 Blackwell'
model=lukealonso/GLM-5-NVFP4
mtp_model=festr2/GLM-5-NVFP4-MTP
max_running=64
switch --dense 'dense attention, BF16 KV cache (default on 0.5.9, and with --mtp)'
switch --native-dsa 'sparse attention, FP8 KV cache (default on 0.5.18 and 0.5.23; not on 0.5.9)'

recipe() {
  choose_attention
  network
  weights
  "$attention"
  memory
  flag --reasoning-parser glm45 'how this family marks its reasoning'
  flag --tool-call-parser glm47 'how this family calls tools'
  flag --watchdog-timeout 1800 "as in NVIDIA's sample for GLM-5.2"
}

choose_attention() {
  [[ ! -v asked[--dense] || ! -v asked[--native-dsa] ]] ||
    die '--dense and --native-dsa exclude each other; give one of them'
  [[ $release != 0.5.9 || ! -v asked[--native-dsa] ]] ||
    die '--native-dsa: 0.5.9 has no indexer kernels for SM120; use a newer release, or --dense'
  attention=native_dsa
  [[ $release != 0.5.9 && ! -v asked[--dense] ]] || attention=dense
  [[ -v asked[--mtp] ]] || return 0
  if [[ -v asked[--native-dsa] ]]; then
    say "note: NVIDIA's GLM-5.2 sample advises against MTP on SM120; --mtp alone is dense"
  else
    attention=dense
  fi
}

network() {
  variable NCCL_P2P_LEVEL SYS 'peer access across both sockets; PHB where one has all GPUs'
  variable NCCL_MIN_NCHANNELS 8 'more bus bandwidth over PCIe: 38 instead of 22 GB/s reported'
  variable NCCL_IB_DISABLE 1 'one machine: no InfiniBand to look for'
  variable OMP_NUM_THREADS 8 'eight processes share the CPU'
  flag --tp-size 8 'the weights take 57 of 96 GB on each of eight GPUs'
  flag --disable-custom-all-reduce 'off anyway with more than two GPUs on PCIe'
}

weights() {
  if [[ ${checkpoint[nvfp4]-1} == 1 ]]; then
    flag --quantization modelopt_fp4 'the experts are NVFP4'
    flag --moe-runner-backend flashinfer_cutlass 'the FP4 expert kernels of SM120'
    flag --fp4-gemm-backend flashinfer_cutlass 'FP4 linear layers; flashinfer_cudnn if NaN appear'
  fi
  if [[ -z ${checkpoint[excludes_shared_experts]-} ]]; then
    flag --disable-shared-experts-fusion 'safe for each checkpoint, needed by some (sglang #29562)'
  elif [[ ${checkpoint[excludes_shared_experts]} == 1 ]]; then
    flag --disable-shared-experts-fusion 'this checkpoint keeps them out of FP4 (sglang #29562)'
  fi
}

dense() {
  # newer releases leave DeepGEMM out on SM120, or have kernels for it
  [[ $release != 0.5.9 ]] ||
    variable SGLANG_ENABLE_JIT_DEEPGEMM 0 'takes SM120 for SM100 and gives NaN (sglang #19948)'
  flag --attention-backend flashinfer 'dense MLA, which SM120 runs; weaker beyond 100K tokens'
  flag --kv-cache-dtype bf16 'FP8 garbled the text on 0.5.9; auto would be FP8'
}

native_dsa() {
  variable SGLANG_DSA_PREFILL_DENSE_ATTN_KV_LEN_THRESHOLD 0 \
    'dense attention for short prompts answers wrongly on SM120'
  flag --attention-backend dsa "the model's own sparse attention"
  flag --dsa-prefill-backend flashinfer_sparse_mla 'the one that SM120 has (sglang #26928)'
  flag --dsa-decode-backend flashinfer_sparse_mla 'the same'
  flag --kv-cache-dtype fp8_e4m3 'what these kernels read'
  flag --page-size 64 'what these kernels read'
}

memory() {
  if [[ -v asked[--mtp] ]]; then
    flag --mem-fraction-static 0.85 'weights and KV cache; the draft and its graphs take the rest'
    flag --speculative-moe-runner-backend triton 'the MTP layer is BF16, not FP4 (sglang #30209)'
  else
    flag --mem-fraction-static 0.88 'weights and KV cache; the rest is for activations and graphs'
  fi
  flag --chunked-prefill-size 8192 'bounds the activations of a long prompt'
  flag --disable-radix-cache \
    'the cache flatters a benchmark, gives NaN with MTP (sglang #20043); chats without MTP want it'
}

launch "$@"
