"""From the engine's pieces to OpenAI's answers: texts, reasoning, calls, choices, events."""
