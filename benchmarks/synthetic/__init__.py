"""Export, opening, passes and memory at the shapes of larger models, on random weights."""
