"""Training: the batch plan, the objectives, the loop, checkpoints and their resumption."""
