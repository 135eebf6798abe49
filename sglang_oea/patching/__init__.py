"""Patches of SGLang's own tree: for forks, and for releases without a plugin system."""
