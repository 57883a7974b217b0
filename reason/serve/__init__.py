"""Answer over HTTP the way OpenAI's API does, with a search behind every answer."""
