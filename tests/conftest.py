"""What all tests rely on: SGLang on the CPU platform, and no settings of the person who tests."""

import os

for name in [name for name in os.environ if name.startswith("SGLANG_OEA_")]:
    del os.environ[name]
# before anything imports sglang, which asks for its platform once
os.environ["SGLANG_PLATFORM"] = "cpu_torch"
# before anything imports triton: without a GPU the kernel runs in its interpreter
os.environ["TRITON_INTERPRET"] = "1"
