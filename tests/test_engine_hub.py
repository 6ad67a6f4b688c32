"""The real hub client, in a process of its own, against an imitation of the hub on loopback."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hub_imitation import Hub, serve
from tiny_checkpoints import tiny_folder

from vlmtasks.engine import hub as client

FETCH = """
import json, sys
from vlmtasks.engine import hub
from vlmtasks.errors import CheckpointError
name, options = sys.argv[1], json.loads(sys.argv[2])
try:
    folder = getattr(hub, options.pop("call", "fetch"))(name, **options)
    print(json.dumps({"folder": folder and str(folder)}))
except CheckpointError as error:
    print(json.dumps({"error": str(error)}))
"""

LOAD = """
import json, sys
from vlmtasks.engine import Engine
engine = Engine.load(sys.argv[1], device="cpu")
layers = len(engine.network.language_model.layers)
print(json.dumps({"folder": str(engine.folder), "layers": layers}))
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """A model with files that nobody needs."""
    folder = tiny_folder(tmp_path_factory.mktemp("model"))
    for name in ("pytorch_model.bin", "README.md", "run.py", "sub/other.safetensors"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(b"x")
    (folder / "tokenizer.model").write_bytes(b"x")
    return folder


@pytest.fixture
def hub(model, tmp_path_factory):
    other = tmp_path_factory.mktemp("other")
    (other / "config.json").write_text('{"revision": "v1"}')
    revisions = {"main": model, "v1": other}
    names = ("org/open", "org/private", "org/gated")
    imitation = Hub(
        {name: revisions for name in names}, private={"org/private"}, gated={"org/gated"}
    )
    with serve(imitation):
        yield imitation


@pytest.fixture
def run(tmp_path, hub):
    def run(program: str, name: str, options: dict | None = None, **environment: str) -> dict:
        plain = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "HUGGING"))}
        result = subprocess.run(
            [sys.executable, "-c", program, name, json.dumps(options or {})],
            env={**plain, "HF_ENDPOINT": hub.endpoint, "HF_HOME": str(tmp_path), **environment},
            cwd=Path(__file__).parent.parent,
            capture_output=True,
            text=True,
            check=True,
        )
        return json.loads(result.stdout)

    return run


def test_engine_loads_by_name(run, hub):
    result = run(LOAD, "org/open")
    assert result["layers"] == 2
    assert hub.commit("org/open", "main") in result["folder"]


def test_only_what_is_needed_is_fetched(run, hub):
    folder = Path(run(FETCH, "org/open")["folder"])

    wanted = ["config.json", "model.safetensors", "tokenizer.json", "tokenizer.model"]
    assert sorted(path.name for path in folder.iterdir()) == wanted
    asked = {r.rsplit("/", 1)[1] for r in hub.requests if r.startswith("GET") and "/resolve/" in r}
    assert asked == set(wanted)


@pytest.mark.parametrize("by_commit", [False, True], ids=["tag", "commit"])
def test_revision(run, hub, by_commit):
    revision = hub.commit("org/open", "v1") if by_commit else "v1"
    folder = Path(run(FETCH, "org/open", {"revision": revision})["folder"])
    assert json.loads((folder / "config.json").read_text()) == {"revision": "v1"}


@pytest.mark.parametrize("name", ["org/private", "org/gated"])
@pytest.mark.parametrize("way", ["argument", "environment"])
def test_token(run, name, way):
    if way == "argument":
        result = run(FETCH, name, {"token": "hf_right"})
    else:
        result = run(FETCH, name, HF_TOKEN="hf_right")
    assert (Path(result["folder"]) / "model.safetensors").is_file()


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("org/none", {}, "the hub has no model 'org/none', or it is private: check the name"),
        ("org/private", {}, "the hub has no model 'org/private', or it is private"),
        ("org/private", {"token": "hf_wrong"}, "or pass token=…"),
        ("org/gated", {}, "'org/gated' is gated: accept its terms on the hub, then pass token=…"),
        ("org/open", {"revision": "v9"}, "'org/open' has no revision 'v9'"),
    ],
    ids=["unknown", "private", "wrong token", "gated", "revision"],
)
def test_what_goes_wrong_is_explained(run, name, options, message):
    assert message in run(FETCH, name, options)["error"]


def test_offline(run, hub):
    error = run(FETCH, "org/open", HF_HUB_OFFLINE="1")["error"]
    assert "'org/open' is neither a folder nor in the cache" in error
    assert hub.requests == []

    online = run(FETCH, "org/open")
    hub.requests.clear()
    assert run(FETCH, "org/open", HF_HUB_OFFLINE="1") == online
    assert hub.requests == []


def test_no_network(run):
    result = run(FETCH, "org/open", HF_ENDPOINT="http://127.0.0.1:9")
    assert (
        "'org/open' is neither a folder nor in the cache, and the hub cannot be" in result["error"]
    )


def test_cached_never_asks(run, hub):
    assert run(FETCH, "org/open", {"call": "cached"}) == {"folder": None}
    assert hub.requests == []
    fetched = run(FETCH, "org/open")
    hub.requests.clear()
    assert run(FETCH, "org/open", {"call": "cached"}) == fetched
    assert hub.requests == []


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("google/paligemma-3b-mix-224", True),
        ("a/b_c.d-1", True),
        ("paligemma", False),
        ("a/b/c", False),
        ("./a/b", False),
        ("../b", False),
        ("a/..", False),
        ("a/b c", False),
        ("/a/b", False),
        ("a\\b", False),
        ("", False),
    ],
)
def test_names_of_models(source, expected):
    assert client.is_model_id(source) is expected
