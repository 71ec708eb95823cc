"""How a feature drafter turns a hidden state into logits."""
