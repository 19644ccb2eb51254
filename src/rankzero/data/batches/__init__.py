"""From tokenised rows to the tensors of a pass: plan, loader, collators."""
