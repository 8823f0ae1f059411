"""A suffix automaton over a growing token sequence: finds the longest suffix that has occurred before.

Blumer et al. 1985; for drafting, SAM-Decoding (Hu et al. 2411.10666). Amortised constant time a token.
"""

from __future__ import annotations

_WALK = 16  # suffix links followed to refresh most recent ends; a cap keeps "aaaa..." linear and costs no correctness


class SuffixAutomaton:
    """Feed tokens with :meth:`append`; ``match_length`` and ``match_end`` then describe the longest suffix of the
    sequence that also ends earlier: at position ``match_end``, most recently where that is cheap to know."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.match_length = 0
        self.match_end = -1
        self._next: list[dict[int, int]] = [{}]
        self._link = [-1]
        self._length = [0]
        self._end = [-1]  # a position where the state's strings end
        self._last = 0  # the state of the whole sequence
        self._cursor = 0  # the state of the current match

    def append(self, token: int) -> None:
        self._advance_match(token)
        self._extend(token)

    def _advance_match(self, token: int) -> None:
        """Move the match over the automaton of the earlier sequence."""
        state = self._cursor
        while state and token not in self._next[state]:
            state = self._link[state]
            self.match_length = self._length[state]
        if token in self._next[state]:
            self._cursor = self._next[state][token]
            self.match_length += 1
            self.match_end = self._end[self._cursor]
        else:
            self._cursor, self.match_length, self.match_end = 0, 0, -1

    def _extend(self, token: int) -> None:
        position = len(self.tokens)
        self.tokens.append(token)
        current = self._add(self._length[self._last] + 1, {}, 0, position)
        state = self._last
        while state != -1 and token not in self._next[state]:
            self._next[state][token] = current
            state = self._link[state]
        if state != -1:
            target = self._next[state][token]
            if self._length[target] == self._length[state] + 1:
                self._link[current] = target
            else:
                clone = self._add(
                    self._length[state] + 1, dict(self._next[target]), self._link[target], self._end[target]
                )
                while state != -1 and self._next[state].get(token) == target:
                    self._next[state][token] = clone
                    state = self._link[state]
                self._link[target] = self._link[current] = clone
        self._last = current
        for _ in range(_WALK):
            current = self._link[current]
            if current <= 0:
                break
            self._end[current] = position

    def _add(self, length: int, edges: dict[int, int], link: int, end: int) -> int:
        self._length.append(length)
        self._next.append(edges)
        self._link.append(link)
        self._end.append(end)
        return len(self._length) - 1
