"""What a SuperNode runs."""

from fedomg.flower.client import client_app

app = client_app()
