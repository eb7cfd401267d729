"""The counters of a SchedulerSession."""

from __future__ import annotations

# Counters of the session. STATS has the first twelve, under these names.
COUNTERS = (
    "lookups",  # requests that were looked up
    "hit_blocks",
    "loads",  # requests with a load
    "loaded_blocks",
    "failed_loads",  # jobs
    "stores",  # offers
    "stored_blocks",
    "dropped_stores",  # blocks that were offered and not stored
    "errors",  # frames that the agent refused
    "hand_overs",  # requests that waited for the blocks of another engine's prefill
    "hand_over_blocks",  # blocks that they waited for and got
    "hand_over_missing",  # blocks that they recompute
    "present_blocks",  # offered blocks that the agent had already
    "resumed_blocks",  # blocks stored although the agent restarted during their copy
    "deferred",  # offers deferred by the limit on held blocks
    "absent",  # requests without an agent
    "too_many",  # requests beyond the agent's limit
    "skipped",  # requests that the protocol cannot carry
    "unsent",  # requests that the packer could not send
    "late",  # overdue answers
    "doubted",  # hits withheld while loads fail
    "unmapped",  # hits shortened because a worker had not mapped the memory
    "fits",  # FITs that were answered
    "tail_blocks",  # blocks of sparse KV groups that were offered
    "tails_lost",  # blocks of sparse KV groups that were freed or given up before their offer
)
REPORTED = COUNTERS[:12]
