"""The version of the package, also where a patched SGLang carries `core/` alone."""

__version__ = "0.1.0"
