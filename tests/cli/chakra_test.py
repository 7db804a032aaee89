#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Reads Chakra traces with the protobuf package and holds them to laws: chakra_test.py PROGRAM PLANS

PROGRAM is slimpack, PLANS writes random plans with their traces (chakra_plans.cpp).

Knows the schema of MLCommons Chakra and plan.json, nothing of how traces are made. Ends with status 77 (skipped)
where the package `protobuf` is missing, here and in build/python, where scripts/python_packages.sh installs it."""
import collections
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

INSTALLED = pathlib.Path(__file__).resolve().parents[2] / "build" / "python" / "bin" / "python"
try:
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
except ImportError:
    if INSTALLED.exists() and pathlib.Path(sys.prefix) != INSTALLED.parents[1]:
        os.execv(INSTALLED, [str(INSTALLED), *sys.argv])
    print("skipped: the Python package protobuf is missing")
    sys.exit(77)

PROGRAM, PLANS = (os.path.abspath(path) for path in sys.argv[1:3])
LENGTHS = [700, 40, 1500, 90, 90, 300, 1, 2, 640, 1100, 13, 257, 512, 4000, 33, 2047]
TIED = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 4, "hidden_size": 64,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 96, "vocab_size": 300,
        "tie_word_embeddings": True, "hidden_act": "silu", "torch_dtype": "bfloat16", "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0, "max_position_embeddings": 8192}

COMPUTE, SEND, RECEIVE, COLLECTIVE = 4, 5, 6, 7  # NodeType
ALL_REDUCE, ALL_GATHER, ALL_TO_ALL, REDUCE_SCATTER = 0, 2, 6, 7  # CollectiveCommType


def schema():
    """The classes of the messages GlobalMetadata and Node of et_def.proto."""
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="et_def.proto", package="ChakraProtoMsg", syntax="proto3")

    def message(name, *fields, oneof=None):
        made = file.message_type.add(name=name)
        if oneof:
            made.oneof_decl.add(name=oneof)
        for name, number, kind, repeated in fields:
            made.field.add(name=name, number=number, type=kind if isinstance(kind, int) else field.TYPE_MESSAGE,
                           type_name=None if isinstance(kind, int) else ".ChakraProtoMsg." + kind,
                           label=field.LABEL_REPEATED if repeated else field.LABEL_OPTIONAL,
                           oneof_index=0 if oneof and name.endswith("_val") else None)

    message("AttributeProto", ("name", 1, field.TYPE_STRING, False), ("doc_string", 2, field.TYPE_STRING, False),
            ("double_val", 3, field.TYPE_DOUBLE, False), ("float_val", 5, field.TYPE_FLOAT, False),
            ("int32_val", 7, field.TYPE_INT32, False), ("int64_val", 9, field.TYPE_INT64, False),
            ("uint32_val", 11, field.TYPE_UINT32, False), ("uint64_val", 13, field.TYPE_UINT64, False),
            ("bool_val", 27, field.TYPE_BOOL, False), ("string_val", 29, field.TYPE_STRING, False), oneof="value")
    message("GlobalMetadata", ("version", 1, field.TYPE_STRING, False), ("attr", 2, "AttributeProto", True))
    message("Node", ("id", 1, field.TYPE_UINT64, False), ("name", 2, field.TYPE_STRING, False),
            ("type", 3, field.TYPE_INT32, False), ("ctrl_deps", 4, field.TYPE_UINT64, True),
            ("data_deps", 5, field.TYPE_UINT64, True), ("start_time_micros", 6, field.TYPE_UINT64, False),
            ("duration_micros", 7, field.TYPE_UINT64, False), ("attr", 10, "AttributeProto", True))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return [message_factory.GetMessageClass(pool.FindMessageTypeByName("ChakraProtoMsg." + name))
            for name in ("GlobalMetadata", "Node")]


METADATA, NODE = schema()
# The types of attributes that Chakra's own reader expects.
TYPES = {"is_cpu_op": "bool_val", "comm_type": "int64_val", "comm_size": "int64_val", "comm_src": "int32_val",
         "comm_dst": "int32_val", "comm_tag": "int32_val", "pg_name": "string_val"}


def messages(data):
    """The messages of a stream, each behind its length as a varint."""
    place = 0
    while place < len(data):
        length = shift = 0
        while True:
            byte = data[place]
            place += 1
            length |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
        yield data[place : place + length]
        place += length
    assert place == len(data), "the last message is cut"


def read_trace(path):
    """Metadata and nodes; a node's attributes become a dictionary `of`."""
    first, *rest = messages(path.read_bytes())
    metadata = METADATA.FromString(first)
    assert metadata.SerializeToString() == first, "metadata has what the schema has not"
    nodes = []
    for data in rest:
        node = NODE.FromString(data)
        unknown = NODE.FromString(data)
        unknown.DiscardUnknownFields()
        assert unknown == node and len(unknown.SerializeToString()) == len(node.SerializeToString())
        attributes = {}
        for attribute in node.attr:
            kind = attribute.WhichOneof("value")
            assert kind == TYPES.get(attribute.name, kind) and attribute.name not in attributes, attribute
            attributes[attribute.name] = getattr(attribute, kind)
        nodes.append((node, attributes))
    return metadata, nodes


class Chakra(unittest.TestCase):
    def setUp(self):
        self.both = 0  # units with rings and an exchange by heads
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        self.write_lengths(LENGTHS)
        (self.root / "tied.json").write_text(json.dumps(TIED), encoding="utf-8")

    def write_lengths(self, lengths):
        (self.root / "a.lengths").write_text("\n".join(map(str, lengths)) + "\n", encoding="utf-8")

    def run_program(self, *arguments, status=0):
        done = subprocess.run([PROGRAM, *arguments], cwd=self.root, text=True, capture_output=True)
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        return done.stdout if status == 0 else done.stderr

    def traces(self, *options, change=None):
        """Plans, simulates and reads: plan, simulation, groups, and nodes by device."""
        self.run_program("plan", "a.lengths", "--overlong", "split", "--granularity", "64", "--effort", "fast",
                         *options, "-o", "plan.json")
        plan = json.loads((self.root / "plan.json").read_text(encoding="utf-8"))
        if change:
            change(plan)
            (self.root / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
        shutil.rmtree(self.root / "traces", ignore_errors=True)
        simulation = json.loads(self.run_program("simulate", "plan.json", "--json", "--chakra", "traces"))
        return plan, simulation, *self.read_traces(plan, self.root / "traces")

    def read_traces(self, plan, folder):
        groups = json.loads((folder / "comm_groups.json").read_text(encoding="utf-8"))
        devices = {}
        for _, _, _, device in plan["placement"]:
            metadata, nodes = read_trace(folder / f"rank.{device}.et")
            self.assertEqual({one.name: one.string_val for one in metadata.attr}["made_by"], "slimpack")
            devices[device] = nodes
        self.assertEqual(len(list(folder.iterdir())), len(devices) + 1)
        return groups, devices

    def check(self, *options, change=None):
        plan, simulation, groups, devices = self.traces(*options, change=change)
        self.check_all(plan, simulation, groups, devices)
        return plan, devices

    def check_all(self, plan, simulation, groups, devices):
        self.check_nodes(devices)
        self.check_units(plan, simulation, devices)
        self.check_messages(devices)
        self.check_collectives(groups, devices)
        self.check_exchanges(plan, devices)
        self.check_traffic(simulation, groups, devices)
        self.check_times(simulation, groups, devices)

    def check_nodes(self, devices):
        for nodes in devices.values():
            for number, (node, of) in enumerate(nodes):
                self.assertEqual(node.id, number)
                self.assertTrue(node.name)
                self.assertIs(of["is_cpu_op"], False)
                self.assertFalse(node.ctrl_deps)
                # Dependencies lead backwards, so there is no cycle in a device.
                self.assertTrue(all(before < number for before in node.data_deps))
                self.assertEqual(list(node.data_deps), sorted(set(node.data_deps)))
                self.assertEqual(node.start_time_micros, of["start_nanos"] // 1000)
                end = (of["start_nanos"] + of["duration_nanos"]) // 1000
                self.assertEqual(node.duration_micros, end - node.start_time_micros)

    def check_units(self, plan, simulation, devices):
        """Each unit but R is there once, whole or in parts that follow each other, and their times are busy time."""
        placed = {(dp, pp, tp): device for dp, pp, tp, device in plan["placement"]}
        busy = {(one["dp"], one["pp"]): round(one["busy_s"] * 1e9) for one in simulation["devices"]}
        for schedule in plan["schedule"]:
            expected = []
            for kind, *numbers in schedule["order"]:
                if kind != "R":
                    name = {"O": "O", "H": "H {}"}.get(kind, kind + " {} chunk {}").format(*numbers)
                    expected.append(f"dp {schedule['dp']} pp {schedule['pp']} {name}")
            for tp in range(plan["parallel"]["tp"]):
                found, nanos = [], 0
                for node, of in devices[placed[schedule["dp"], schedule["pp"], tp]]:
                    if node.type != COMPUTE:
                        continue
                    nanos += of["duration_nanos"]
                    name, _, part = node.name.partition(", part ")
                    self.assertEqual(bool(part), of["parts"] > 1)
                    if of["part"] == 0:
                        found.append(name)
                        after = 0
                    self.assertEqual((found[-1], of["part"]), (name, after))
                    after += 1
                    if after == of["parts"]:
                        after = None
                    if of["part"] > 0:
                        self.assertEqual(list(node.data_deps), [before])
                    before = node.id
                self.assertEqual(found, expected)
                self.assertEqual(nanos, busy[schedule["dp"], schedule["pp"]])

    def check_messages(self, devices):
        """To each send one receive of the same size, source, destination and tag."""
        ends = {SEND: collections.Counter(), RECEIVE: collections.Counter()}
        for device, nodes in devices.items():
            for node, of in nodes:
                if node.type in ends:
                    self.assertEqual(device, of["comm_src" if node.type == SEND else "comm_dst"])
                    self.assertNotEqual(of["comm_src"], of["comm_dst"])
                    ends[node.type][of["comm_src"], of["comm_dst"], of["comm_tag"], of["comm_size"]] += 1
        self.assertEqual(ends[SEND], ends[RECEIVE])
        tags = collections.Counter(end[:3] for end in ends[SEND])
        self.assertTrue(all(count == 1 for count in tags.values()))

    def check_collectives(self, groups, devices):
        """All members of a group meet in the same order, with the same sizes and types."""
        called = collections.defaultdict(dict)
        for device, nodes in devices.items():
            for node, of in nodes:
                if node.type == COLLECTIVE:
                    self.assertIn(device, groups[of["pg_name"]])
                    called[of["pg_name"]].setdefault(device, []).append(
                        (of["comm_type"], of["comm_size"], of["purpose"], of["start_nanos"], of["duration_nanos"]))
        self.assertEqual(set(called), set(groups))
        self.assertNotIn("0", groups)  # which simulators take for all devices
        for group, calls in called.items():
            self.assertEqual(sorted(calls), sorted(groups[group]))
            self.assertEqual(len(set(map(tuple, calls.values()))), 1)

    def check_exchanges(self, plan, devices):
        """F and B whose ranks exchange have a node for their rings, and one for what they exchange by heads."""
        model, layers = plan["model"], {}
        for stage in plan["stages"]:
            layers[stage["pp"], stage["chunk"]] = stage["layers"][1] - stage["layers"][0]
        e, t = model["bytes_per_element"], max(model["bytes_per_element"], 4)
        q, k = model["heads"] * model["head_dim"], model["kv_heads"] * model["head_dim"]
        placed = {device: pp for _, pp, _, device in plan["placement"]}
        for device, nodes in devices.items():
            found = collections.defaultdict(list)
            for node, of in nodes:
                if of.get("purpose") == "exchange":
                    kind, pack, chunk = re.search(r"([FB]) (\d+) chunk (\d+)", node.name).groups()
                    found[kind, int(pack), int(chunk)].append((of["comm_type"], of["comm_size"]))
                elif node.type == COMPUTE and (unit := re.search(r"([FB]) (\d+) chunk (\d+)", node.name)):
                    found[unit[1], int(unit[2]), int(unit[3])]  # has none, so far
            for (kind, number, chunk), exchanges in found.items():
                pack = plan["micropacks"][number]
                ranks, modes = len(plan["groups"][pack["group"]]), pack.get("exchange", [])
                # A rank has a head of keys at least.
                keys = 2 * max(k, ranks * plan["parallel"]["tp"] * model["head_dim"]) * e
                forward = 2 * q * e + keys + model["heads"] * t
                backward = 2 * q * e + keys + 2 * model["heads"] * t  # and queries, or all of F's
                bytes_ = 0
                token = forward
                if kind == "B":
                    token = backward + (forward if pack.get("recompute") == "full" else q * e)
                for mode, (sample, begin, end) in zip(modes, pack["slices"]):
                    if mode == "heads" and plan["samples"][sample] > plan["memory"]["share_tokens"]:
                        bytes_ += (end - begin) * token
                rings = [ALL_GATHER] if set(modes) - {"heads"} else []
                self.assertEqual([one for one, _ in exchanges], rings + ([ALL_TO_ALL] if bytes_ else []))
                if bytes_:
                    parts = ranks * plan["parallel"]["tp"]
                    self.assertEqual(exchanges[-1][1] * parts, bytes_ * layers[placed[device], chunk])
                self.both += len(exchanges) == 2

    def check_traffic(self, simulation, groups, devices):
        """What devices send is what the report says, by purpose."""
        sent = collections.Counter()
        for nodes in devices.values():
            for node, of in nodes:
                if node.type == SEND:
                    sent["transfers"] += of["comm_size"]
                if node.type == COLLECTIVE and of["purpose"] != "barrier":
                    turns = {ALL_REDUCE: 2, ALL_GATHER: 1, ALL_TO_ALL: 1, REDUCE_SCATTER: 1}[of["comm_type"]]
                    members = len(groups[of["pg_name"]])
                    sent[of["purpose"]] += turns * (members - 1) * of["comm_size"] / members
        for purpose, bytes_ in simulation["communication"].items():
            self.assertAlmostEqual(sent.pop(purpose, 0), bytes_, delta=1e-9 * bytes_)
        self.assertFalse(sent)

    def check_times(self, simulation, groups, devices):
        """Executed with the times that it records, each node starts when the simulator says, and no later."""
        done = {device: {} for device in devices}
        ready = {}  # messages and collectives: when each member is there
        calls_so_far = collections.Counter()
        keys = {}
        for device, nodes in devices.items():
            for node, of in nodes:
                if node.type in (SEND, RECEIVE):
                    keys[device, node.id] = (of["comm_src"], of["comm_dst"], of["comm_tag"]), 2
                elif node.type == COLLECTIVE:
                    calls_so_far[device, of["pg_name"]] += 1
                    key = of["pg_name"], calls_so_far[device, of["pg_name"]]
                    keys[device, node.id] = key, len(groups[of["pg_name"]])
        waiting = {(device, node.id): set(node.data_deps) for device, nodes in devices.items() for node, _ in nodes}
        after = collections.defaultdict(list)
        for (device, number), deps in waiting.items():
            for one in deps:
                after[device, one].append(number)
        free = [key for key, deps in waiting.items() if not deps]

        def end(device, number, start):
            of = devices[device][number][1]
            self.assertEqual(start, of["start_nanos"], devices[device][number][0].name)
            done[device][number] = start + of["duration_nanos"]
            for next_ in after[device, number]:
                waiting[device, next_].discard(number)
                if not waiting[device, next_]:
                    free.append((device, next_))

        while free:
            device, number = free.pop()
            node = devices[device][number][0]
            start = max((done[device][one] for one in node.data_deps), default=0)
            if (device, number) not in keys:
                end(device, number, start)
                continue
            key, members = keys[device, number]
            ready.setdefault(key, []).append((device, number, start))
            if len(ready[key]) == members:
                begin = max(start for _, _, start in ready[key])
                for device, number, _ in ready[key]:
                    end(device, number, begin)
        for device, nodes in devices.items():
            self.assertEqual(len(done[device]), len(nodes), "nodes wait for each other")
        last = max(max(times.values()) for times in done.values())
        self.assertEqual(last, round(simulation["iteration_s"] * 1e9))

    def test_stages_ranks_and_a_sharded_head(self):
        plan, devices = self.check("--model", "tiny", "--dp", "2", "--pp", "2", "--chunks", "1", "--head", "shard")
        purposes = {of.get("purpose") for nodes in devices.values() for _, of in nodes}
        self.assertLessEqual({"barrier", "head", "reduction", "gathering"}, purposes)
        self.assertTrue(any(of.get("parts", 1) > 1 for nodes in devices.values() for _, of in nodes))

    def test_head_on_the_last_stage_and_replicated_optimizer(self):
        self.check("--model", "tiny", "--dp", "2", "--pp", "4", "--head", "last", "--optimizer", "replicated",
                   "--planner", "megatron")

    def test_context_parallel_groups(self):
        self.write_lengths([30000, *LENGTHS])
        for planner in ("megatron-cp", "slimpack"):
            _, devices = self.check("--model", "tiny", "--dp", "4", "--pp", "2", "--planner", planner)
            self.assertTrue(any(of.get("purpose") == "exchange" for nodes in devices.values() for _, of in nodes))

    def test_tensor_parallelism(self):
        for planner in ("slimpack", "megatron-interleaved"):
            _, devices = self.check("--model", "tiny", "--dp", "2", "--pp", "2", "--tp", "2", "--planner", planner)
            self.assertTrue(any(of.get("purpose") == "tensor_parallel" for nodes in devices.values() for _, of in nodes))

    def test_weights_apart(self):
        _, devices = self.check("--model", "tiny", "--dp", "2", "--pp", "3", "--weights", "apart")
        self.assertTrue(any(re.search(r"\bW \d", node.name) for nodes in devices.values() for node, _ in nodes))

    def test_shared_weights(self):
        self.write_lengths([30000, *LENGTHS])
        for tp in ("1", "2"):
            _, devices = self.check("--model", "tiny", "--dp", "4", "--tp", tp, "--weight-state", "sharded")
            for nodes in devices.values():
                names = [node.name for node, _ in nodes]
                self.assertTrue(any(re.match(r"weights of .* F \d", name) for name in names))
                self.assertTrue(any(re.match(r"gradients of .* B \d", name) for name in names))
                self.assertFalse(any(name.startswith("weights after") for name in names))

    def test_tied_table(self):
        for dp, head in ((1, "last"), (2, "last"), (2, "shard")):
            for chunks in ("1", "2"):
                _, devices = self.check("--model", "tied.json", "--dp", str(dp), "--pp", "2", "--head", head,
                                        "--chunks", chunks)
                self.assertTrue(any("tied table" in node.name for nodes in devices.values() for node, _ in nodes))

    def test_one_device_and_chunks_of_one_stage(self):
        _, devices = self.check("--model", "tiny")
        self.assertEqual({node.type for node, _ in devices[0]}, {COMPUTE})
        self.check("--model", "tiny", "--pp", "2", "--chunks", "2", "--planner", "megatron-interleaved")

    def test_ranks_are_numbers_of_devices(self):
        def reverse(plan):
            for place in plan["placement"]:
                place[3] = 7 - place[3]

        _, devices = self.check("--model", "tiny", "--dp", "2", "--pp", "2", change=reverse)
        self.assertEqual(sorted(devices), [4, 5, 6, 7])

    def test_every_planner_whose_steps_can_be_executed(self):
        """On 4 ranks of 2 stages, with a sample that several ranks may share."""
        self.write_lengths([20000, *LENGTHS])
        listed = json.loads(self.run_program("--list-planners", "--json"))["planners"]
        names = [one["name"] for one in listed]
        planned = 0
        for name in names:
            options = ["--model", "tiny", "--dp", "4", "--pp", "2", "--planner", name]
            done = subprocess.run([PROGRAM, "plan", "a.lengths", *options, "--effort", "fast", "-o", "try.json"],
                                  cwd=self.root, capture_output=True)
            if done.returncode == 0:
                with self.subTest(name):
                    self.check(*options)
                planned += 1
        self.assertGreater(planned, len(names) // 2)

    def test_random_plans(self):
        """Any order that is legal, groups of any ranks, tensor parallelism, ties, weights apart, pages of any size."""
        subprocess.run([PLANS, self.root / "random", "0", "60"], check=True)
        for folder in sorted((self.root / "random").iterdir()):
            with self.subTest(folder.name):
                plan, simulation = (json.loads((folder / name).read_text(encoding="utf-8"))
                                    for name in ("plan.json", "simulation.json"))
                self.check_all(plan, simulation, *self.read_traces(plan, folder / "traces"))
        self.assertGreater(self.both, 20)

    def test_same_bytes_again(self):
        self.traces("--model", "tiny", "--dp", "2", "--pp", "2")
        self.run_program("simulate", "plan.json", "--chakra", "again")
        for path in sorted((self.root / "traces").iterdir()):
            self.assertEqual(path.read_bytes(), (self.root / "again" / path.name).read_bytes())

    def test_folders_that_are_not_empty_are_refused(self):
        self.run_program("plan", "a.lengths", "--model", "tiny", "--context", "4096", "-o", "plan.json")
        (self.root / "full").mkdir()
        (self.root / "full" / "mine.txt").write_text("kept", encoding="utf-8")
        before = sorted(self.root.rglob("*"))
        for folder in ("full", "a.lengths"):
            sentence = self.run_program("simulate", "plan.json", "--chakra", folder, status=2)
            self.assertRegex(sentence, rf"--chakra: must be a new or an empty folder.*{folder}")
        self.run_program("simulate", "plan.json", "--chakra", "plan.json/new", status=2)
        self.assertEqual(sorted(self.root.rglob("*")), before)
        (self.root / "empty").mkdir()
        self.run_program("simulate", "plan.json", "--chakra", "empty/")
        self.assertTrue((self.root / "empty" / "rank.0.et").exists())


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
