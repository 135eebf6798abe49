"""What a patch changes in SGLang's own files, release by release, as data.

One `Edit` is one insertion next to a line that is there exactly once; nothing is replaced. The
texts are in SGLang's style, since they are to be read there.
"""

from dataclasses import dataclass

# where a patch puts the package's core/, below python/ of SGLang's tree
HOME = "sglang/srt/layers/moe/oea"

_TOPK = "sglang/srt/layers/moe/topk.py"
_RUNNER = "sglang/srt/model_executor/model_runner.py"
_SCHEDULER = "sglang/srt/managers/scheduler.py"
_INTERNAL_STATE = "sglang/srt/managers/scheduler_components/internal_state.py"
_ENVIRON = "sglang/srt/environ.py"

_IMPORT = "from sglang.srt.layers.moe.oea.active import oea\n"
_VARIABLES = """\
    # Opportunistic expert activation, see srt/layers/moe/oea/config.py
    SGLANG_OEA_K0 = EnvStr(None)
    SGLANG_OEA_MODES = EnvStr("decode")
    SGLANG_OEA_IMPL = EnvStr("auto")
    SGLANG_OEA_MAX_ROWS = EnvInt(256)
    SGLANG_OEA_MAX_RANK = EnvInt(None)
    SGLANG_OEA_STRICT = EnvBool(True)
"""
_ADMIT = """\
        # Refuse what OEA cannot be served with before minutes of loading weights.
        oea.admit(self)
"""
_PREPARE = """\
        if oea.admitted:
            from sglang.srt.layers.moe.fused_moe_triton.layer import FusedMoE
            from sglang.srt.layers.moe.topk import TopK

            oea.prepare(self, TopK, FusedMoE, {tp_group}.cpu_group)

"""
_REROUTE = """\
    if oea.is_open:
        topk_weights, topk_ids = oea.reroute_topk(
            topk_weights,
            topk_ids,
            router_logits,
            topk_config,
            layer_id,
            num_token_non_padded,
{left_alone}        )
{then}
"""
_LEFT_ALONE_0_5_9 = """\
            # The routing functions of this release map the ids themselves.
            left_alone=(
                "its routing function maps logical to physical experts"
                if expert_location_dispatch_info is not None
                else None
            ),
"""
_LEFT_ALONE_0_5_23 = """\
            left_alone=(
                "its bias differs by token" if dynamic_expert_bias is not None else None
            ),
"""
_THEN_0_5_18 = """\
        # A packed copy holds the stock ids.
        packed_topk = None
"""
_THEN_0_5_23 = """\
        # A packed copy holds the stock ids, and rows that the router masked hold experts again.
        packed_topk, padded_rows_masked = None, False
"""
_REPORT = """\
        ret["oea"] = oea.report()
"""
_ADDED = """\
            self._add_oea,
"""
_ADD_REPORT = """\
    def _add_oea(self, state: Dict[str, Any]) -> None:
        state["oea"] = oea.report()

"""
_HANDLER = """\
            "oea_k0": _UpdateHandler(self._validate_oea_k0, self._apply_oea_k0),
"""
_HANDLE = """\
    def _validate_oea_k0(self, key: str, value: Any) -> None:
        problem = oea.why_bad_k0(value)
        if problem is not None:
            raise UpdateRejected(f"Updating {key} is rejected: {problem}")

    def _apply_oea_k0(self, key: str, value: Any) -> None:
        # A device table that captured graphs read, not a server arg.
        oea.set_k0(value)

"""


@dataclass(frozen=True)
class Edit:
    """An insertion into one file of SGLang.

    `at` is a text that the file holds exactly once; `text` goes right before or right after it.
    """

    path: str
    at: str
    text: str
    before: bool = False

    def apply(self, source: str) -> str:
        """The file with this edit.

        Raises:
            SystemExit: the place is not there, or not once.
        """
        found = source.count(self.at)
        if found != 1:
            raise SystemExit(
                f"error: {self.path} does not have the place of an edit\n"
                f"  got:      {found} times {self.at.strip()!r}\n"
                "  expected: once\n"
                "  fix:      choose another line to stand at in scripts/patch_edits.py"
            )
        parts = (self.text, self.at) if self.before else (self.at, self.text)
        return source.replace(self.at, "".join(parts))


def _environ(at: str) -> Edit:
    return Edit(_ENVIRON, at, _VARIABLES + "\n", before=True)


def _topk(import_at: str, place: str, left_alone: str = "", then: str = "") -> tuple[Edit, ...]:
    reroute = _REROUTE.format(left_alone=left_alone, then=then)
    return (
        Edit(_TOPK, import_at, _IMPORT, before=True),
        Edit(_TOPK, place, reroute, before=True),
    )


def _runner(import_at: str, next_method: str, tp_group: str) -> tuple[Edit, ...]:
    start = "    def load_model(self):\n        tic_total = time.perf_counter()\n"
    prepare = _PREPARE.format(tp_group=tp_group)
    return (
        Edit(_RUNNER, import_at, _IMPORT, before=True),
        Edit(_RUNNER, start, _ADMIT),
        Edit(_RUNNER, next_method, prepare, before=True),
    )


def _scheduler() -> tuple[Edit, ...]:
    import_at = "from sglang.srt.layers.quantization.fp4_utils import initialize_fp4_gemm_config\n"
    place = '        ret["effective_max_running_requests_per_dp"] = self.max_running_requests\n'
    return (
        Edit(_SCHEDULER, import_at, _IMPORT, before=True),
        Edit(_SCHEDULER, place, _REPORT),
    )


def _internal_state() -> tuple[Edit, ...]:
    update = "    # " + "-" * 66 + " update\n"
    clear = (
        '            "dspark_clear_info_records": _UpdateHandler(\n'
        "                self._validate_dspark_clear_records, self._apply_dspark_clear_records\n"
        "            ),\n"
    )
    require = "    def _require_dspark_worker("
    return (
        Edit(_INTERNAL_STATE, "from sglang.srt.managers.io_struct", _IMPORT, before=True),
        Edit(_INTERNAL_STATE, "            self._add_env_vars,\n", _ADDED),
        Edit(_INTERNAL_STATE, update, _ADD_REPORT, before=True),
        Edit(_INTERNAL_STATE, clear, _HANDLER),
        Edit(_INTERNAL_STATE, require, _HANDLE, before=True),
    )


_CAPTURER = "from sglang.srt.layers.moe.routed_experts_capturer import "
_SAMPLER = "from sglang.srt.layers.sampler import create_sampler\n"
_MOE_UTILS = "from sglang.srt.layers.moe.utils import (\n"
_POST_PROCESS = "    topk_ids, topk_weights, recorder_topk_ids = _post_process_topk_ids(\n"
_AITER = "    if num_fused_shared_experts > 0 and _use_aiter:\n        M, N = router_logits.shape\n"
_START_LOAD = "    def start_startup_weight_load(self) -> None:\n"

_EPLB_0_5_9 = "    # EPLB\n    SGLANG_EXPERT_LOCATION_UPDATER_LOG_INPUT = "
_EPLB = f"    # {'=' * 67}\n    # Expert parallel load balancing\n"

EDITS: dict[str, tuple[Edit, ...]] = {
    "0.5.9": (
        _environ(_EPLB_0_5_9),
        *_topk(_CAPTURER, _AITER, left_alone=_LEFT_ALONE_0_5_9),
        *_runner(_CAPTURER, "    def update_expert_location(\n", "get_tp_group()"),
        *_scheduler(),
    ),
    "0.5.18": (
        _environ(_EPLB),
        *_topk(_MOE_UTILS, _POST_PROCESS, then=_THEN_0_5_18),
        *_runner(_SAMPLER, _START_LOAD, "self.tp_group"),
        *_scheduler(),
    ),
    "0.5.23": (
        _environ(_EPLB),
        *_topk(_MOE_UTILS, _POST_PROCESS, _LEFT_ALONE_0_5_23, _THEN_0_5_23),
        *_runner(_SAMPLER, _START_LOAD, "get_parallel().tp_group"),
        *_internal_state(),
    ),
}
