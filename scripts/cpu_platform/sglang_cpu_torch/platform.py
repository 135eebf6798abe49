"""The platform class that SGLang instantiates once per process.

Covered: any model that SGLang implements in plain torch, unquantised, on one CPU process. Not
covered: quantised weights, graphs, speculative decoding, more than one rank.
"""

import torch
from sglang.srt.platforms.cpu import CpuDeviceMixin
from sglang.srt.platforms.device_mixin import PlatformEnum
from sglang.srt.platforms.interface import SRTPlatform


class CpuTorchPlatform(CpuDeviceMixin, SRTPlatform):
    """CPU memory and device queries from SGLang, every operator from torch.

    SGLang's own CPU engine takes the kernels of `sgl_kernel` and wants AMX; as an out-of-tree
    platform (`OOT`) all operators resolve to their `forward_native`, which any CPU can run.
    """

    _enum = PlatformEnum.OOT

    def get_default_attention_backend(self) -> str:
        """Attention by `scaled_dot_product_attention`, one request after the other."""
        return "torch_native"

    def get_dispatch_key_name(self) -> str:
        """Operators by their plain torch definition."""
        return "native"

    def get_compile_backend(self, mode: str | None = None) -> str:
        """Run what SGLang compiles as it is: inductor would need a C++ compiler."""
        return "eager"

    def init_backend(self) -> None:
        """Let a CUDA build of torch answer "no" where it would miss a driver.

        SGLang's expert-distribution recorder asks for every layer whether a stream is captured.
        """
        if not torch.cuda.is_available():
            torch.cuda.is_current_stream_capturing = lambda: False
