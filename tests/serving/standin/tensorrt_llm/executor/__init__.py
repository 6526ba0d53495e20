"""As upstream's: requests."""
