"""Run every topk case on one patched release, in a process that cannot import sglang_oea.

    run_topk_cases.py RELEASE TREE UPSTREAM_TOPK RESULTS

TREE holds the patched `sglang/`. The cases also run on UPSTREAM_TOPK, the release's own `topk.py`,
in the same surroundings: that they fail there shows that they can. RESULTS becomes
`{"patched": {case: what was seen}, "upstream": {...}}`.
"""

import importlib
import json
import sys
from pathlib import Path

# None: importing it fails
sys.modules["sglang_oea"] = None

from topk_cases import CASES  # noqa: E402
from topk_hosts import observe  # noqa: E402
from upstream_stubs import install, load  # noqa: E402

TOPK = "sglang.srt.layers.moe.topk"
OEA = "sglang.srt.layers.moe.oea"


def main(release: str, tree: Path, upstream_topk: Path, results: Path) -> None:
    if release == "0.5.23":
        # the release that this environment can import whole, from PYTHONPATH
        patched = importlib.import_module(TOPK)
    else:
        install(release, tree)
        patched = load(TOPK, tree / "sglang/srt/layers/moe/topk.py")
    assert Path(patched.__file__).is_relative_to(tree), patched.__file__
    hosts = {"patched": patched, "upstream": load("upstream_topk", upstream_topk)}
    session = importlib.import_module(f"{OEA}.active").oea
    layer = importlib.import_module(f"{OEA}.layer")
    assert Path(layer.__file__).is_relative_to(tree), layer.__file__
    cases = [case for case in CASES if release in case.releases]
    seen = {
        name: {case.name: observe(case, topk, session, layer) for case in cases}
        for name, topk in hosts.items()
    }
    results.write_text(json.dumps(seen), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1], *map(Path, sys.argv[2:]))
