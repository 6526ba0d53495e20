"""What tests of the gateway share."""

from tests.gateway.postgres import database_url, postgres

__all__ = ["database_url", "postgres"]
