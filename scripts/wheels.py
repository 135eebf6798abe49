"""SGLang's wheels of several releases, unpacked side by side: sources to read, never installed.

Fetched by pip with `--no-deps` into the cache folder of environment.sh, once. A folder appears
complete or not at all.
"""

import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from make_demo_model import CACHE


def unpacked(release: str, cache: Path = CACHE) -> Path:
    """The folder that holds `sglang/` of one release, as its wheel has it.

    Args:
        release: such as `0.5.9`.
        cache: where unpacked wheels are kept.

    Raises:
        SystemExit: pip cannot fetch the wheel.
    """
    folder = cache / f"sglang-{release}"
    if folder.is_dir():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as scratch:
        _download(release, Path(scratch))
        (wheel,) = Path(scratch).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(Path(scratch) / "unpacked")
        try:
            os.rename(Path(scratch) / "unpacked", folder)
        except OSError:
            # another process was faster; anything else is an error
            if not folder.is_dir():
                raise
    return folder


def _download(release: str, folder: Path) -> None:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--only-binary", ":all:", "--dest", str(folder), f"sglang=={release}"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(
            f"error: pip could not fetch the wheel of sglang {release}\n"
            f"  got: {(done.stderr.strip().splitlines() or ['no message'])[-1]}\n"
            "  fix: check the network or the release's name, then run this again"
        )
