# SPDX-License-Identifier: Apache-2.0
"""Small runs of the mini-trainer, a model of four layers on a text of its own: what its tests and
bench/trainer.py do with them, killing them among it."""
import json
import os
import pathlib
import random
import signal
import subprocess
import time

MODEL = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 257, "hidden_size": 32,
         "intermediate_size": 48, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
         "head_dim": 8, "hidden_act": "silu", "max_position_embeddings": 2048, "rms_norm_eps": 1e-5,
         "rope_theta": 10000.0, "tie_word_embeddings": False, "attention_bias": False, "mlp_bias": False}
# The smallest shape that the CUDA backend takes, in few tokens: emulated devices are slow.
CUDA_MODEL = dict(MODEL, hidden_size=64, intermediate_size=96, head_dim=16)
ENVIRONMENT = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
                   OMPI_MCA_rmaps_base_oversubscribe="1")
# Open MPI keeps memory to its end, which sanitizers would call leaks.
RANKS = dict(ENVIRONMENT, ASAN_OPTIONS="detect_leaks=0")
TIMEOUT = 120


def step_of(line):
    """The step that a printed line is of, else None."""
    return int(line.split()[1]) if line.startswith("step ") else None


class SmallRuns:
    """Runs in the folder `root`; `ranks` is 0 for threads, else the number of processes."""

    def __init__(self, root, trainer, mpirun="", model=None, batch_tokens=1024, context=512):
        self.root, self.trainer, self.mpirun = pathlib.Path(root), trainer, mpirun
        (self.root / "config.json").write_text(json.dumps(model or MODEL))
        words = "pack slice rank stage token batch plan step wait send".split()
        draw = random.Random(1)
        text = self.root / "text"
        text.mkdir()
        for number in range(40):
            count = draw.choice([5, 20, 60, 200])
            (text / f"{number:02}.txt").write_text(" ".join(draw.choice(words) for _ in range(count)))
        self.base = ["--model", str(self.root / "config.json"), "--data", str(text)]
        self.sizes = ["--batch-tokens", str(batch_tokens), "--context", str(context)]

    def path(self, name):
        return str(self.root / name)

    def command(self, *options, ranks=0):
        command = [self.trainer, *self.base, *self.sizes, *options]
        if ranks:
            command = [self.mpirun, "--bind-to", "none", "-n", str(ranks), *command, "--transport", "mpi"]
        return command

    def start(self, *options, ranks=0):
        return subprocess.Popen(self.command(*options, ranks=ranks), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                text=True, env=RANKS if ranks else ENVIRONMENT)

    def weights(self, folder):
        return pathlib.Path(self.path(folder), "model.safetensors").read_bytes()

    def files(self, folder):
        """All that a run has saved."""
        return {path.name: path.read_bytes() for path in pathlib.Path(self.path(folder)).iterdir()}

    def losses(self, folder):
        """Loss and norm of every step that the log of `folder` has, a step that ran twice twice."""
        lines = [json.loads(line) for line in pathlib.Path(self.path(folder + ".jsonl")).read_text().splitlines()]
        return sorted((line["step"], line["loss"], line["gradient_norm"]) for line in lines if "step" in line)

    def same(self, folder, whole):
        """What differs between a run and one that was never stopped: [] where every byte is equal.

        A kill between a save's last two renames may leave the moments of the save before, which nothing reads."""
        found = self.files(folder)
        different = [name for name, data in sorted(self.files(whole).items()) if found.get(name) != data]
        if sorted(set(self.losses(folder))) != self.losses(whole):
            different.append("losses")
        return different

    def saving(self, folder, steps, options):
        return ["--steps", str(steps), *options, "--save", self.path(folder), "--save-every", "1", "--log",
                self.path(folder + ".jsonl")]

    def whole(self, folder, steps, *options, ranks=0):
        """A run that nothing stops. Gives the seconds to its first step's end, and those of each later one."""
        began = time.monotonic()
        ends = []
        run = self.start(*self.saving(folder, steps, options), ranks=ranks)
        for line in run.stdout:
            if step_of(line) is not None:
                ends.append(time.monotonic() - began)
        self.expect_end(run)
        return ends[0], (ends[-1] - ends[0]) / max(1, len(ends) - 1)

    def killed(self, draw, folder, steps, pace, kills, *options, ranks=0):
        """Trains to the end through `kills` kill -9 at moments that `draw` draws, in the pace that `whole` gives.

        A kill comes after a drawn step and a drawn part of the next one, saving included, or of the start.
        Between processes it hits one rank, or all and mpirun at once. Gives the last step printed before each.
        """
        made = []
        while True:
            saved = pathlib.Path(self.path(folder), "model.safetensors").exists()
            resume = ["--resume", self.path(folder)] if saved else []
            run = self.start(*self.saving(folder, steps, options), *resume, ranks=ranks)
            if len(made) == kills:
                self.expect_end(run)
                return made
            last = min(made[-1], steps - 1) if saved and made else 0
            after = draw.randrange(last, steps)
            part = draw.random()
            victim = draw.randrange(ranks + 1) if ranks else 0
            if after > last:
                for line in run.stdout:
                    last = step_of(line) or last
                    if last >= after:
                        break
                time.sleep(part * pace[1])
            else:
                time.sleep(part * pace[0])
            self.kill(run, victim, ranks)
            rest = self.output_of_killed(run, ranks)
            if run.returncode == 0:  # it was faster
                return made
            made.append(max([last] + [step_of(line) or 0 for line in rest.splitlines()]))

    def kill(self, run, victim, ranks):
        """Rank `victim`; all ranks and mpirun where there is no such rank, or not yet."""
        if ranks == 0:
            run.kill()
            return
        run.send_signal(signal.SIGSTOP)  # starts no rank while its ranks are looked for
        found = self.ranks_of(run)
        everyone = victim == ranks or len(found) < ranks
        for number, pid in enumerate(found):
            if everyone or number == victim:
                os.kill(pid, signal.SIGKILL)
        run.send_signal(signal.SIGKILL if everyone else signal.SIGCONT)

    @staticmethod
    def ranks_of(run):
        """The processes that an mpirun has started and that live, by rank."""
        found = subprocess.run(["ps", "-o", "pid=,stat=", "--ppid", str(run.pid)], capture_output=True, text=True)
        words = [line.split() for line in found.stdout.splitlines()]
        return sorted(int(pid) for pid, state in words if not state.startswith("Z"))

    def output_of_killed(self, run, ranks):
        """Open MPI 4.1's mpirun may wait for ever for a lock of its own after a rank was killed (in
        PMIx_server_finalize), when all ranks have long ended: it is then killed too."""
        ends = time.monotonic() + TIMEOUT
        while True:
            try:
                return run.communicate(timeout=10)[0]
            except subprocess.TimeoutExpired:
                if ranks and not self.ranks_of(run):
                    run.kill()
                elif time.monotonic() > ends:
                    raise

    @staticmethod
    def expect_end(run):
        output, errors = run.communicate(timeout=TIMEOUT)
        if run.returncode != 0:
            raise RuntimeError(f"the mini-trainer ended with status {run.returncode}: {output}{errors}")
