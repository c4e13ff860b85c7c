"""How messages reach clients: in this process, and later in others."""
