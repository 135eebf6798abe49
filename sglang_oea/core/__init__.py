"""Opportunistic Expert Activation itself: the algorithm, when it applies, how it is seen."""
