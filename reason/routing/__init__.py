"""Step-level speculation: a small model writes the steps, a large one those it would write clearly better."""
