"""Configuration, training, evaluation, checkpoints and distribution."""
