#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""scripts/check_layers.py finds each violation it knows, and none in a good tree."""
import pathlib
import sys
import tempfile

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "scripts"))
import check_layers  # noqa: E402

HEAD = "// SPDX-License-Identifier: Apache-2.0\n// A header.\n#pragma once\n"
PLAN, SIM, REPORT = "include/slimpack", "slimpack/sim/run.hpp", "report/include/slimpack/report"
GOOD = {
    f"{PLAN}/core/units.hpp": HEAD + "#include <cstdint>\n",
    f"{PLAN}/core/parallel_for.hpp": HEAD + "#include <thread>\n",
    f"{PLAN}/plan/plan.hpp": HEAD + '#include "slimpack/core/units.hpp"\n',
    f"{PLAN}/plan/detail/tables.hpp": HEAD + '#include "slimpack/plan/plan.hpp"\n',
    f"{PLAN}/cost/fit.hpp": HEAD + "#include <Eigen/Core>\n",
    f"{PLAN}/io/plan.hpp": HEAD + '#include <nlohmann/json.hpp>\n#include "slimpack/plan/plan.hpp"\n',
    f"{PLAN}/sim/run.hpp": HEAD + '#include "slimpack/plan/plan.hpp"\n#include "slimpack/sim/detail/queue.hpp"\n',
    f"{PLAN}/sim/detail/queue.hpp": HEAD,
    f"{PLAN}/planners/planner.hpp": HEAD + f'#include "{SIM}"\n',
    f"{PLAN}/planners/slimpack/slimpack.hpp": HEAD + '#include "slimpack/planners/planner.hpp"\n',
    f"{PLAN}/planners/published/bfd.hpp": HEAD + '#include "slimpack/planners/planner.hpp"\n',
    f"{PLAN}/planners/registry.hpp": HEAD + '#include "slimpack/planners/published/bfd.hpp"\n',
    f"{PLAN}/slimpack.hpp": HEAD + '#include "slimpack/core/parallel_for.hpp"\n'
                            f'#include "slimpack/plan/plan.hpp"\n#include "{SIM}"\n',
    "runtime/include/slimpack/runtime/run.hpp": HEAD + '#include <mutex>\n#include "slimpack/io/plan.hpp"\n',
    f"{REPORT}/page.hpp": HEAD + f'#include "{SIM}"\n',
    "backends/cpu/include/slimpack_cpu/model.hpp": HEAD + '#include "slimpack/runtime/run.hpp"\n',
    "scripts/run.sh": "#!/usr/bin/env bash\n# SPDX-License-Identifier: Apache-2.0\n",
}


def sim(text):
    """A case where sim/run.hpp holds that text."""
    return f"{PLAN}/sim/run.hpp", HEAD + text


CASES = [  # file, its text (None: absent), what the violation must say
    # Which unit sees which.
    (f"{PLAN}/core/units.hpp", HEAD + '#include "slimpack/plan/plan.hpp"\n', "core/ sees only"),
    (f"{PLAN}/validate/rules.hpp", HEAD + '#include "slimpack/cost/fit.hpp"\n', "validate/ sees only core, plan"),
    (*sim('#include "slimpack/io/plan.hpp"\n'), "sim/ sees only core, cost, data, plan, schedule"),
    (*sim('#include "slimpack/planners/planner.hpp"\n'), "sim/ sees only core, cost, data, plan, schedule"),
    (f"{PLAN}/planners/planner.hpp", HEAD + '#include "slimpack/report/page.hpp"\n', "planners/ sees only"),
    (f"{PLAN}/planners/planner.hpp", HEAD + '#include "slimpack/planners/slimpack/slimpack.hpp"\n', "planners/ sees only"),
    (f"{PLAN}/planners/slimpack/slimpack.hpp", HEAD + '#include "slimpack/planners/published/bfd.hpp"\n',
     "planners/slimpack/ sees only"),
    (f"{PLAN}/planners/published/bfd.hpp", HEAD + '#include "slimpack/planners/slimpack/slimpack.hpp"\n',
     "planners/published/ sees only"),
    (f"{REPORT}/page.hpp", HEAD + '#include "slimpack/runtime/run.hpp"\n', "report/ sees only"),
    ("runtime/include/slimpack/runtime/run.hpp", HEAD + f'#include "{SIM}"\n', "runtime/ sees only core, data, io, plan"),
    ("backends/cpu/include/slimpack_cpu/model.hpp", HEAD + f'#include "{SIM}"\n', "a backend sees only"),
    (f"{PLAN}/odd/run.hpp", HEAD, "folder odd/ has no place in the graph of folders"),
    # Details of other units.
    (*sim('#include "slimpack/plan/detail/tables.hpp"\n'), '"slimpack/plan/detail/tables.hpp" is a detail of plan/'),
    ("backends/cpu/include/slimpack_cpu/model.hpp", HEAD + '#include "slimpack/plan/detail/tables.hpp"\n',
     "is a detail of plan/"),
    # What lies outside, and threads.
    (*sim("#include <nlohmann/json.hpp>\n"), "may be included only in (io|runtime)/"),
    (*sim("#include <Eigen/Core>\n"), "may be included only in cost/fit"),
    (*sim("#include <sys/mman.h>\n"), "may be included only in (io/file_bytes|"),
    (*sim("#include <fmt/core.h>\n"), "<fmt/core.h> is not of the C++ standard library"),
    (*sim("#include <thread>\n"), "<thread> belongs into core/parallel_for.hpp alone"),
    (*sim("#include <condition_variable>\n"), "<condition_variable> belongs into core/parallel_for.hpp alone"),
    # The umbrella.
    (f"{PLAN}/slimpack.hpp", GOOD[f"{PLAN}/slimpack.hpp"] + '#include "slimpack/io/plan.hpp"\n',
     '"slimpack/io/plan.hpp": the umbrella leaves it'),
    (f"{PLAN}/slimpack.hpp", GOOD[f"{PLAN}/slimpack.hpp"] + '#include "slimpack/planners/registry.hpp"\n',
     '"slimpack/planners/registry.hpp": the umbrella leaves it'),
    (f"{PLAN}/slimpack.hpp", GOOD[f"{PLAN}/slimpack.hpp"] + '#include "slimpack/sim/detail/queue.hpp"\n',
     '"slimpack/sim/detail/queue.hpp": the umbrella leaves it'),
    (f"{PLAN}/slimpack.hpp", GOOD[f"{PLAN}/slimpack.hpp"] + '#include "slimpack/cost/fit.hpp"\n',
     "cost/fit.hpp:4: <Eigen/Core> is reached from slimpack.hpp"),
    (f"{PLAN}/slimpack.hpp", None, "slimpack.hpp:1: is missing"),
    (*sim('#include "slimpack/slimpack.hpp"\n'), "is the umbrella"),
    # How a header is written.
    (*sim('#include "run.hpp"\n'), "is not written from slimpack/ on"),
    (*sim('#include "slimpack/sim/none.hpp"\n'), "does not exist"),
    (*sim("inline int f() { return slimpack_cpu::rows(); }\n"), "names a backend"),
    (*sim("\n" * 500), "503 lines, at most 500"),
    (f"{PLAN}/sim/run.hpp", "// SPDX-License-Identifier: Apache-2.0\n#pragma once\n", "second line is not a comment"),
    (f"{PLAN}/sim/run.hpp", "// SPDX-License-Identifier: Apache-2.0\n// A header.\n", "#pragma once is not"),
    ("apps/main.cpp", "int main() {}\n", "apps/main.cpp:1: does not begin with SPDX"),
    ("scripts/run.sh", "#!/usr/bin/env bash\necho\n", "scripts/run.sh:1: does not begin with SPDX"),
    ("scripts/plan.sh", GOOD["scripts/run.sh"], "scripts/plan.sh:1: begins with #! and must be executable"),
]


def violations(files):
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for name, text in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text, encoding="utf-8")
            if name == "scripts/run.sh":
                (root / name).chmod(0o755)
        return check_layers.check(root)


def main():
    failures = []
    clean = violations(GOOD)
    if clean:
        failures.append(f"a good tree has violations: {clean}")
    for name, text, expected in CASES:
        files = {**GOOD, name: text} if text is not None else {k: v for k, v in GOOD.items() if k != name}
        found = violations(files)
        if not any(expected in line for line in found):
            failures.append(f"{name}: expected '{expected}', found {found}")
    sees, check_layers.SEES = check_layers.SEES, {"core": {"plan"}, "plan": {"core"}}
    if list(check_layers.check_acyclic()) != ["the graph of folders has a cycle: core -> plan -> core"]:
        failures.append("a cycle of folders is not found")
    check_layers.SEES = sees
    for failure in failures:
        print(failure)
    print(f"{2 + len(CASES) - len(failures)} passed, {len(failures)} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
