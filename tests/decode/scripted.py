"""A speculator that drafts by a script, for tests."""

from gptcli.decode.speculation import Speculator


class ScriptedSpeculator(Speculator):
    """Drafts the text that follows, up to `n_most` tokens at once, with every n-th token wrong."""

    def __init__(self, whole: list[int], wrong_every: int, n_most: int = 1000) -> None:
        super().__init__()
        self._whole, self._wrong_every, self._n_most, self.n_proposed = whole, wrong_every, n_most, 0

    def propose(self, ids, n_most, _cache, _tokens_left):
        draft = self._whole[len(ids) : len(ids) + min(n_most, self._n_most)]
        for i in range(len(draft)):
            self.n_proposed += 1
            if self._wrong_every and self.n_proposed % self._wrong_every == 0:
                draft[i] = max(draft[i] - 1, 0)
        return draft
