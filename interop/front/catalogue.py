"""All cases, in the order in which they run. Cases that share servers stand together."""

from __future__ import annotations

from e2e.runner import Case
from front.cases_agent import with_agent
from front.cases_cache import adapters_and_salts, plain_and_approximate, second_turn
from front.cases_client import openai_client
from front.cases_envoy import envoy_picks
from front.cases_hostile import hostile
from front.cases_life import client_leaves, drain, worker_killed
from front.cases_load import load_tool
from front.cases_quickstart import quick_start
from front.cases_render import render
from front.cases_split import prefill_decode
from front.cases_tenants import tenants_apart

CASES: tuple[Case, ...] = (
    # Servers with events and adapters.
    openai_client,
    second_turn,
    adapters_and_salts,
    tenants_apart,
    envoy_picks,
    client_leaves,
    drain,
    hostile,
    load_tool,
    quick_start,
    worker_killed,
    # Servers that render prompts and publish no events.
    plain_and_approximate,
    render,
    # Servers with the connector and an agent.
    with_agent,
    prefill_decode,
)
