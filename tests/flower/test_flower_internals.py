"""What Tacit expects of Flower beyond its public interface, name by name.

When another version of Flower is tried, these tests say which name is gone or takes other
arguments, before anything else fails in a less telling way.
"""

import ast
import importlib
import inspect
import re
from pathlib import Path

import flwr
import pytest

SOURCE = Path(__file__).parents[2] / "src" / "tacit"
INTERNALS = SOURCE / "apps" / "flower_internals.py"
PUBLIC = {"flwr", "flwr.app", "flwr.clientapp", "flwr.serverapp", "flwr.simulation"}
PROTO, CORE = "flwr.proto", "flwr.supercore"

# What we use: the arguments of a function, the fields of a protobuf message, the members of a class
# or module, or None for a name alone.
FUNCTIONS = {
    "flwr.app.message:make_message": ["metadata", "content", "error"],
    "flwr.common.serde:message_from_proto": ["message_proto"],
    "flwr.common.serde:message_to_proto": ["message"],
    "flwr.common.serde:run_from_proto": ["run_proto"],
    f"{CORE}.app_utils:start_parent_process_monitor": ["parent_pid"],
    f"{CORE}.date:now": [],
    f"{CORE}.interceptors.http.utils:add_headers": ["request", "headers"],
    f"{CORE}.interceptors:RuntimeVersionHttpInterceptor": ["component_name"],
    f"{CORE}.interceptors:SuperExecAuthHttpInterceptor": ["master_secret", "protected_methods"],
    f"{CORE}.primitives.asymmetric:generate_key_pairs": [],
    f"{CORE}.primitives.asymmetric:public_key_to_bytes": ["public_key"],
    f"{CORE}.primitives.asymmetric:sign_message": ["private_key", "message"],
    f"{CORE}.protobuf.client:ProtobufRequestContext": ["rpc_method", "message", "request"],
    "flwr.app.error:Error": ["code", "reason"],
    "flwr.superlink.cli.flower_superlink:flower_superlink": [],
    "flwr.supernode.node_auth_http_interceptor:NodeAuthHttpInterceptor": [
        "private_key",
        "public_key",
    ],
}
FIELDS = {
    f"{PROTO}.control_pb2:RegisterNodeRequest": ["public_key", "name"],
    f"{PROTO}.control_pb2:StartRunRequest": ["fab"],
    f"{PROTO}.fab_pb2:Fab": ["content"],
    f"{PROTO}.fleet_pb2:ActivateNodeRequest": ["public_key", "heartbeat_interval"],
    f"{PROTO}.fleet_pb2:ActivateNodeResponse": ["node_id"],
    f"{PROTO}.fleet_pb2:DeactivateNodeRequest": ["node_id"],
    f"{PROTO}.fleet_pb2:PullMessagesRequest": ["node"],
    f"{PROTO}.fleet_pb2:PullMessagesResponse": ["messages_list", "message_object_trees"],
    f"{PROTO}.fleet_pb2:PushMessagesRequest": [
        "node",
        "messages_list",
        "message_object_trees",
        "clientapp_runtime_list",
    ],
    f"{PROTO}.fleet_pb2:RegisterNodeFleetRequest": ["public_key"],
    f"{PROTO}.heartbeat_pb2:SendNodeHeartbeatRequest": ["node", "heartbeat_interval"],
    f"{PROTO}.message_pb2:ObjectTree": ["object_id"],
    f"{PROTO}.node_pb2:Node": ["node_id"],
    f"{PROTO}.runtime_pb2:AcquireTaskRequest": ["supported_task_types"],
    f"{PROTO}.runtime_pb2:PullAppMessagesRequest": ["message_ids"],
    f"{PROTO}.runtime_pb2:PullTaskInputRequest": [],
    f"{PROTO}.runtime_pb2:PushAppMessagesRequest": ["messages_list", "message_object_trees"],
    f"{PROTO}.runtime_pb2:PushTaskOutputRequest": ["sub_status"],
    f"{PROTO}.runtime_pb2:SendTaskHeartbeatRequest": [],
}
CLIENT = ["from_server_address", "close", "_unary_unary", "__enter__", "__exit__"]
MEMBERS = {
    "flwr.common.constant:ErrorCode": ["MESSAGE_UNAVAILABLE"],
    f"{CORE}.constant:TaskType": ["SERVER_APP"],
    f"{CORE}.control:ControlHttpClient": [*CLIENT, "RegisterNode", "StartRun"],
    f"{CORE}.runtime:RuntimeHttpClient": [
        *CLIENT,
        "AcquireTask",
        "PullTaskInput",
        "PushTaskOutput",
        "SendTaskHeartbeat",
        "PullMessages",
        "PushMessages",
    ],
    f"{CORE}.task_identity:TaskIdentity": ["task_id", "run_id", "node_id"],
    "flwr.superlink.grid:HttpGrid": [
        "_runtime_client",
        "run",
        "set_run",
        "get_node_ids",
        "push_messages",
        "pull_messages",
        "close",
    ],
    "flwr.supernode.fleet_http_client:FleetHttpClient": [
        *CLIENT,
        "RegisterNode",
        "ActivateNode",
        "DeactivateNode",
        "SendNodeHeartbeat",
        "PullMessages",
        "PushMessages",
    ],
}
VALUES = {
    "flwr.common.constant:TIMESTAMP_HEADER": "flwr-timestamp",
    f"{CORE}.constant:FLEET_HTTP_PUBLIC_KEY_HEADER": "flwr-public-key",
    f"{CORE}.constant:FLEET_HTTP_SIGNATURE_HEADER": "flwr-signature",
}
NAMES = [f"{CORE}.protobuf.client:ProtobufCall"]
PATHS = {
    "RegisterNode": "register-node",
    "ActivateNode": "activate-node",
    "DeactivateNode": "deactivate-node",
    "SendNodeHeartbeat": "send-node-heartbeat",
    "PullMessages": "pull-messages",
    "PushMessages": "push-messages",
}


def found(name):
    """Return what a name stands for in the Flower that is installed, or say that it is gone."""
    module, _, attribute = name.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as e:
        pytest.fail(f"flwr {flwr.__version__}: {name} is gone ({e})")


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_take_what_we_give_them(name):
    taken = inspect.signature(found(name)).parameters
    lacking = [argument for argument in FUNCTIONS[name] if argument not in taken]
    assert lacking == [], f"flwr {flwr.__version__}: {name} takes {list(taken)}"
    new = [
        p.name
        for p in taken.values()
        if p.default is p.empty
        and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        and p.name not in FUNCTIONS[name]
    ]
    assert new == [], f"flwr {flwr.__version__}: {name} needs more than we give"


@pytest.mark.parametrize("name", FIELDS)
def test_messages_have_the_fields_that_we_fill(name):
    has = {field.name for field in found(name).DESCRIPTOR.fields}
    assert set(FIELDS[name]) - has == set(), f"flwr {flwr.__version__}: {name} has {sorted(has)}"


@pytest.mark.parametrize("name", MEMBERS)
def test_classes_have_the_members_that_we_use(name):
    kind = type(found(name))  # a metaclass has properties of the class itself
    has = {*dir(found(name)), *dir(kind)}
    assert set(MEMBERS[name]) - has == set(), f"flwr {flwr.__version__}: {name} lacks them"


@pytest.mark.parametrize("name", [*VALUES, *NAMES])
def test_constants_are_as_they_were(name):
    value = found(name)
    assert name not in VALUES or value == VALUES[name], f"flwr {flwr.__version__}: {name}"


@pytest.mark.parametrize("call", PATHS)
def test_fleet_calls_are_at_the_paths_that_the_gate_lets_through(call):
    client = found("flwr.supernode.fleet_http_client:FleetHttpClient")
    assert f'"/v1/fleet/{PATHS[call]}"' in inspect.getsource(getattr(client, call))


def test_flower_knows_a_node_by_what_the_gate_signs():
    """A key of the gate's, the time, and nothing else; within the window that it allows."""
    source = inspect.getsource(found("flwr.superlink.routers.fleet.node_auth:authenticate_node"))
    for words in ("timestamp.encode", "get_node_id_by_public_key", "TIMESTAMP_TOLERANCE"):
        assert words in source
    assert found("flwr.common.constant:TIMESTAMP_TOLERANCE") > 120


def test_flower_takes_an_answer_to_a_message_that_it_has_not_handed_out():
    """The gate tells sites of messages, and what they carry goes by the post."""
    state = found("flwr.server.superlink.linkstate.sql_linkstate:SqlLinkState")
    for check in (state.store_message_res, state.get_valid_message_ins):
        assert "delivered_at" not in inspect.getsource(check)
    handed = found("flwr.superlink.servicer.runtime.runtime_handlers:pull_messages")
    assert "get_object(" not in inspect.getsource(handed)


def imports(file):
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from ((node.module, alias.name) for alias in node.names)


def test_internals_of_flower_are_used_in_one_place():
    used = {
        (file.name, module)
        for file in SOURCE.rglob("*.py")
        if file != INTERNALS
        for module, _ in imports(file)
        if module.split(".")[0] == "flwr" and module not in PUBLIC
    }
    assert used == set()


def test_every_name_has_its_expectation():
    here = {f"{m}:{name}" for m, name in imports(INTERNALS) if m.startswith("flwr")}
    here |= {
        f"{module}:{name}"
        for module, name in re.findall(r"from (flwr\S+) import (\w+)", INTERNALS.read_text())
        if not name.startswith("flwr") and "(" not in name
    }
    assert here == {*FUNCTIONS, *FIELDS, *MEMBERS, *VALUES, *NAMES}
