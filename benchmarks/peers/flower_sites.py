"""Flower alone: its stock server, and nodes that stay in memory, for `benchmarks/sites.py`.

    python benchmarks/peers/flower_sites.py --sites 5 --floats 5000 --rounds 6

Nodes are threads, ten in a process. They use Flower's own client classes, as a node of Flower's
does, and the server program Flower's own grid. There is no TLS, nothing is trained or checked.
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    PullMessagesRequest,
    PushMessagesRequest,
    RegisterNodeFleetRequest,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.inflatable import inflatable_object as objects
from flwr.supercore.inflatable import inflatable_protobuf_utils as calls
from flwr.supercore.inflatable import inflatable_utils as parts
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

sys.path.insert(0, str(Path(__file__).parents[1]))
from sites import TOGETHER, Meter, free_port

TYPE, POLL, BEAT = "query.work", 0.2, 10
TRIES = 5  # of a message that Flower answers with an error


def be_node(server: str) -> None:
    """Be one node: send arrays back as they come, or two numbers where that is asked."""
    private, public = generate_key_pairs()
    named = public_key_to_bytes(public)
    version = RuntimeVersionHttpInterceptor(component_name="node")
    signed = NodeAuthHttpInterceptor(private, public)
    client = FleetHttpClient.from_server_address(server, True, None, [version, signed])
    client.RegisterNode(RegisterNodeFleetRequest(public_key=named))
    active = client.ActivateNode(ActivateNodeRequest(public_key=named, heartbeat_interval=BEAT))
    node = Node(node_id=active.node_id)
    beat = SendNodeHeartbeatRequest(node=node, heartbeat_interval=BEAT)
    last = time.monotonic()
    while True:
        got = client.PullMessages(PullMessagesRequest(node=node))
        if got.messages_list:
            one, tree = message_from_proto(got.messages_list[0]), got.message_object_trees[0]
            answer(client, node, one, tree)
        else:
            time.sleep(POLL)
        if time.monotonic() - last > BEAT / 2:
            client.SendNodeHeartbeat(beat)
            last = time.monotonic()


def answer(client: FleetHttpClient, node: Node, message: Message, tree: Any) -> None:
    """Fetch a message, and send its answer."""
    run = message.metadata.run_id
    fetch = calls.make_pull_object_fn_protobuf(client.PullObject, node, run)
    ids = [t.object_id for t in objects.iterate_object_tree(tree)]
    contents = parts.pull_objects(ids, fetch)
    confirm = client.ConfirmMessageReceived
    calls.make_confirm_message_received_fn_protobuf(confirm, node, run)(tree.object_id)
    content = parts.inflate_object_from_contents(tree.object_id, contents).content
    told = ConfigRecord({"right": 30, "wrong": 2})
    back = RecordDict({"told": told}) if "measure" in content.config_records else content
    reply = Message(back, reply_to=message)
    reply.metadata.__dict__["_message_id"] = reply.object_id
    with objects.no_object_id_recompute():
        all_of_it, tree = objects.get_all_nested_objects(reply), objects.get_object_tree(reply)
        head = message_to_proto(remove_content_from_message(reply))
        taken = client.PushMessages(
            PushMessagesRequest(node=node, messages_list=[head], message_object_trees=[tree])
        )
        push = calls.make_push_object_fn_protobuf(client.PushObject, node, run, taken.session_id)
        parts.push_objects(all_of_it, push, object_ids_to_push=set(taken.objects_to_push))


def exchange(grid: Any, content: RecordDict, nodes: list[int]) -> tuple[list[Message], int]:
    """Send the same to every node; return all answers, and how often it had to be sent again."""
    got: list[Message] = []
    waiting, again = set(nodes), -len(nodes)
    for _ in range(TRIES):
        again += len(waiting)
        fresh = [m for m in once(grid, content, sorted(waiting)) if not m.has_error()]
        got += fresh
        waiting -= {m.metadata.src_node_id for m in fresh}
        if not waiting:
            return got, again
    raise SystemExit(f"Flower lost the messages of {len(waiting)} nodes {TRIES} times")


def once(grid: Any, content: RecordDict, nodes: list[int]) -> list[Message]:
    """Send to nodes, and wait for all answers; some may be errors, as where a node was late."""
    waiting = set(grid.push_messages([Message(content, n, TYPE, ttl=600.0) for n in nodes]))
    got: list[Message] = []
    while waiting:
        fresh = list(grid.pull_messages(waiting))
        waiting -= {m.metadata.reply_to_message_id for m in fresh}
        got += fresh
        if waiting:
            time.sleep(POLL)
    return got


def rounds(grid: Any, pids: list[int], sites: int, floats: int, rounds: int) -> dict[str, Any]:
    """Be the server program."""
    meter = Meter()
    while len(nodes := list(grid.get_node_ids())) < sites:
        time.sleep(0.2)
    model, lost = np.zeros(floats, dtype=np.float32), 0
    for _ in range(rounds):
        got, first = exchange(grid, RecordDict({"model": ArrayRecord({"x": Array(model)})}), nodes)
        model = sum(m.content.array_records["model"]["x"].numpy() for m in got) / sites + 1
        model = model.astype(np.float32)
        asked = {"model": ArrayRecord({"x": Array(model)}), "measure": ConfigRecord({"it": True})}
        _, second = exchange(grid, RecordDict(asked), nodes)
        lost += first + second
        meter.note(pids)
    return {**meter.line(), "lost": lost}


def main() -> None:
    """Measure, and print the figures as JSON."""
    from flwr.superlink.grid import HttpGrid

    from tacit.apps.superlink import Link

    parser = argparse.ArgumentParser(description=__doc__)
    for flag in ("--sites", "--floats", "--rounds"):
        parser.add_argument(flag, type=int, required=True)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as made, contextlib.ExitStack() as stack:
        # Flower's server is a stock process, and a run is begun; the gate stands aside
        link = stack.enter_context(Link(Path(made) / "flower", "127.0.0.1", free_port(), None, 1))
        grid = HttpGrid(link.inside, True, None, token=link.grid._token)
        grid.set_run(link.grid.run)
        for first in range(0, given.sites, TOGETHER):
            nodes = str(min(TOGETHER, given.sites - first))
            command = [sys.executable, __file__, "be-nodes", link.inside, nodes]
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
            stack.callback(process.wait)
            stack.callback(process.kill)
        pids = [os.getpid(), link._process.pid]
        print(json.dumps(rounds(grid, pids, given.sites, given.floats, given.rounds)), flush=True)
        grid.close()


if __name__ == "__main__":
    if sys.argv[1:2] == ["be-nodes"]:
        for _ in range(int(sys.argv[3])):
            threading.Thread(target=be_node, args=(sys.argv[2],), daemon=True).start()
        signal.pause()
    main()
