"""The scheduler side of a connector for a model with KV groups."""

from __future__ import annotations

from collections.abc import Sequence

from .fits import Fits
from .groups import FULL, Groups
from .loads import Target
from .lookups import Lookups
from .request import ASKED, KNOWN, PACKING
from .scheduler import SchedulerSession
from .settings import Settings
from .stores import DeviceBlocks


class GroupSession(SchedulerSession):
    """A SchedulerSession whose blocks belong to one KV group each.

    hit() counts pages of the chain of keys, and every hit is a prefix that all groups serve.
    load_groups() replaces load(), and reserve() with offer_group() replace computed().
    """

    def __init__(self, settings: Settings, blocks: DeviceBlocks | None, groups: Groups) -> None:
        self.groups = groups
        super().__init__(settings, blocks, groups.page)

    def _make_lookups(self, block_tokens: int) -> Lookups:
        wait_ms = self._settings.lookup_wait_ms
        return Fits(
            self._count, self.groups, wait_ms, self._packer, self._readable, self._trust
        )

    def load_groups(self, rid: str, generation: int, targets: Sequence[Target]) -> bool:
        """Loads blocks of several groups. hit() must have named their prefix.

        False when they cannot be loaded any more. Then the workers report the load as failed.
        """
        self.changed = True
        r = self._requests.get(rid)
        if r is not None and r.generation == generation and self._loads.begin_groups(r, targets):
            return True
        self._loads.fail(rid, r, ())
        return False

    def takes(self, rid: str, generation: int) -> bool | None:
        """Whether blocks of a request can be offered now. False: later. None: not any more."""
        r = self._requests.get(rid)
        if r is None or r.generation != generation:
            return None
        return self._stores.takes(r)

    def reserve(self, ids: Sequence[int]) -> bool:
        """References device blocks for offer_group() or drop(). False at the limit on held blocks.

        A step in flight may still compute the blocks.
        """
        if self._stores.reserve(ids):
            return True
        self._count["deferred"] += 1
        return False

    def drop(self, ids: Sequence[int]) -> None:
        """Drops the references of reserved blocks that are not offered."""
        self._stores.drop(ids)
        self.lost(len(ids))

    def lost(self, blocks: int) -> None:
        """Counts blocks of sparse groups that were freed before they could be offered."""
        self._count["tails_lost"] += blocks

    def offer_group(
        self, rid: str, generation: int, group: int, first: int, ids: list[int]
    ) -> bool:
        """Offers reserved blocks of one group, from its block `first` on.

        Earlier steps must have computed the blocks. Takes over the references. False when some
        blocks were not offered.
        """
        sparse = self.groups[group].kind != FULL
        r = self._requests.get(rid)
        offered = 0
        if r is None or r.generation != generation:
            self._stores.drop(ids)
        else:
            if r.state in (PACKING, ASKED, KNOWN):
                self._lookups.pass_by(r)  # a running request does not wait for a load
            size = self.groups[group].block_size
            offered = self._stores.offer_group(r, group, size, first, ids)
        if sparse:
            self._count["tail_blocks"] += offered
            self.lost(len(ids) - offered)
        return offered == len(ids)
