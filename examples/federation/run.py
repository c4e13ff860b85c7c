"""A federation on this machine: a SuperLink, four SuperNodes with images of their own, TLS and node authentication; FedAvg, then FedOMG.

    python examples/federation/run.py [--out runs/federation] [--method fedavg --method fedomg] [--set "rounds=5 local.lr=0.02"]

Three nodes hold the drawings of one hand each and train; the fourth holds a style that nobody trains on, and tests on pictures that nobody
has trained on in any style. The SuperLink holds no image at all. Every process that is started is ended, whatever happens.
"""

import argparse
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from PIL import Image

from fedomg.data.dataset import TEST, TRAIN
from fedomg.data.sources import emoji

sys.path.insert(0, str(Path(__file__).parent))
from keys import write_keys

HERE = Path(__file__).parent.resolve()
OWNERS = ("noto", "openmoji", "twemoji", "line")
"""The domains, one a node; the last is the held-out one of experiment.toml."""
HOST = "127.0.0.1"
CLASSES, EACH = ("Animals", "Smileys", "Symbols", "Travel"), 100
READY = 60.0


class FederationError(Exception):
    """Something has not come about in time, or has ended badly."""


class Federation:
    """The processes and files of one federation. `settings` stand in every node's configuration."""

    def __init__(self, out: Path, stack: ExitStack, owners: Sequence[str] = OWNERS, settings: str = "") -> None:
        self.out = out
        self._owners = owners
        self._settings = settings
        self._stack = stack
        self.port = _free_port()
        self.nodes: dict[str, subprocess.Popen[bytes]] = {}
        self._keys = out / "keys"

    def start(self) -> None:
        write_images(self.out / "images", self._owners)
        write_keys(self._keys, ["localhost", HOST], len(self._owners))
        self._write_connection()
        self._superlink()
        for place, _ in enumerate(self._owners):
            self.flwr("supernode", "register", str(self._keys / f"node-{place}.pub"), "deploy")
        for owner in self._owners:
            self.start_node(owner)
        until(lambda: len(self._online()) == len(self._owners), "all SuperNodes to come")

    def _write_connection(self) -> None:
        home = self.out / "home" / "operator"
        home.mkdir(parents=True, exist_ok=True)
        lines = ('[superlink]\ndefault = "deploy"', "[superlink.deploy]", f'address = "{HOST}:{self.port}"')
        text = "\n".join([*lines, f'root-certificates = "{self._keys / "ca.crt"}"', ""])
        (home / "config.toml").write_text(text, encoding="utf-8")

    def _superlink(self) -> None:
        keys = self._keys
        tls = ["--ssl-ca-certfile", keys / "ca.crt", "--ssl-certfile", keys / "server.pem", "--ssl-keyfile", keys / "server.key"]
        more = ["--enable-supernode-auth", "--disable-runtime-dependency-installation"]
        self._process("superlink", ["flower-superlink", "--host", HOST, "--port", self.port, *tls, *more])
        until(self._healthy, "the SuperLink")

    def start_node(self, owner: str) -> "subprocess.Popen[bytes]":
        place = self._owners.index(owner)
        told = f'data-root="{self.out / "images" / owner}" state-dir="{self.out / "memory" / owner}" {self._settings}'
        link = ["--superlink", f"{HOST}:{self.port}", "--root-certificates", self._keys / "ca.crt"]
        own = ["--host", HOST, "--port", _free_port(), "--auth-supernode-private-key", self._keys / f"node-{place}"]
        self.nodes[owner] = self._process(f"node-{owner}", ["flower-supernode", *link, *own, "--node-config", told])
        return self.nodes[owner]

    def _process(self, name: str, command: Sequence[object]) -> "subprocess.Popen[bytes]":
        return self._stack.enter_context(_running(list(map(str, command)), self.out / f"{name}.log", self.environment(name)))

    def environment(self, name: str) -> Mapping[str, str]:
        """A home for each process; nothing is reported to anybody, and nothing installed."""
        settings = {
            "FLWR_HOME": str(self.out / "home" / name),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "OMP_NUM_THREADS": "1",
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",  # Flower finds its own programs by name
        }
        return {**os.environ, **settings}

    def _healthy(self) -> bool:
        try:
            context = ssl.create_default_context(cafile=str(self._keys / "ca.crt"))
            with urllib.request.urlopen(f"https://{HOST}:{self.port}/health", timeout=2, context=context) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def _online(self) -> list[dict[str, Any]]:
        return [node for node in self.flwr("supernode", "list", "deploy")["nodes"] if node["status"] == "online"]

    def flwr(self, *arguments: str) -> dict[str, Any]:
        """What a command of Flower's answers. It exits with 0 even where it fails."""
        command = ["flwr", *arguments, "--format", "json"]
        done = subprocess.run(command, capture_output=True, text=True, env=self.environment("operator"), stdin=subprocess.DEVNULL)
        try:
            answer: dict[str, Any] = json.loads(done.stdout)
        except ValueError:
            raise FederationError(f"{' '.join(command)}: {done.stdout}{done.stderr}") from None
        if not answer.get("success"):
            raise FederationError(f"{' '.join(command)}: {answer}")
        return answer

    def submit(self, method: str, out: Path, app: Path = HERE / "app", **settings: object) -> str:
        """Starts a run, and returns its number."""
        told = {"config": str(HERE / "experiment.toml"), "method": method, "out": str(out), "nodes": len(self._owners), **settings}
        return self.launch(app, told)

    def launch(self, app: Path, settings: Mapping[str, object]) -> str:
        pairs = " ".join(f"{key}={json.dumps(value)}" for key, value in settings.items())
        return str(self.flwr("run", str(app), "deploy", "-c", pairs)["run-id"])

    def status(self, run: str) -> str:
        return str(self.flwr("list", "deploy", "--run-id", run)["runs"][0]["status"])

    def over(self, run: str) -> bool:
        return self.status(run).startswith("finished")

    def log(self, run: str) -> str:
        """What the ServerApp of a run has logged."""
        command = ["flwr", "log", run, "deploy", "--show"]
        done = subprocess.run(command, capture_output=True, text=True, env=self.environment("operator"), stdin=subprocess.DEVNULL)
        return done.stdout + done.stderr

    def finish(self, run: str, out: Path, patience: float) -> dict[str, Any]:
        """The result of a run. That Flower calls it completed is not enough: the result must be there."""
        until(lambda: (out / "result.json").exists() or self.over(run), f"run {run}", patience, pause=2.0)
        until(lambda: self.over(run), f"the end of run {run}")
        if self.status(run) != "finished:completed" or not (out / "result.json").exists():
            raise FederationError(f"run {run} ended as {self.status(run)}: {self.log(run)}")
        result: dict[str, Any] = json.loads((out / "result.json").read_text(encoding="utf-8"))
        return result


@contextmanager
def _running(command: list[str], log: Path, environment: Mapping[str, str]) -> Iterator["subprocess.Popen[bytes]"]:
    """A process with a group of its own, so that what it starts ends with it."""
    with log.open("ab") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, env=environment, start_new_session=True)
        try:
            yield process
        finally:
            for how in (signal.SIGTERM, signal.SIGKILL):
                try:
                    os.killpg(process.pid, how)
                    process.wait(timeout=10)
                except (ProcessLookupError, subprocess.TimeoutExpired):
                    continue


def until(ready: Callable[[], bool], what: str, seconds: float = READY, pause: float = 0.5) -> None:
    end = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > end:
            raise FederationError(f"waited {seconds:g} seconds for {what}")
        time.sleep(pause)


def _free_port() -> int:
    with socket.socket() as found:
        found.bind((HOST, 0))
        port: int = found.getsockname()[1]
        return port


def write_images(folder: Path, owners: Sequence[str] = OWNERS) -> None:
    """A folder domain/class/image for each owner, from the emoji of the package; the held-out domain's are those of its test part."""
    dataset = emoji.load()
    for owner in owners:
        part = TEST if owner == OWNERS[-1] else TRAIN
        of_owner = (dataset.domains == dataset.domain_names.index(owner)) & (dataset.split == part)
        for name in CLASSES:
            rows = (of_owner & (dataset.labels == dataset.class_names.index(name))).nonzero().flatten()[:EACH]
            target = folder / owner / owner / name
            target.mkdir(parents=True, exist_ok=True)
            for row in rows.tolist():
                Image.fromarray(dataset.inputs[row].permute(1, 2, 0).numpy()).save(target / f"{row}.png")


def unwind_on_termination() -> None:
    """A process that is terminated would otherwise leave those that it has started."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/federation"))
    parser.add_argument("--method", action="append", help="by default fedavg and fedomg")
    parser.add_argument("--set", default="", help="more keys of the experiment: data.clients_per_domain=40 makes many clients of an owner")
    parser.add_argument("--workers", type=int, default=1, help="processes that share the work of a node's clients")
    parser.add_argument("--patience", type=float, default=900.0, help="the most seconds for a run")
    asked = parser.parse_args()
    unwind_on_termination()
    out = asked.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        federation = Federation(out, stack, settings=f"workers={asked.workers}")
        federation.start()
        print(f"SuperLink on {HOST}:{federation.port}, {len(federation.nodes)} SuperNodes; logs in {out}")
        for method in asked.method or ["fedavg", "fedomg"]:
            folder = out / method
            result = federation.finish(federation.submit(method, folder, set=asked.set, deadline=asked.patience), folder, asked.patience)
            answered = result["final"].get("target")
            print(
                f"{method:8}",
                "" if answered is None else f"{answered:6.1%} on the held-out style,",
                f"{result['seconds']:.0f} s",
                flush=True,
            )


if __name__ == "__main__":
    main()
