"""From what OpenAI's API asks to what the engine takes: tokens, sampling parameters, guides."""
