"""
Messages as entries of streams, by a script that adds none twice.

A sorted set beside each stream, of each sink, has the ids that the sink has added there, with the
server's time. An id that is in it is not added again. Ids older than `deduplicate_seconds` are
removed by later messages, but not by the first batch after a start: that is the one which an outage
may have left half done, however long it lasted. A stream that was deleted gets everything again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from redis import Redis
from redis.exceptions import NoPermissionError

from pgstream_dagster.config.redis import RedisConfig
from pgstream_dagster.sinks.message import Message

LOOK: Final = "return redis.call('TYPE', KEYS[1]).ok"
"""A script, so that the same rights are asked for as when entries are added."""

ADD: Final = """
local stream, added = KEYS[1], KEYS[2]
local max_len, window, forgets = ARGV[1], tonumber(ARGV[2]), ARGV[3] == '1'
local now = tonumber(redis.call('TIME')[1])
if redis.call('EXISTS', stream) == 0 and redis.call('EXISTS', added) == 1 then
  redis.call('DEL', added) -- only then: after any write of a script, Redis denies none for memory
end
for at = 4, #ARGV, 4 do
  local id = ARGV[at]
  if window == 0 or not redis.call('ZSCORE', added, id) then
    local fields = {'id', id, 'payload', ARGV[at + 1], 'position', ARGV[at + 2]}
    if ARGV[at + 3] ~= '' then
      fields[7], fields[8] = 'committed_at', ARGV[at + 3]
    end
    if max_len == '' then
      redis.call('XADD', stream, '*', unpack(fields))
    else
      redis.call('XADD', stream, 'MAXLEN', '~', max_len, '*', unpack(fields))
    end
    if window > 0 then redis.call('ZADD', added, now, id) end
  end
end
if window > 0 then
  if forgets then redis.call('ZREMRANGEBYSCORE', added, '-inf', '(' .. (now - window)) end
  redis.call('EXPIRE', added, 86400)
end
"""
"""A day later no attempt of a batch is expected any more: then the set goes."""

MESSAGES_AT_ONCE: Final = 500
"""The server serves no other client while a script runs: some milliseconds."""

BYTES_AT_ONCE: Final = 1 << 20

FIT: Final = ("stream", "none")
"""The types of a key that takes entries: `none` is that of one that does not exist."""


class Streams:
    """The streams that one sink adds to."""

    def __init__(self, client: Redis, config: RedisConfig, owner: str) -> None:
        """`owner` names the sink among all that add to a stream."""
        self._client, self._config, self._owner = client, config, owner

    def unfit(self, names: Sequence[str]) -> Mapping[str, str]:
        """Of these, those that take no entries, and why; raises `RedisError`."""
        pipe = self._client.pipeline(transaction=False)
        for name in names:
            pipe.eval(LOOK, 2, name, self._record_of(name))
        answers = zip(names, pipe.execute(raise_on_error=False), strict=True)
        return {name: reason for name, answer in answers if (reason := _reason(name, answer))}

    def add(self, placed: Iterable[tuple[str, Message]], *, forgets: bool) -> None:
        """
        Add messages to their streams, in their order; raises `RedisError`.

        `forgets`: whether ids that are old enough are removed from the record.
        """
        by_stream: dict[str, list[Message]] = {}
        for name, message in placed:
            by_stream.setdefault(name, []).append(message)
        pipe = self._client.pipeline(transaction=False)
        for name, messages in by_stream.items():
            settings = [self._config.max_len or "", self._config.deduplicate_seconds, int(forgets)]
            keys = [name, self._record_of(name)]
            pipe.eval(ADD, len(keys), *keys, *settings, *_arguments(messages))
        # Not its own errors: their text begins with the whole command.
        answers: Sequence[Any] = pipe.execute(raise_on_error=False)
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer

    def _record_of(self, stream: str) -> str:
        """The key of the ids that the sink has added; where the stream is, also in a cluster."""
        has_tag = "{" in stream and "}" in stream
        return f"{stream if has_tag else f'{{{stream}}}'}:pgstream:{self._owner}"


def chunks(placed: Iterable[tuple[int, str, Message]]) -> Iterable[list[tuple[int, str, Message]]]:
    """Messages in order, as many as one request takes."""
    chunk, size = list[tuple[int, str, Message]](), 0
    for entry in placed:
        length = len(entry[2].body)
        if chunk and (len(chunk) >= MESSAGES_AT_ONCE or size + length > BYTES_AT_ONCE):
            yield chunk
            chunk, size = [], 0
        chunk.append(entry)
        size += length
    if chunk:
        yield chunk


def _reason(name: str, answer: Any) -> str | None:
    """Why a key takes no entries, from what the server said of it."""
    if isinstance(answer, NoPermissionError):
        return f"stream {name!r}: {answer}"
    if isinstance(answer, Exception):
        raise answer
    kind = answer.decode() if isinstance(answer, bytes) else str(answer)
    return None if kind in FIT else f"key {name!r} is no stream: it is of type {kind!r}"


def _arguments(messages: Sequence[Message]) -> list[str | bytes]:
    return [
        value
        for message in messages
        for value in (message.id, message.body, message.position, message.committed_at)
    ]
