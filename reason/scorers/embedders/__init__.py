"""Who says which steps are alike."""
