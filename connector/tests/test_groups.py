"""The blocks that a prefix needs in each KV group."""

from __future__ import annotations

import unittest

from blockyard.groups import CHUNKED, FULL, SLIDING, STATE, Group, Groups


def reads(group: Group, token: int, following: int) -> bool:
    """Whether a layer reads the token when it computes the token `following`."""
    if group.kind == SLIDING:
        return token > following - group.window
    if group.kind == CHUNKED:
        return token // group.window == following // group.window
    return group.kind == FULL or token == following - 1


class Needs(unittest.TestCase):
    def test_a_group_needs_the_blocks_with_a_token_that_is_read(self) -> None:
        for kind, windows in ((FULL, (0,)), (STATE, (0,)), (SLIDING, range(2, 40))):
            for window in windows:
                for size in (1, 2, 4, 8):
                    group = Group(kind, window, size, 1, 1)
                    for tokens in range(0, 64, size):
                        read = {t // size for t in range(tokens) if reads(group, t, tokens)}
                        self.assertEqual(set(group.needs(tokens)), read, (group, tokens))

    def test_chunks(self) -> None:
        group = Group(CHUNKED, 8, 4, 1, 1)
        needs = [list(group.needs(tokens)) for tokens in (0, 4, 8, 12, 16)]
        self.assertEqual(needs, [[], [0], [], [2], []])

    def test_the_smallest_window_needs_a_block_as_in_vllm(self) -> None:
        self.assertEqual(Group(SLIDING, 1, 4, 1, 1).needs(8), range(1, 2))


class Drafts(unittest.TestCase):
    """Groups whose hits match one block more: a draft model computes it again."""

    def test_a_hit_matches_the_block_behind_the_prefix_and_does_not_load_it(self) -> None:
        full, sliding = Group(FULL, 0, 4, 1, 1, True), Group(SLIDING, 5, 4, 1, 1, True)
        self.assertEqual((full.needs(8), full.matches(8)), (range(0, 2), range(0, 3)))
        self.assertEqual((sliding.needs(8), sliding.matches(8)), (range(1, 2), range(1, 3)))
        state = Group(STATE, 0, 4, 1, 1, True)
        self.assertEqual((state.matches(8), state.behind), (range(1, 2), 0))

    def test_the_longest_prefix_has_a_block_behind_it(self) -> None:
        plain = Groups([Group(SLIDING, 5, 2, 1, 1), Group(FULL, 0, 4, 1, 1)])
        drafts = Groups([Group(SLIDING, 5, 2, 1, 1, True), Group(FULL, 0, 4, 1, 1)])
        for limit, known, longest, behind in (
            (11, 12, 8, 8),
            (12, 12, 12, 8),
            (12, 14, 12, 12),
            (3, 4, 0, 0),
        ):
            self.assertEqual(plain.longest(limit, known), longest)
            self.assertEqual(drafts.longest(limit, known), behind)


class Sets(unittest.TestCase):
    def test_sizes(self) -> None:
        groups = Groups([Group(SLIDING, 5, 6, 1, 1), Group(FULL, 0, 4, 1, 1)])
        self.assertEqual((groups.page, groups.align, groups.primary), (2, 12, 1))
        self.assertEqual(
            groups.as_maps()[0],
            {
                "kind": "sliding",
                "window": 5,
                "block_size": 6,
                "block_bytes": 1,
                "layers": 1,
                "eagle": False,
            },
        )

    def test_what_the_agent_does_not_serve(self) -> None:
        for members in ([], [Group(STATE, 0, 4, 1, 1)], [Group(FULL, 0, 4, 1, 1)] * 65):
            with self.assertRaises(ValueError):
                Groups(members)


if __name__ == "__main__":
    unittest.main()
