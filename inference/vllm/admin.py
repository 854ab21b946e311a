"""The trainer's control of a vLLM server: health, weights, pauses. Synchronous, for its thread."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from statistics import fmean
from typing import Any

import httpx

from vf.inference.completions import ImageProcessor, every_field
from vf.inference.model import Sampling
from vf.inference.serving import Serving
from vf.inference.vllm.pace import Load
from vf.runtime.api_keys import hide, hide_in_logs, hide_urls, in_url, tells
from vf.runtime.certificates import verify_for
from vf.runtime.errors import ConfigError, EngineError

SECONDS = 600.0  # loading the weights of a large model takes minutes
LOAD_SECONDS = 2.0
RESUME_SECONDS = 60.0  # a server that failed may not answer any more
HEALTH_SECONDS = 5.0
# What a server's own filters and penalties are found out by: prompts of one token, after which many
# tokens are likely, and tokens sampled after each.
PROMPTS, SAMPLED = 16, 16
PATTERN, REPEATED = 8, 4  # tokens, and how often, so that drafts are found in the prompt itself
# Nats. Filters raise log-probabilities: a nucleus of 0.95 or the 20 likeliest tokens by 0.02 to
# 0.05. Penalties change them both ways, one of 1.05 by 0.07. Rounding does by 0.02, both ways.
RAISED, CHANGED = 0.012, 0.05


class Unreached(EngineError):
    """There was no server to take the request."""


class Refused(EngineError):
    """The server answered, but not with success.

    Attributes:
        status: The HTTP status.
    """

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class Admin:
    """Talks to one server.

    Args:
        base_url: Up to and including ``/v1``.
        api_key: Sent as a bearer token if given.
    """

    def __init__(self, base_url: str, api_key: str | None = None) -> None:
        self._secrets = api_key, *in_url(base_url)
        self.root = base_url.rstrip("/").removesuffix("/v1")
        self._verify = verify_for(self.root)
        hide_in_logs()
        self._http = httpx.Client(
            headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
            timeout=httpx.Timeout(SECONDS, connect=10.0),
            verify=self._verify,
            trust_env=False,
        )

    def get(self, path: str) -> Any:
        """GET a path and return the decoded answer.

        Raises:
            Refused: If the answer is an error.
            EngineError: If there is no answer.
        """
        return self._request("GET", path)

    def post(self, path: str, body: Any = None, *, seconds: float = SECONDS, **query: str) -> Any:
        """POST to a path and return the decoded answer; raises as :meth:`get` does."""
        return self._request("POST", path, json=body, params=query, timeout=seconds)

    def healthy(self) -> bool:
        """Return whether the server answers at all, and says that it is well."""
        try:
            return self._http.get(f"{self.root}/health", timeout=HEALTH_SECONDS).status_code == 200
        except httpx.HTTPError:
            return False

    def answers(self) -> bool:
        """Return whether the server answers soon, and not that it has failed."""
        try:
            return self._http.get(f"{self.root}/health", timeout=HEALTH_SECONDS).status_code < 500
        except httpx.HTTPError:
            return False

    def away(self) -> bool:
        """Return whether there is no server at present; one that is slow to answer is there."""
        try:
            answer = httpx.get(
                f"{self.root}/health",
                timeout=HEALTH_SECONDS,
                verify=self._verify,
                trust_env=False,
            )
            return answer.status_code >= 500
        except httpx.ReadTimeout:
            return False
        except httpx.HTTPError:
            return True

    def load(self) -> Load | None:
        """Return how full the server is; None if it does not say."""
        try:
            answer = self._http.get(f"{self.root}/metrics", timeout=LOAD_SECONDS)
        except httpx.HTTPError:
            return None
        return Load.read(answer.text) if answer.status_code == 200 else None

    def models(self) -> list[str]:
        """Return the names that requests can ask for.

        Raises:
            EngineError: If there is no answer, or it has another form.
        """
        try:
            return [card["id"] for card in self.get("/v1/models")["data"]]
        except (KeyError, TypeError) as error:
            raise EngineError(
                f"{hide(self.root, *self._secrets)}/v1/models has no list of models"
            ) from error

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def _request(self, method: str, path: str, **content: Any) -> Any:
        url = hide(self.root + path, *self._secrets)
        try:
            response = self._http.request(method, self.root + path, **content)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            kind = Unreached if isinstance(error, httpx.ConnectError) else EngineError
            problem = hide(f"{url}: {type(error).__name__}: {error}", *self._secrets)
            raise kind(problem) from (None if tells(error, *self._secrets) else error)
        if response.status_code != 200:
            reason = hide(_reason(response), *self._secrets)
            raise Refused(f"{url} answered {response.status_code}: {reason}", response.status_code)
        try:
            return response.json()
        except ValueError:
            return response.text


def _reason(response: httpx.Response) -> str:
    try:
        answer = response.json()
        error = answer.get("error", answer.get("detail", answer))
        return str(error["message"] if isinstance(error, dict) and "message" in error else error)
    except (ValueError, AttributeError):
        return response.text[:300]


@contextmanager
def swapped(admin: Admin, serving: Serving, version: int, *, drain: bool = False) -> Iterator[None]:
    """Hold the server still while its weights change in place, and then forget what is stale.

    New requests wait on this side. While it is drained, vLLM 0.33 would refuse them. Where the
    server keeps its cache, salts keep what is stale from new conversations instead.

    Args:
        admin: The server.
        serving: The server's present weights.
        version: The version of the new weights.
        drain: Let requests under way end first; otherwise they pause, and continue with the
            new weights.

    Raises:
        ConfigError: If the server has no such control.
    """
    with serving.hold(drain=drain):
        try:
            clear = "false" if serving.keeps_cache else "true"
            admin.post("/pause", mode="wait" if drain else "keep", clear_cache=clear)
        except Refused as error:
            if error.status != 404:
                raise
            raise ConfigError(
                "the server cannot be paused for new weights; it must run with "
                "VLLM_SERVER_DEV_MODE=1 in its environment"
            ) from error
        try:
            yield
            if not serving.keeps_cache:
                # Requests in progress recompute their contexts: their keys and values are of old
                # weights.
                admin.post("/reset_prefix_cache", reset_running_requests="true")
            admin.post("/update_weight_version", {"new_version": str(version)})
        finally:
            admin.post("/resume", seconds=RESUME_SECONDS)


def check_served(admin: Admin, base_url: str, model: str, max_seq_len: int) -> None:
    """Check that a server speaks OpenAI's API and serves the model with enough context.

    Raises:
        ConfigError: If it does not; the message says what it does instead.
    """
    base_url = hide_urls(base_url)
    try:
        models = admin.get("/v1/models")
        cards = {card["id"]: card for card in models["data"]}
    except Refused as error:
        hint = "; name the variable with the key in inference.api_key_env"
        raise ConfigError(f"{error}{hint if error.status in (401, 403) else ''}") from error
    except EngineError as error:
        raise ConfigError(f"no server answers at {base_url!r}: {error}") from error
    except (KeyError, TypeError) as error:
        raise ConfigError(
            f"the server at {base_url!r} is not OpenAI-compatible: /models has no list of "
            f"models (missing: {error})"
        ) from error
    card = cards.get(model)
    if card is None:
        raise ConfigError(
            f"the server at {base_url} serves {', '.join(cards) or 'nothing'}, but not {model!r}; "
            f"start it with --served-model-name {model}"
        )
    context = card.get("max_model_len")
    if context is not None and context < max_seq_len:
        raise ConfigError(
            f"the server's context is {context} tokens, less than trainer.args.max_seq_len = "
            f"{max_seq_len}; lower that, or raise the server's --max-model-len"
        )


def check_tokenizer(admin: Admin, model: str, text: str, token_ids: list[int]) -> None:
    """Check that the server, if it has /tokenize, encodes a text as the trainer does.

    Raises:
        ConfigError: If it does not; the message says where they differ.
    """
    body = {"model": model, "prompt": text, "add_special_tokens": False}
    try:
        theirs = admin.post("/tokenize", body)["tokens"]
    except (Refused, KeyError, TypeError):
        return  # not every server tells; the probe of the logprobs would notice too
    if theirs == token_ids:
        return
    pairs = zip(token_ids, theirs, strict=False)
    index = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(token_ids), len(theirs)))
    raise ConfigError(
        f"the server's tokenizer differs from the trainer's: token {index} of a test prompt is "
        f"{theirs[index : index + 1]} there and {token_ids[index : index + 1]} here; serve the "
        "same model, or a copy with the same tokenizer files"
    )


def check_unfiltered(admin: Admin, model: str, token_ids: Sequence[int]) -> None:
    """Check that a server samples from the model's distribution where a request asks for no other.

    It is asked for tokens, and then how likely they are as parts of a prompt, of which vLLM tells
    the model's own log-probabilities, before filters and penalties.

    Args:
        admin: Asks the server.
        model: The served model.
        token_ids: Some of the model's vocabulary.

    Raises:
        ConfigError: If it filters or penalises anyway.
    """
    try:
        gaps = _gaps(admin, model, [[token] for token in dict.fromkeys(token_ids)][:PROMPTS])
    except (EngineError, KeyError, IndexError, TypeError, ValueError):
        return  # not every server tells; the probe of the logprobs would notice much of it, too
    if _differ(gaps):
        raise ConfigError(
            "the server filters or penalises tokens though requests ask it not to: the "
            f"log-probabilities of what it samples differ from the model's by {fmean(gaps):+.3f} "
            "nats on average. Start vLLM with --generation-config vllm and without "
            "--override-generation-config; if there is a proxy before it, let that pass top_p, "
            "top_k, min_p and the penalties on"
        )


def check_images(admin: Admin, model: str, vision: ImageProcessor) -> None:
    """Check that a server takes images beside token ids, and makes of them the tokens that we do.

    Args:
        admin: Asks the server.
        model: The served model.
        vision: Prepares images for it.

    Raises:
        ConfigError: If it does not; says with what it must run.
    """
    token_ids, images = vision.test_prompt()
    tokens, parts = vision.as_sent(token_ids, images)
    body = {
        "model": model,
        "token_ids": tokens,
        "content_parts": parts,
        "return_token_ids": True,
        "sampling_params": {"max_tokens": 1},
    }
    needs = (
        "it must run vLLM 0.32 or newer with --enable-scale-out and without --language-model-only"
    )
    try:
        theirs = admin.post("/inference/v1/generate", body)["prompt_token_ids"]
    except Refused as error:
        raise ConfigError(f"the server takes no images with token ids: {error}; {needs}") from error
    except (KeyError, TypeError) as error:
        raise ConfigError(f"the server does not tell a prompt's token ids: {needs}") from error
    if theirs != token_ids:
        raise ConfigError(
            f"the server makes {len(theirs)} tokens of a test picture where the model's processor "
            f"makes {len(token_ids)} here, or other ones; serve the same model with its own "
            "processor settings, without --mm-processor-kwargs that change sizes"
        )


def check_drafted(admin: Admin, model: str, token_ids: Sequence[int], *, certain: bool) -> None:
    """Check that a server that decodes speculatively still samples from the model's distribution.

    As :func:`check_unfiltered` does, after prompts that repeat themselves, so that there are drafts
    to accept and to reject. (On a CPU, vLLM 0.32 does not: its kernel leaves the temperature of
    tokens that were drafted unset.)

    Args:
        admin: Asks the server.
        model: The served model.
        token_ids: Some of the model's vocabulary.
        certain: Whether it is known to; otherwise one that cannot be asked is left alone.

    Raises:
        ConfigError: If it does not, or refuses to sample.
    """
    ids = [*dict.fromkeys(token_ids)]
    starts = range(0, len(ids), max(1, len(ids) // PROMPTS))
    prompts = [(ids[start:] + ids)[:PATTERN] * REPEATED for start in starts]
    try:
        gaps = _gaps(admin, model, prompts)
    except Refused as error:
        if not certain:
            return
        wrong = f"is refused: {error}"
    except (EngineError, KeyError, IndexError, TypeError, ValueError):
        return
    else:
        if not _differ(gaps):
            return
        wrong = f"changes them by {fmean(map(abs, gaps)):.2f} nats on average"
    raise ConfigError(
        "with speculative decoding, the server does not sample by the model's log-probabilities: "
        f"where it drafts, sampling {wrong}. Leave speculative_config out of its flags"
    )


def _differ(gaps: list[float]) -> bool:
    return not (fmean(gaps) <= RAISED and fmean(map(abs, gaps)) <= CHANGED)


def _gaps(admin: Admin, model: str, prompts: list[list[int]]) -> list[float]:
    """Return by how many nats sampling changed the log-probability of each of some tokens."""
    fields = every_field(Sampling(SAMPLED, seed=0), [])
    body = {"model": model, "return_token_ids": True, **fields}
    answer = admin.post("/v1/completions", {**body, "prompt": prompts, "logprobs": 0})
    sampled = [choice["token_ids"] for choice in answer["choices"]]
    sampled_logprobs = [choice["logprobs"]["token_logprobs"] for choice in answer["choices"]]
    whole = [prompt + tokens for prompt, tokens in zip(prompts, sampled, strict=True)]
    body |= {"max_tokens": 1, "prompt": whole, "prompt_logprobs": 0}
    answer = admin.post("/v1/completions", body)
    gaps = []
    for tokens, logprobs, choice in zip(sampled, sampled_logprobs, answer["choices"], strict=True):
        prompt_logprobs = choice["prompt_logprobs"][-len(tokens) :]
        for token, logprob, by_token in zip(tokens, logprobs, prompt_logprobs, strict=True):
            gaps.append(float(logprob) - float(by_token[str(token)]["logprob"]))
    return gaps
