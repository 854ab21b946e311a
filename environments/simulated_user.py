"""A user who is played by a model or a script: heard, counted, and never trained."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from vf.environments.environment import Environment, Step
from vf.environments.players import ANSWER, PlayedBy, Player
from vf.inference.model import Conversation, Reply
from vf.inference.models.scripted_model import ScriptedModel
from vf.runtime.errors import ConfigError, InfrastructureError, UserFailure
from vf.runtime.seeding import derive_seed
from vf.tools.tool_box import ToolBox
from vf.traces.messages import Message, Role, as_messages
from vf.traces.simulated_users import KEY, STOPPED
from vf.traces.tools import Tool

GREETING = "Hello! How can I help you?"  # harmless: whoever can play at all answers it
STOP = "###STOP###"
RULES = f"""\
You play a user who talks to a service agent. Never leave the part, and never act as the agent.

Who you are: {{persona}}

What you want, and what you know: {{goal}}

Write what the user says next, in one to three short sentences, and nothing else. Say only what is
asked for. What does not stand here you do not know: make nothing up. When you have what you want,
or see that you will not get it, say so and add {STOP}."""

_OTHER: dict[Role, Role] = {"user": "assistant", "assistant": "user"}  # as the user sees them
_SILENCE = "(The agent says nothing.)"
_CUT = " (The rest is too long to read.)"
_MOST_ROUNDS = 8  # of tool calls in one answer


class _Trouble(Exception):
    """One attempt at an answer failed; ``__cause__`` says how."""

    def __init__(self, problem: str, error: Exception | None = None) -> None:
        super().__init__(problem)
        self.error = error


class SimulatedUser:
    """Who plays the user that the policy talks to.

    Make it in an environment's ``__init__``; :meth:`begin` in ``reset`` begins an episode's
    conversation, and :meth:`UserConversation.answer` is the answer of ``step`` to whatever the
    policy says to the user.

    Nothing that the user says is trained: its words enter the policy's conversation as messages of
    the environment. What it was asked and said, in how many requests and tokens, is in
    ``Trace.info["simulated_user"]``, also where the rollout failed.

    Whoever plays may fail: an API is down, an answer takes too long, or is empty. The rollout then
    fails (boundary ``user``), has no reward and is replaced. But nothing that the policy says can
    bring that about, or it could choose to go unscored. After a failed answer the same user is
    greeted in a conversation of its own, in which the policy said nothing. Only where that
    fails, too, it is a failure. Where it is answered, the user is asked again, ``retries`` times;
    if there is still no answer, the conversation was the cause: the episode ends, and is scored.

    Example::

        class Booking(vf.Environment):
            def __init__(self, user=customer):
                self.user = vf.SimulatedUser(user)

            def reset(self, task):
                self.talk = self.user.begin(self, goal=task.info["wish"], said=task.prompt)
                return self.first_messages(task)

            async def step(self, reply):
                if reply.tool_calls:
                    return await self.run_tools(reply)
                return await self.talk.answer(reply)

    Args:
        played_by: A table with ``model`` and ``base_url`` of an OpenAI-compatible API (the keys
            are those of :class:`~vf.environments.players.ChatTable`); any model; a list of lines,
            said in turn; or a function of the messages so far that returns a line. In these
            messages the policy's words have the role ``user``, and the user's own ``assistant``.
        rules: The system prompt of whoever plays, with ``{persona}`` and ``{goal}`` in it.
        stop: The words with which the user ends the conversation; the policy does not hear them.
        hears: Characters of one message that the user hears; the rest is cut off. So no message
            is too long for the user's model, and none too expensive.
        retries: Further attempts at an answer, once it is known that the user can answer.

    Raises:
        ConfigError: If nothing of the kind can play, or an argument is out of range.
    """

    def __init__(
        self,
        played_by: PlayedBy,
        *,
        rules: str = RULES,
        stop: str = STOP,
        hears: int = 4000,
        retries: int = 2,
    ) -> None:
        if hears < 1 or retries < 0:
            raise ConfigError(
                f"user: hears must be at least 1 and retries at least 0, got {hears} and {retries}"
            )
        if not isinstance(stop, str) or not stop.strip():
            raise ConfigError(f"user: stop must be a text that ends the conversation, got {stop!r}")
        try:
            rules.format(persona="", goal="")
        except (AttributeError, KeyError, IndexError, ValueError) as error:
            raise ConfigError(
                f"user: rules must be text with {{persona}} and {{goal}} in it, and {{{{ and }}}} "
                f"for literal braces: {error}"
            ) from None
        self.rules, self.stop = rules, stop
        self.hears, self.retries = hears, retries
        player = Player.of(played_by, "user", ANSWER)
        self.model, self.sampling, self.name = player.model, player.sampling, player.name

    def begin(
        self,
        environment: Environment,
        *,
        goal: str,
        said: str | list[Message] | list[dict[str, Any]],
        persona: str = "a customer",
        tools: Sequence[Callable[..., Any] | Tool] = (),
    ) -> UserConversation:
        """Begin an episode's conversation. Nobody is asked yet.

        Args:
            environment: The episode; its ``rng`` gives the seed of the answers.
            goal: The user's wishes and knowledge.
            said: Messages before, as the policy reads them: the task's prompt. Those of the role
                    ``user`` are the user's first words.
            persona: The person that the user is, and their manner.
            tools: The user's tools, written as those of an environment.
        """
        system = self.rules.format(persona=persona, goal=goal)
        before = [
            (_OTHER[message.role], message)
            for message in as_messages(said)
            if message.role in _OTHER
        ]
        if not before or before[0][0] == "assistant":  # most chat templates want the other first
            before.insert(0, ("user", Message("user", GREETING)))
        messages = [Message("system", system)]
        messages += [Message(role, message.content) for role, message in before]
        box = ToolBox(
            [tool if isinstance(tool, Tool) else Tool.from_function(tool) for tool in tools]
        )
        return UserConversation(self, environment, messages, box)

    async def check(self) -> None:
        """Greet whoever plays, once: a :class:`~vf.tools.episode.Service` asks before a run begins.

        Raises:
            ConfigError: If there is no answer.
        """
        if isinstance(self.model, ScriptedModel):
            return
        greeting = Conversation([Message("user", GREETING)])
        try:
            await self.model.respond(greeting, self.sampling)
        except InfrastructureError as error:
            raise ConfigError(
                f"user: nobody answers a greeting: {error}. Correct user.model and user.base_url, "
                "or start the server"
            ) from error

    async def start(self) -> None:
        """Need nothing that is made ahead."""


class UserConversation:
    """One episode's conversation with the user, as the user sees it.

    Attributes:
        ended: Why the user has ended it: ``stop`` where they said so, or what kept them from
            answering; None while it lasts.
        tools: The user's tools, with the record of their calls in ``tools.events``.
    """

    def __init__(
        self, user: SimulatedUser, environment: Environment, messages: list[Message], tools: ToolBox
    ) -> None:
        self.ended: str | None = None
        self.tools = tools
        self._user, self._environment = user, environment
        self._seed = environment.rng.getrandbits(62)
        self._conversation = Conversation(messages, tools.schemas())
        self._requests = self._prompt_tokens = self._completion_tokens = 0
        self._record()

    @property
    def messages(self) -> list[Message]:
        """What was said so far: the policy's words as ``user``, the user's as ``assistant``."""
        return self._conversation.messages

    async def answer(self, reply: Message | str) -> Step:
        """Let the user hear what the policy says, and answer.

        Returns:
            What the user says, as the next message. The step is ``terminated`` where the user ends
            the conversation, or has no answer to what was said.

        Raises:
            UserFailure: If whoever plays answers neither this nor a greeting.
            ToolFailure: If one of the user's tools failed.
        """
        if self.ended is not None:
            return Step(terminated=True)
        self.messages.append(Message("user", self.heard(reply)))
        try:
            with self._timed():
                text = await self._say()
        finally:
            self._record()
        return Step(text or [], terminated=self.ended is not None)

    def heard(self, reply: Message | str) -> str:
        """Return what of a message the user hears: its text, cut to ``hears`` characters."""
        text = (reply if isinstance(reply, str) else reply.content).strip() or _SILENCE
        most = self._user.hears
        return text if len(text) <= most else text[:most] + _CUT

    async def _say(self) -> str | None:
        """Return what the user says; None where the policy has left them without an answer."""
        trouble: _Trouble | None = None
        for attempt in range(1 + self._user.retries):
            try:
                text = await self._attempt(attempt)
            except _Trouble as error:
                if trouble is None:
                    await self._greet()
                trouble = error
                continue
            words, stop, _ = text.partition(self._user.stop)
            if stop:
                self.ended = STOPPED
            return words.strip()
        self.ended = f"no answer: {trouble}"
        return None

    async def _attempt(self, attempt: int) -> str:
        """Let the user act and speak once.

        Raises:
            _Trouble: If there was no answer.
        """
        conversation = self._conversation
        for _ in range(_MOST_ROUNDS):
            reply = await self._ask(conversation, attempt)
            message = reply.message
            if not message.tool_calls and not message.content.strip():
                raise _Trouble("the answer is empty")
            conversation.messages.append(message)
            conversation.turn += 1
            if not message.tool_calls:
                return message.content
            turn, seconds = self._environment.turn, self._environment.tool_timeout
            results = await self.tools.run(message.tool_calls, turn=turn, timeout=seconds)
            conversation.messages.extend(results)
        raise _Trouble(f"{_MOST_ROUNDS} rounds of tool calls, and no word")

    async def _greet(self) -> None:
        """Check that the user can answer where the policy has said nothing.

        Raises:
            UserFailure: If they cannot.
        """
        greeting = [self.messages[0], Message("user", GREETING)]
        for attempt in range(1 + self._user.retries):
            conversation = Conversation([*greeting], self._conversation.tools)
            try:
                message = (await self._ask(conversation, attempt)).message
            except _Trouble as trouble:
                raise UserFailure(f"the simulated user failed: {trouble}") from trouble.error
            if message.content.strip() or message.tool_calls:
                return
        raise UserFailure(
            f"the simulated user, {self._user.name}, answers a greeting with nothing, "
            f"{1 + self._user.retries} times"
        )

    async def _ask(self, conversation: Conversation, attempt: int) -> Reply:
        """Ask whoever plays for one message.

        Raises:
            _Trouble: If there is none.
        """
        seed = derive_seed(self._seed, len(conversation.messages), attempt)
        self._requests += 1
        try:
            reply = await self._user.model.respond(
                conversation, self._user.sampling.with_(seed=seed)
            )
        except Exception as error:  # whatever a model, or the author's function, raises
            raise _Trouble(f"{type(error).__name__}: {error}", error) from error
        self._prompt_tokens += reply.prompt_tokens
        self._completion_tokens += reply.completion_tokens
        return reply

    @contextmanager
    def _timed(self) -> Iterator[None]:
        timing, started = self._environment.timing, time.perf_counter()
        try:
            yield
        finally:
            timing["user"] = timing.get("user", 0.0) + time.perf_counter() - started

    def _record(self) -> None:
        """Write into the trace what was said and what it took."""
        self._environment.trace_info[KEY] = {
            "played_by": self._user.name,
            "requests": self._requests,
            "prompt_tokens": self._prompt_tokens,
            "completion_tokens": self._completion_tokens,
            "ended": self.ended,
            "messages": [message.to_openai() for message in self.messages],
        }
