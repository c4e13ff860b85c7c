"""One experiment from its configuration to its records: the round loop, the views, checkpoints."""
