"""A small real mixture of experts, carved out of SmolLM2-135M."""
