"""Processes are ended here."""

import multiprocessing


def kill_process_tree(parent_pid, include_parent=True):
    """End what this process has started."""
    for child in multiprocessing.active_children():
        child.kill()
