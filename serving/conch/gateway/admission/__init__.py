"""Who may ask an engine now, and what is too much to ask."""
