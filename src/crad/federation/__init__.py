"""Peers, what they publish, how it travels, and the loop of rounds that is the same in every world."""
