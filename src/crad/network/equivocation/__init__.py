"""Two different messages signed for one round: never our own, and proof against anybody else."""
