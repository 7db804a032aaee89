# SPDX-License-Identifier: Apache-2.0
"""The same step with the gradients of weights apart."""


def with_weights(plan):
    """Changes a plan, as plan.json has it: every B leaves the gradients of weights to one W a group and chunk, in
    front of R."""
    plan["version"] = 2
    whole = {}
    for pack in plan["micropacks"]:
        if pack["pass"] == "backward":
            pack["weights"] = "apart"
            whole.setdefault(pack["group"], set()).update(slice_[0] for slice_ in pack["slices"])
    packs = {}
    for group, samples in sorted(whole.items()):
        packs[group] = len(plan["micropacks"])
        plan["micropacks"].append({"id": packs[group], "pass": "weight", "group": group, "slices":
                                   [[sample, 0, plan["samples"][sample]] for sample in sorted(samples)]})
    for device in plan["schedule"]:
        order = []
        for unit in device["order"]:
            if unit[0] == "R":
                order += [["W", pack, unit[1]] for group, pack in packs.items()
                          if device["dp"] in plan["groups"][group]]
            order.append(unit)
        device["order"] = order
    return plan
