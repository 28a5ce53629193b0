"""Training: from a recipe to trained weights, with a log, snapshots and checkpoints."""
