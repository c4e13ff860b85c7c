"""What the server does: weights of the clients, the rule that combines their updates, the step, everything beside the model."""
