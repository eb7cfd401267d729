"""A router with its front door, and requests through it."""

from __future__ import annotations

import http.client
import json
import pathlib
import re
import urllib.request
from typing import Any, NamedTuple

import openai

from e2e import model
from e2e.services import Service
from front.server import MODEL, metric_sum
from tests.agentproc import wait_until

_LOG_TAIL = 40  # lines
_ANSWER_SECONDS = 120.0


class Answer(NamedTuple):
    """An answer that is not streamed."""

    tokens: list[int]
    prompt: list[int]  # token ids that the engine computed; empty when the server does not tell
    text: str
    cached: int  # tokens of the prompt that the engine reports as cached
    headers: Any

    @property
    def worker(self) -> str:
        """The worker and its rank, such as 7/0."""
        return self.headers["X-Blockyard-Worker"]

    @property
    def reused(self) -> int:
        """Cached tokens, with the last one of a prompt of whole blocks.

        A load within a step leaves that token to the step, and vLLM does not count it.
        """
        length = len(self.prompt)
        whole = length % model.BLOCK_TOKENS == 0
        return self.cached + (whole and self.cached == length - 1)

    @property
    def predicted(self) -> int:
        """Cached tokens that the router expected."""
        return int(self.headers["X-Blockyard-Cached-Predicted"])

    @property
    def quality(self) -> str:
        """The quality of the decision."""
        return self.headers["X-Blockyard-Quality"]

    @property
    def known(self) -> str:
        """How the router knows the prompt's tokens."""
        return self.headers["X-Blockyard-Tokens"]


class Endpoint:
    """An OpenAI endpoint: a door, or a server asked directly. key: the client's API key."""

    def __init__(self, url: str, headers: dict[str, str] | None = None, key: str = "none") -> None:
        self.url = url
        self.client = openai.OpenAI(
            base_url=url + "/v1",
            api_key=key,
            max_retries=0,
            timeout=_ANSWER_SECONDS,
            default_headers=headers,
        )

    def complete(self, prompt: str | list[int], count: int = 8, **fields: Any) -> Answer:
        """A completion. fields: members of the body, besides those of `sampling`."""
        raw = self.client.completions.with_raw_response.create(
            prompt=prompt, **sampling(count, fields)
        )
        choice = raw.parse().choices[0]
        return _answer(raw, choice, choice.prompt_token_ids, choice.text)

    def chat(self, messages: list[dict[str, Any]], count: int = 8, **fields: Any) -> Answer:
        """A chat completion. fields: as in complete."""
        raw = self.client.chat.completions.with_raw_response.create(
            messages=messages, **sampling(count, fields)
        )
        parsed = raw.parse()
        choice = parsed.choices[0]
        return _answer(raw, choice, parsed.prompt_token_ids, choice.message.content or "")


def sampling(count: int, fields: dict[str, Any]) -> dict[str, Any]:
    """Arguments of a request for exactly `count` tokens, the same in every run.

    fields: members of the body; they replace the others.
    """
    model_name = fields.pop("model", MODEL)
    body = {"return_token_ids": True, "ignore_eos": True, **fields}
    return {
        "model": model_name,
        "max_tokens": count,
        "temperature": 0,
        "seed": 0,
        "extra_body": body,
    }


def _answer(raw: Any, choice: Any, prompt: list[int] | None, text: str) -> Answer:
    details = raw.parse().usage.prompt_tokens_details
    cached = details.cached_tokens if details and details.cached_tokens else 0
    return Answer(choice.token_ids, prompt or [], text, cached, raw.headers)


class Door(Endpoint):
    """A router with a door. The constructor waits until the router listens."""

    def __init__(self, log: pathlib.Path, *flags: str) -> None:
        self._log = log
        self._service = Service(
            "router",
            "--router-mode=kv",
            "--http=127.0.0.1:0",
            "--control=127.0.0.1:0",
            "--http-host=127.0.0.1",
            "--http-port=0",
            "--access-log",
            *flags,
            log=log,
        )
        super().__init__(f"http://{self._service.ready['door']}")
        self.address: tuple[str, int] = _address(self._service.ready["door"])
        # The listener of Envoy's calls; None without --ext-proc.
        self.ext_proc: str | None = self._service.ready.get("ext_proc")

    def pinned(self, worker: str) -> Endpoint:
        """The door, for requests that only one worker may serve."""
        return Endpoint(self.url, {"X-Blockyard-Pin-Worker": worker})

    def get(self, path: str) -> Any:
        """The answer of the gateways' listener."""
        return self._service.get(path)

    def operate(self, path: str) -> Any:
        """The answer to a POST on the operators' listener."""
        url = f"http://{self._service.ready['control']}{path}"
        request = urllib.request.Request(url, data=b"", method="POST")
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.loads(answer.read())

    def workers(self) -> list[dict[str, Any]]:
        """The workers of the router."""
        return self.get("/v1/workers")

    def ready_servers(self) -> list[dict[str, Any]]:
        """The servers that take requests."""
        return [s for s in self.get("/v1/servers") if s["state"] == "ready"]

    def worker_of(self, url: str) -> str:
        """The worker with an endpoint, as answers name it."""
        for w in self.workers():
            if w.get("endpoint") == url:
                return f"{w['worker_id']}/{w['dp_rank']}"
        raise AssertionError(f"no worker has the endpoint {url}: {self.workers()}")

    def wait_for_workers(self, count: int) -> None:
        """Waits until requests may go to so many workers and the events of each are complete."""

        def ready() -> bool:
            known = [w for w in self.workers() if w.get("endpoint")]
            if len(known) != count or len(self.ready_servers()) != count:
                return False
            return all(w.get("silent") or w.get("quality") == "exact" for w in known)

        wait_until(f"{count} workers are ready\n{self.log()}", ready, 60.0, pause=0.1)

    def caught_up(self, answer: Answer, lora: str = "", salt: str = "") -> None:
        """Waits until the router knows the complete blocks of prompt and answer on their worker."""
        # The key and value of the last token of an answer are not computed.
        known = (answer.prompt + answer.tokens)[:-1]
        want = len(known) // model.BLOCK_TOKENS
        wait_until(
            f"the router knows {want} blocks on {answer.worker}",
            lambda: self.overlap(known + [0], answer.worker, lora, salt) >= want,
            20.0,
            pause=0.02,
        )

    def overlap(self, tokens: list[int], worker: str, lora: str = "", salt: str = "") -> int:
        """Blocks of a prompt that the router knows on a worker's device."""
        asked = {"lora_name": lora, "cache_namespace": salt}
        for o in self.route("overlap", tokens=tokens, **asked)["overlaps"]:
            if f"{o['worker_id']}/{o['dp_rank']}" == worker:
                return o["device"]
        return 0

    def route(self, method: str, **fields: Any) -> dict[str, Any]:
        """The answer of the gateways' listener to a call of `/v1/route` with these fields."""
        body = json.dumps({"method": method, "model": MODEL, **fields}).encode()
        request = urllib.request.Request(
            f"http://{self._service.ready['http']}/v1/route", data=body
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.loads(answer.read())

    def metric(self, name: str) -> float:
        """The sum of one of the router's metrics over its labels."""
        url = f"http://{self._service.ready['http']}/metrics"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return metric_sum(answer.read().decode(), name)

    def idle(self) -> None:
        """Waits until nothing runs and nothing is booked."""
        self.booked(0)

    def booked(self, count: int) -> None:
        """Waits until no client's request runs and so many requests are booked."""
        want = {
            "blockyard_frontend_requests_running": 0,
            "blockyard_router_model_active_requests": count,
        }
        wait_until(
            f"no request runs and {count} are booked",
            lambda: all(self.metric(name) == value for name, value in want.items()),
            20.0,
            pause=0.1,
        )

    def resident(self) -> int:
        """Bytes of the router's resident memory."""
        text = pathlib.Path(f"/proc/{self._service.pid}/status").read_text()
        found = re.search(r"^VmRSS:\s+(\d+) kB", text, re.MULTILINE)
        assert found, "the router has ended"
        return int(found[1]) << 10

    def connect(self) -> http.client.HTTPConnection:
        """A connection for requests that the official client would not send."""
        return http.client.HTTPConnection(*self.address, timeout=30)

    def logged(self) -> list[dict[str, Any]]:
        """The access log: a line for each request that has ended, in the order of their ends."""
        rows = (json.loads(line) for line in self._log.read_text().splitlines())
        return [row for row in rows if row["msg"] == "request"]

    def log(self) -> str:
        """The end of the router's log, for error messages."""
        lines = self._log.read_text(errors="replace").splitlines()
        return "\n".join(f"  router: {line[:600]}" for line in lines[-_LOG_TAIL:])

    def close(self) -> None:
        """Ends the router."""
        self.client.close()
        self._service.close()


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port)
