"""A machine with eight RTX PRO 6000 Blackwell, made of stand-ins, on which all is well.

The answers of nvidia-smi are in the format of drivers 570 to 580; /proc and /sys are a folder; the
Python that serves has metadata of SGLang and transformers, and nothing behind it.
"""

import json
import shutil
import sys

from checkpoints import make as make_checkpoint
from machine import SCRIPTS, Machine

NAME = "NVIDIA RTX PRO 6000 Blackwell Server Edition"
CMDLINE = "BOOT_IMAGE=/vmlinuz-6.8.0 root=/dev/sda1 ro iommu=pt amd_iommu=pt\n"
LIMITS = """Limit                     Soft Limit           Hard Limit           Units     
Max open files            1024                 {nofile:<20} files     
Max locked memory         8388608              {memlock:<20} bytes     
"""
BANNER = "| NVIDIA-SMI {driver}      Driver Version: {driver}      CUDA Version: {cuda}     |"
# what `sglang-oea check` prints; its own tests hold the real one
CHECK = """import os, sys
assert sys.argv[1] == "check", sys.argv
k0, modes = os.environ.get("SGLANG_OEA_K0"), os.environ.get("SGLANG_OEA_MODES", "decode")
print("[ok  ] python: 3.12.3")
if k0 is None:
    print("[warn] settings: off\\n       -> set SGLANG_OEA_K0, for example to 4")
else:
    print(f"[ok  ] settings: k0={k0} modes={modes}")
print("sglang_oea can run here")
"""


class Blackwell(Machine):
    """Each test breaks one thing, by `put`, by an attribute, or in a file."""

    def __init__(self, folder):
        super().__init__(folder)
        for tool in ("basename", "printf"):
            (self.bin / tool).symlink_to(shutil.which(tool))
        self.root, self.packages = folder / "root", folder / "packages"
        self.write("proc/cmdline", CMDLINE)
        self.limits()
        for node in (0, 1):
            self.write(f"sys/devices/system/node/node{node}/cpulist", "0-63\n")
        self.write("sys/class/iommu/ivhd0/uevent", "")
        # no site-packages: what is installed is what a test says
        self.python = self.put("python3", f'exec "{sys.executable}" -S "$@"')
        self.install("sglang", "0.5.23")
        self.install("transformers", "5.19.0")
        self.package("sglang", "")
        self.oea(CHECK)
        self.gpus()
        self.model = make_checkpoint(folder / "GLM 5 NVFP4")

    def write(self, path, text):
        """A file below the machine's root."""
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def limits(self, nofile="1048576", memlock="unlimited"):
        """Hard limits of the shell."""
        self.write("proc/self/limits", LIMITS.format(nofile=nofile, memlock=memlock))

    def package(self, name, text, file="__init__.py"):
        """A module of the Python that serves."""
        folder = self.packages / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(text)

    def install(self, name, version):
        """Metadata of a distribution; None removes it."""
        for old in self.packages.glob(f"{name}-*.dist-info"):
            shutil.rmtree(old)
        if version is not None:
            self.package(
                f"{name}-{version}.dist-info", f"Name: {name}\nVersion: {version}\n", "METADATA"
            )

    def oea(self, check):
        """The package sglang_oea, with this code for its command line."""
        self.install("sglang_oea", "0.1.0")
        entry = "[sglang.srt.plugins]\noea = sglang_oea.plugin:register\n"
        self.package("sglang_oea-0.1.0.dist-info", entry, "entry_points.txt")
        self.package("sglang_oea", "")
        self.package("sglang_oea", check, "cli.py")

    def gpus(
        self,
        count=8,
        *,
        capability="12.0",
        free=(),
        driver="580.95.05",
        cuda="13.0",
        peer="OK",
        sockets=2,
    ):
        """An nvidia-smi: GPUs 0 to 3 on one socket, 4 to 7 on the other."""
        free = {gpu: 97250 for gpu in range(count)} | dict(free)
        rows = [f"{g}, {NAME}, {capability}, 97887, {free[g]}, {driver}" for g in range(count)]
        answers = {
            '"--query-gpu="*': "\n".join(rows),
            '"topo -p2p r"': p2p(count, peer),
            '"topo -m"': topology(count, sockets),
            '""': BANNER.format(driver=driver, cuda=cuda),
        }
        cases = [f"{asked}) cat <<'END'\n{said}\nEND\n;;" for asked, said in answers.items()]
        self.put("nvidia-smi", "\n".join(('case "$*" in', *cases, "*) exit 2 ;;", "esac")))

    def preflight(self, *arguments, model=True, **settings):
        """`preflight_glm5.sh` with the machine's checkpoint, unless a test names none."""
        given = ["--model", str(self.model)] if model else []
        settings = {"PYTHON": str(self.python), "PYTHONPATH": str(self.packages)} | settings
        command = ["bash", str(SCRIPTS / "preflight_glm5.sh"), "--root", str(self.root)]
        return self.run(*command, *given, *arguments, **settings)

    def judged(self, *arguments, **settings):
        """The report by subject: `(verdict, found, fix)`; and the exit status goes with it."""
        done = self.preflight("--json", *arguments, **settings)
        assert not done.stderr, done.stderr
        answer = json.loads(done.stdout)
        failed = any(line["verdict"] == "FAIL" for line in answer["lines"])
        assert (done.returncode, answer["ready"]) == (int(failed), not failed)
        return {
            line["subject"]: (line["verdict"], line["found"], line["fix"])
            for line in answer["lines"]
        }


def p2p(count, peer):
    """`nvidia-smi topo -p2p r`."""
    head = " \t" + "\t".join(f"GPU{g}" for g in range(count))
    rows = [
        f" GPU{g}\t" + "\t".join("X" if g == other else peer for other in range(count))
        for g in range(count)
    ]
    return "\n".join([head, *rows, "", "Legend:", "", "  X    = Self", "  OK   = Status Ok"])


def topology(count, sockets):
    """`nvidia-smi topo -m`, its header underlined as it is even without a terminal."""
    names = [f"GPU{g}" for g in range(count)]
    head = "\t".join((*names, "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"))
    socket = [g * sockets // 8 for g in range(count)]
    rows = []
    for g in range(count):
        path = [
            " X " if g == other else "NODE" if socket[g] == socket[other] else "SYS"
            for other in range(count)
        ]
        rows.append("\t".join((f"GPU{g}", *path, "0-63", str(socket[g]), "", "N/A")))
    legend = "Legend:\n\n  X    = Self\n  SYS  = Connection traversing PCIe"
    return "\n".join([f"\t\x1b[4m{head}\x1b[0m", *rows, "", legend])


def only_fault(judged, subject, *words, verdict="FAIL"):
    """Holds that one thing is amiss, that it is said with these words, and how to mend it."""
    amiss = {name: line for name, line in judged.items() if line[0] != "ok"}
    assert list(amiss) == [subject], amiss
    found, fix = amiss[subject][1:]
    assert amiss[subject][0] == verdict and fix
    assert all(word in f"{found} -> {fix}" for word in words), amiss
