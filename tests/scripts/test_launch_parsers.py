"""Every command of the launchers against the argument parsers of the releases that they are for."""

import json

import pytest
from launchers import GLM5, QWEN3, RELEASES, dry_run
from parsers import Answer, judge
from wheels import unpacked

RECIPES = {
    "glm5": (GLM5,),
    "glm5 with OEA": (GLM5, "--k0", "1:8,8:5,16:4"),
    "glm5 dense": (GLM5, "--dense"),
    "glm5 with MTP": (GLM5, "--mtp", "--k0", "4"),
    "glm5 large": (GLM5, "--max-running", "300", "--port", "5000", "--host", "0.0.0.0"),
    "qwen3": (QWEN3,),
    "qwen3 with OEA": (QWEN3, "--k0", "4", "--max-running", "64"),
}
NATIVE = {"glm5 native": (GLM5, "--native-dsa")}
# one of each class, as `(flags, releases in which that is wrong, what is said)`
WRONG = {
    "unknown": (["--fp4-gemm-runner-backend", "auto"], RELEASES, "unrecognized arguments"),
    "bad choice": (["--moe-runner-backend", "b12x"], RELEASES, "invalid choice"),
    "bad value": (["--tp-size", "eight"], RELEASES, "invalid int value"),
    "abbreviated": (["--max-running-request", "8"], RELEASES, "no option's full name"),
    "ambiguous": (["--cuda-graph-max-bs", "8"], ("0.5.23",), "ambiguous option"),
    "renamed": (["--cuda-graph-max-bs", "8"], ("0.5.18",), "is deprecated"),
    "retired": (["--disable-cuda-graph"], ("0.5.18", "0.5.23"), "is deprecated"),
    "removed": (["--nsa-decode-backend", "flashmla_kv"], ("0.5.23",), "unrecognized arguments"),
    "too early": (["--cuda-graph-bs-decode", "1"], ("0.5.9",), "unrecognized arguments"),
}


@pytest.fixture(scope="module", params=RELEASES)
def release(request: pytest.FixtureRequest) -> str:
    """Each release that has a recipe."""
    return request.param


@pytest.fixture(scope="module")
def printed(release, tmp_path_factory) -> dict:
    """Every recipe's dry run, hub ids and a folder of each kind."""
    packed = {"quantization_config": {"quant_algo": "NVFP4"}, "num_nextn_predict_layers": 1}
    apart = {"quantization_config": {"quant_algo": "NVFP4", "ignore": ["*.shared_experts.*"]}}
    folders = {}
    for name, config in {"packed": packed, "apart": apart, "bf16": {}}.items():
        folder = tmp_path_factory.mktemp("a checkpoint") / name
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(config))
        folders[f"glm5 {name}"] = (GLM5, "--model", str(folder))
    recipes = RECIPES | folders | ({} if release == "0.5.9" else NATIVE)
    return {name: dry_run(*arguments, release=release) for name, arguments in recipes.items()}


@pytest.fixture(scope="module")
def answer(release, printed) -> Answer:
    """What the parser says of the recipes, then of the wrong flags: one import for all."""
    recipes = [recipe.flags for recipe in printed.values()]
    wrong = [["--model-path", "m", *flags] for flags, _, _ in WRONG.values()]
    return judge(release, recipes + wrong)


def test_each_recipe_is_accepted(printed, answer):
    """Holds that no flag is unknown, ambiguous, abbreviated, deprecated or given a wrong value."""
    said = dict(zip(printed, answer.problems[: len(printed)], strict=True))
    assert said == {name: [] for name in printed}


def test_a_wrong_flag_is_not(release, answer):
    """Holds that the test above can fail, for each way in which a flag can be wrong."""
    for case, said in zip(WRONG, answer.problems[-len(WRONG) :], strict=True):
        _, releases, words = WRONG[case]
        if release in releases:
            assert any(words in problem for problem in said), (case, said)


def test_the_callers_flag_replaces_every_name_of_it(printed, answer, release):
    """Holds that `--tp 4` replaces `--tp-size 8`: SGLang has several names for some flags."""
    flags = [word for word in printed["glm5"].flags if word.startswith("--")]
    aliases = {a: f for f in flags for a in answer.names[f] if a != f} | {"--tp": "--tp-size"}
    assert {"--model", "--tensor-parallel-size"} <= set(aliases)
    for alias, flag in aliases.items():
        replaced = dry_run(GLM5, "--", alias, "4", release=release).flags
        assert replaced.count(alias) == 1 and flag not in replaced, alias


def test_variables_are_read_by_the_release(printed, release):
    """Holds that no variable of a recipe is one that the release has dropped or renamed."""
    known = (unpacked(release) / "sglang" / "srt" / "environ.py").read_text()
    for recipe in printed.values():
        own = [name for name in recipe.variables if name.startswith("SGLANG_")]
        assert all(name in known for name in own if not name.startswith("SGLANG_OEA_")), own
