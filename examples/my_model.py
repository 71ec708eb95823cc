"""My model: a target of plain PyTorch that reads the last eight letters, decoded with copies of its text as drafts.

`specframe.compose(target=...)` takes a model of transformers as it is; a target is for a model of any other kind.
"""

import torch
from torch import Tensor, nn

import specframe
from specframe.plugin import Committed, Prompts, Scores, TokenTree, Verdict

LETTERS = "\n abcdefghijklmnopqrstuvwxyz"
TEXT = "one for the master\none for the dame\nand one for the little boy\nwho lives down the lane\n"
WINDOW = 8


class Network(nn.Module):
    """A language model over windows of tokens."""

    def __init__(self, vocab: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab, width)
        self.hidden = nn.Linear(WINDOW * width, 4 * width)
        self.head = nn.Linear(4 * width, vocab)

    def forward(self, windows: Tensor) -> Tensor:
        """Returns the logits [..., V] of the token after each window [..., W]."""
        return self.head(self.hidden(self.embedding(windows).flatten(-2)).relu())


class MyTarget:
    """A target whose state is a window for each row. B rows, N nodes of a tree, L tokens of a prompt."""

    context = 1 << 20  # the most positions of a row

    def __init__(self, network: Network) -> None:
        self.network, self.vocab_size = network, network.head.out_features

    def request(self, taps: frozenset[str]) -> None:
        """Refuses drafters that read features, since this target has none."""
        if taps:
            raise specframe.InputError(f"this model has no features {', '.join(sorted(taps))}")

    def open(self, slots: int, room: int) -> None:
        """Begins a session without rows."""
        self.windows = torch.zeros(0, WINDOW, dtype=torch.int64)  # [B, W], up to the token before the root
        self.admitted: Prompts | None = None

    def admit(self, prompts: Prompts) -> tuple[TokenTree, Scores]:
        """Reads prompts of unlike lengths; the last token of each is a tree of one node."""
        self.admitted = prompts
        last = prompts.count[:, None] - 1  # [B, 1]
        padded = nn.functional.pad(prompts.tokens, (WINDOW, 0))  # [B, W + L]
        windows = padded.gather(1, last + torch.arange(WINDOW))
        self.windows = torch.cat([self.windows, windows])
        tree = TokenTree.root_only(prompts.tokens.gather(1, last)[:, 0])
        return tree, self.read(tree, windows)

    def score(self, tree: TokenTree) -> Scores:
        """Returns the logits after every node."""
        return self.read(tree, self.windows)

    @torch.no_grad()
    def read(self, tree: TokenTree, windows: Tensor) -> Scores:
        """One forward pass over all nodes: a node's window is its parent's, and the node's own token."""
        self.after = windows[:, None].repeat(1, tree.tokens.shape[1], 1)  # [B, N, W]
        rows = torch.arange(len(windows))
        for node in range(tree.tokens.shape[1]):  # parents come first
            before = self.after[rows, tree.parent[:, node]] if node else windows
            self.after[:, node] = torch.cat([before[:, 1:], tree.tokens[:, node, None]], 1)
        return Scores(self.network(self.after), {})

    def commit(self, tree: TokenTree, verdict: Verdict) -> Committed:
        """Keeps the window of the last accepted node."""
        rows = len(verdict.bonus)  # after an admission, the new ones alone
        last = verdict.slots.gather(1, verdict.length[:, None])[:, 0]
        self.windows[len(self.windows) - rows :] = self.after[torch.arange(rows), last]
        prompts, self.admitted = self.admitted, None
        if prompts is None:
            return Committed(verdict.emitted(tree), verdict.count, {}, verdict.bonus)
        # A row's first commit is its prompt without the first token, and the token that follows.
        tokens = nn.functional.pad(prompts.tokens[:, 1:], (0, 1))
        tokens = tokens.scatter(1, prompts.count[:, None] - 1, verdict.bonus[:, None])
        return Committed(tokens, prompts.count, {}, verdict.bonus, prompts)

    def keep(self, rows: Tensor) -> None:
        """Keeps these rows in this order; the others have ended."""
        self.windows = self.windows[rows]


def train(text: str, steps: int) -> Network:
    """Returns a network that was trained on one text."""
    torch.manual_seed(0)
    network = Network(len(LETTERS), 16)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    tokens = torch.tensor(encode(text))
    windows = nn.functional.pad(tokens, (WINDOW - 1, 0)).unfold(0, WINDOW, 1)  # [L, W]
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(windows[:-1]), tokens[1:]).backward()
        optimizer.step()
    return network


def encode(text: str) -> list[int]:
    """Returns the tokens of a text: the places of its letters in LETTERS."""
    return [LETTERS.index(letter) for letter in text]


def main() -> None:
    """Decodes with drafts and without, and compares."""
    model = MyTarget(train(TEXT, steps=50))
    sampling = {"max_new_tokens": 160}
    plain = specframe.compose(target=model, sampling=sampling)
    drafted = specframe.compose(target=model, drafter="suffix", sampling=sampling)
    prompt = "one for"
    wanted, found = plain.generate(encode(prompt)), drafted.generate(encode(prompt))
    print(prompt + "".join(LETTERS[token] for token in found.tokens[0]))
    print(f"same text as plain decoding: {'yes' if found.tokens == wanted.tokens else 'no'}")
    print(f"tokens per forward pass: {found.acceptance.tau:.2f}")


if __name__ == "__main__":
    main()
