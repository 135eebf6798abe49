"""Architecture: who may import what, who reads the environment, and how big files may be."""

import ast
import os
import re
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "sglang_oea"
# the host side: the only places that name SGLang's modules
HOST_SIDE = (PACKAGE / "plugin", PACKAGE / "launch_server.py")
# names of entry-point groups, which are no modules
GROUPS = {"check.py": {"sglang.srt.platforms"}}
TOP_LEVEL = {"patches", "sglang_oea", "scripts", "tests", "README.md", "pyproject.toml", "LICENSE"}


def python_files(*folders: str) -> list[Path]:
    """Python files below these folders of the repository."""
    found = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    assert found, folders
    return found


def tracked() -> list[str]:
    """Paths that git knows and that are there."""
    command = ["git", "-C", str(ROOT), "ls-files", "-z"]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return [name for name in listed.split("\0") if name and (ROOT / name).is_file()]


def tree_of(path: Path) -> ast.Module:
    """A file's syntax tree."""
    return ast.parse(path.read_text(encoding="utf-8"))


def imports(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """`(module, level)` of every import, those within functions too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, 0) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or "", node.level


def strings(tree: ast.AST) -> Iterator[str]:
    """Every string constant, pieces of f-strings included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def public_functions(body: list[ast.stmt], where: str) -> Iterator[tuple[str, ast.FunctionDef]]:
    """Functions and methods that others may call; dunders are their class's business."""
    for node in body:
        if getattr(node, "name", "_").startswith("_"):
            continue
        if isinstance(node, ast.ClassDef):
            yield from public_functions(node.body, f"{where}{node.name}.")
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield where + node.name, node


def test_core_knows_no_host():
    """Holds that core/ imports the standard library, torch, triton and itself only."""
    allowed = sys.stdlib_module_names | {"torch", "triton"}
    for path in python_files("sglang_oea/core"):
        for module, level in imports(tree_of(path)):
            inside = level == 1 if level else module.split(".")[0] in allowed
            assert inside, f"{path.name} imports {'.' * level}{module}"


def test_imports_go_one_way():
    """Holds core <- plugin <- command line: the plugin must not depend on its own tools."""
    for path in python_files("sglang_oea/plugin"):
        for module, _ in imports(tree_of(path)):
            assert module not in ("sglang_oea.check", "sglang_oea.cli"), path


def test_lab_knows_no_server():
    """Holds core <- lab: an evaluation needs neither SGLang nor what hooks into it."""
    allowed = sys.stdlib_module_names | {"torch", "safetensors", "transformers", "matplotlib"}
    for path in python_files("sglang_oea/lab"):
        # levels that stay below lab/: one in the room itself, two in policies/
        depth = len(path.relative_to(PACKAGE / "lab").parts)
        for module, level in imports(tree_of(path)):
            core = module == "sglang_oea.core" or module.startswith("sglang_oea.core.")
            inside = level <= depth if level else core or module.split(".")[0] in allowed
            assert inside, f"{path.relative_to(PACKAGE)} imports {'.' * level}{module}"


def test_one_file_reads_the_environment():
    """Holds that every setting passes through core/config.py."""
    readers = set()
    for path in python_files("sglang_oea"):
        for node in ast.walk(tree_of(path)):
            name = getattr(node, "attr", None) or getattr(node, "name", None)
            if name in ("environ", "environb", "getenv", "putenv", "unsetenv"):
                readers.add(path.relative_to(PACKAGE).as_posix())
    assert readers == {"core/config.py"}


def test_only_the_host_side_names_sglang():
    """Holds that a new release of SGLang can only break the plugin's own files."""
    for path in python_files("sglang_oea"):
        if any(path.is_relative_to(room) for room in HOST_SIDE):
            continue
        tree = tree_of(path)
        named = {module for module, _ in imports(tree) if module.split(".")[0] == "sglang"}
        named |= {text for text in strings(tree) if text.startswith("sglang.srt")}
        assert named <= GROUPS.get(path.name, set()), path


@pytest.mark.parametrize("k0", [None, "", "0"])
def test_off_imports_and_says_nothing(k0):
    """Holds that a server without OEA pays nothing for the plugin: no torch, no hook, no word."""
    code = (
        "import sys, sglang_oea, sglang_oea.plugin as plugin\n"
        "plugin.register()\n"
        "sys.exit(', '.join({'torch', 'sglang'} & set(sys.modules)) or 0)"
    )
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("SGLANG_OEA_")}
    environ = inherited | ({} if k0 is None else {"SGLANG_OEA_K0": k0})
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_files_are_small():
    """Holds that a file can be read at once; no file is a drawer for the rest."""
    lengths = {}
    for path in python_files("sglang_oea", "scripts", "tests"):
        lengths[path] = len(path.read_text(encoding="utf-8").splitlines())
        assert lengths[path] <= 350, f"{path} has {lengths[path]} lines"
        assert path.name not in ("utils.py", "helpers.py", "misc.py"), path
    assert statistics.median(lengths.values()) < 170


def test_modules_have_docstrings():
    """Holds that each file says what it is for; an empty `__init__.py` has nothing to say."""
    for path in python_files("sglang_oea", "scripts", "tests"):
        tree = tree_of(path)
        assert ast.get_docstring(tree) or not tree.body, path


def test_public_functions_are_typed_and_documented():
    """Holds that a function's signature and docstring say what a caller needs to know."""
    for path in python_files("sglang_oea", "scripts"):
        for name, function in public_functions(tree_of(path).body, ""):
            where = f"{path.relative_to(ROOT)}: {name}"
            assert ast.get_docstring(function), f"{where} has no docstring"
            if any(ast.unparse(d) == "triton.jit" for d in function.decorator_list):
                # its arguments are pointers and constants, which Triton types by itself
                continue
            assert function.returns is not None, f"{where} does not say what it returns"
            given = function.args
            arguments = [*given.posonlyargs, *given.args, *given.kwonlyargs]
            arguments += [a for a in (given.vararg, given.kwarg) if a is not None]
            bare = {a.arg for a in arguments if a.annotation is None} - {"self", "cls"}
            assert not bare, f"{where} does not annotate {bare}"


def test_top_level():
    """Holds the map of the repository: nothing but its rooms at the top."""
    names = {name.split("/")[0] for name in tracked()}
    assert {name for name in names if not name.startswith(".")} <= TOP_LEVEL


def test_readme_is_short():
    """Holds that the README is there and can be read in one sitting."""
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert 0 < len(lines) <= 200


def test_no_path_of_one_machine():
    """Holds that nothing in the repository points into somebody's own folders."""
    own = re.compile(r"(?<![\w.-])/(?:root|work|home/\w[\w.-]*)/")
    for name in tracked():
        text = (ROOT / name).read_bytes().decode(errors="replace")
        found = own.search(text)
        assert found is None, f"{name}: {found and found[0]}"
