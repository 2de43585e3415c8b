"""Flower's grid, with heads of messages alone: what they carry goes by the post."""

from __future__ import annotations

import time
from collections.abc import Iterable

from flwr.app import Message, Metadata, RecordDict

from tacit.apps.flower_internals import (
    Error,
    ErrorCode,
    HttpGrid,
    PullAppMessagesRequest,
    PushAppMessagesRequest,
    make_message,
    message_from_proto,
)
from tacit.apps.message_heads import head, telling
from tacit.apps.post import Post
from tacit.core import BadInput
from tacit.engines.flower import TYPE

LOOK = 2.0  # seconds after which Flower is asked for answers of which no word has come


class PostGrid(HttpGrid):
    """Sends all messages with one call, and asks for answers when there are some."""

    post: Post

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages; return their ids, empty for those that Flower does not take."""
        letters = list(messages)
        if not letters:
            return []
        heads = [head(m) for m in letters]
        for letter, one in zip(letters, heads, strict=True):
            about = one.metadata
            self.post.prepare(about.message_id, about.dst_node_id, letter.content, about.ttl)
        told = [telling(one) for one in heads]
        answer = self._runtime_client.PushMessages(
            PushAppMessagesRequest(
                messages_list=[t.messages_list[0] for t in told],
                message_object_trees=[t.message_object_trees[0] for t in told],
            )
        )
        for one, tell, taken in zip(heads, told, answer.message_ids, strict=True):
            if taken:
                self.post.notify(taken, tell.SerializeToString())
            else:
                self.post.forget(one.metadata.message_id)
        ids: list[str] = list(answer.message_ids)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Wait a moment for an announcement; return the answers that are there.

        Flower hands out its word of an answer once. If it is killed while it does, the word is
        lost, but not the answer, which a known site has brought to the gate.
        """
        self.post.wait(LOOK)
        wanted = list(message_ids)
        got = self._runtime_client.PullMessages(PullAppMessagesRequest(message_ids=wanted))
        answers = [self._whole(message_from_proto(one)) for one in got.messages_list]
        told = {answer.metadata.reply_to_message_id for answer in answers}
        late = self.post.overdue(message for message in wanted if message not in told)
        return answers + [self._whole(_word_of_answer(message)) for message in late]

    def _whole(self, answer: Message) -> Message:
        """Return an answer with what it carries; whatever is wrong with it, it alone is lost."""
        if answer.has_error():
            return answer
        about = answer.metadata
        try:
            content = self.post.take(about.reply_to_message_id)
        except Exception as e:
            why = str(e) if isinstance(e, BadInput) else f"cannot be read ({type(e).__name__})"
            return make_message(metadata=about, error=Error(ErrorCode.MESSAGE_UNAVAILABLE, why))
        return make_message(metadata=about, content=content)


def _word_of_answer(message: str) -> Message:
    """Return what Flower would say of an answer, as far as anybody looks at it."""
    about = Metadata(
        run_id=0,
        message_id="",
        src_node_id=0,
        dst_node_id=0,
        reply_to_message_id=message,
        group_id="",
        created_at=time.time(),
        ttl=LOOK,
        message_type=TYPE,
    )
    made: Message = make_message(metadata=about, content=RecordDict())
    return made
