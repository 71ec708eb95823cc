"""What the drafter `model` is made of: where its weights come from, and how it reads texts and drafts."""
