"""What a client does: the local loop, its options, the steps, and the trainer that a method overrides."""
