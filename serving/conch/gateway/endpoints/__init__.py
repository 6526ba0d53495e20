"""The routes of the API, one module each. They know the exchange and nothing of sockets or money."""
