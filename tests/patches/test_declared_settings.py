"""The variables that a patch declares in `environ.py` are the ones that the core reads."""

import re

from patch_edits import EDITS

from sglang_oea.core.config import SETTINGS, from_environment


def test_declared_variables_are_those_of_the_core():
    """Holds names and defaults alike: SGLang must not list what OEA would refuse, or another value.

    TRACE is left out: a patched SGLang cannot record.
    """
    config = from_environment({"SGLANG_OEA_K0": "4"})
    defaults = {
        "K0": "None",
        "MODES": f'"{",".join(config.modes)}"',
        "IMPL": f'"{config.impl}"',
        "MAX_ROWS": str(config.max_rows),
        "MAX_RANK": str(config.max_rank),
        "STRICT": str(config.strict),
    }
    assert set(defaults) == {name for name in SETTINGS if not name.startswith("TRACE")}
    for edits in EDITS.values():
        (declared,) = (edit.text for edit in edits if edit.path.endswith("environ.py"))
        found = re.findall(r"SGLANG_OEA_(\w+) = Env\w+\((.*)\)", declared)
        assert dict(found) == defaults
