"""A stand-in for SGLang 0.5.9: its modules, names and processes, as far as OEA has to do with them.

It serves one prefill and two decode steps of a tiny model, and notes what each process saw.
"""
