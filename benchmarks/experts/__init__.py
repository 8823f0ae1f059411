"""Mixtures of experts: what passes touch and cost, and fewer experts as a draft."""
