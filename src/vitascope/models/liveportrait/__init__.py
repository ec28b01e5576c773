"""LivePortrait's five networks (Guo et al. 2024, arXiv:2407.03168) in PyTorch, inference only; extra ``torch``."""
