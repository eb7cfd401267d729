"""A scheduler that writes what each step computes and how long the step takes.

vLLM loads the class by name. It is vLLM's own scheduler for steps that do not overlap, with a line of
JSON in a file for each step and each first token. lab/simulate/calibrate reads the file.
"""

from __future__ import annotations

import json
import os
import re
import time
from typing import Any

from vllm.v1.core.sched.scheduler import Scheduler

ENV = "CALIBRATE_STEPS"  # the file's path

# vLLM puts this around the id that a client has given.
_ID = re.compile(r"cmpl-(.+)-0-[0-9a-f]{8}")


class RecordingScheduler(Scheduler):
    """vLLM's scheduler with a recording of its steps."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._recording = open(os.environ[ENV], "a", buffering=1)
        self._added: dict[str, float] = {}  # when an idle engine got a request
        self._step: dict[str, Any] = {}

    def add_request(self, request: Any) -> None:
        if not self.has_unfinished_requests():
            self._added[request.request_id] = time.time()
        super().add_request(request)

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        start = time.time()
        output = super().schedule(*args, **kwargs)
        prompt, decodes, pairs, context = 0, 0, 0.0, 0
        for name, tokens in output.num_scheduled_tokens.items():
            request = self.requests[name]
            before = request.num_computed_tokens - tokens  # schedule() has counted the step
            if request.num_output_tokens and tokens == 1:
                decodes += 1
                context += before
            else:
                prompt += tokens
                pairs += tokens * (before + tokens / 2)
        self._step = {
            "start": start,
            "prompt": prompt,
            "decodes": decodes,
            "pairs": pairs,
            "context": context,
        }
        return output

    def update_from_output(self, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        scheduled = scheduler_output.num_scheduled_tokens
        found = [self.requests[name] for name in scheduled if name in self.requests]  # not aborted
        without = [request for request in found if not request.num_output_tokens]
        result = super().update_from_output(scheduler_output, *args, **kwargs)
        end = time.time()
        if scheduled:
            more = self.has_unfinished_requests()
            self._write("step", {**self._step, "end": end, "more": more})
        for request in without:
            if request.num_output_tokens:
                self._first_token(request.request_id, end)
        return result

    def _first_token(self, name: str, end: float) -> None:
        added = self._added.pop(name, 0)
        found = _ID.fullmatch(name)
        if found:
            self._write("request", {"id": found[1], "added": added, "first": end})

    def _write(self, kind: str, fields: dict[str, Any]) -> None:
        self._recording.write(json.dumps({kind: fields}) + "\n")
