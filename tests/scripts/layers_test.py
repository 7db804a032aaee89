#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""scripts/check_layers.py finds each breach it knows, and none in a good tree."""
import pathlib
import sys
import tempfile

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "scripts"))
import check_layers  # noqa: E402

HEAD = "// SPDX-License-Identifier: Apache-2.0\n// A header.\n#pragma once\n"
GOOD = {
    "include/slimpack/core/units.hpp": HEAD + "#include <cstdint>\n",
    "include/slimpack/plan/plan.hpp": HEAD + '#include "slimpack/core/units.hpp"\n',
    "include/slimpack/cost/fit.hpp": HEAD + "#include <Eigen/Core>\n",
    "include/slimpack/io/plan.hpp": HEAD + '#include <nlohmann/json.hpp>\n#include "slimpack/plan/plan.hpp"\n',
    "include/slimpack/sim/run.hpp": HEAD + '#include "slimpack/plan/plan.hpp"\n',
    "include/slimpack/slimpack.hpp": HEAD + '#include "slimpack/core/units.hpp"\n'
                                            '#include "slimpack/plan/plan.hpp"\n#include "slimpack/sim/run.hpp"\n',
    "backends/cpu/include/slimpack_cpu/model.hpp": HEAD + '#include "slimpack/plan/plan.hpp"\n',
    "scripts/run.sh": "#!/usr/bin/env bash\n# SPDX-License-Identifier: Apache-2.0\n",
}
CASES = [  # file, its text (None: absent), what the breach must say
    ("include/slimpack/core/units.hpp", HEAD + '#include "slimpack/plan/plan.hpp"\n', "layer 0 must not include layer 1"),
    ("include/slimpack/exec/run.hpp", HEAD + '#include "slimpack/sim/run.hpp"\n', "exec/ sees only core, plan"),
    ("include/slimpack/validate/rules.hpp", HEAD + '#include "slimpack/cost/fit.hpp"\n', "validate/ sees only core, plan"),
    ("include/slimpack/sim/run.hpp", HEAD + '#include "slimpack/io/plan.hpp"\n', "io/ stands beside the layers"),
    ("include/slimpack/sim/run.hpp", HEAD + "#include <nlohmann/json.hpp>\n", "may be included only in io/"),
    ("include/slimpack/sim/run.hpp", HEAD + "#include <Eigen/Core>\n", "may be included only in cost/fit"),
    ("include/slimpack/sim/run.hpp", HEAD + "#include <fmt/core.h>\n", "<fmt/core.h> is not of the C++ standard library"),
    ("include/slimpack/sim/run.hpp", HEAD + '#include "slimpack/slimpack.hpp"\n', "is the umbrella"),
    ("include/slimpack/sim/run.hpp", HEAD + '#include "run.hpp"\n', "is not written from slimpack/ on"),
    ("include/slimpack/sim/run.hpp", HEAD + '#include "slimpack/sim/none.hpp"\n', "does not exist"),
    ("include/slimpack/sim/run.hpp", HEAD + "inline int f() { return slimpack_cpu::rows(); }\n", "names a backend"),
    ("include/slimpack/sim/run.hpp", HEAD + "\n" * 500, "503 lines, at most 500"),
    ("include/slimpack/sim/run.hpp", "// SPDX-License-Identifier: Apache-2.0\n#pragma once\n", "second line is not a comment"),
    ("include/slimpack/sim/run.hpp", "// SPDX-License-Identifier: Apache-2.0\n// A header.\n", "#pragma once is not"),
    ("include/slimpack/odd/run.hpp", HEAD, "folder odd/ has no layer"),
    ("include/slimpack/sim/other.hpp", HEAD, 'lacks #include "slimpack/sim/other.hpp"'),
    ("include/slimpack/slimpack.hpp", GOOD["include/slimpack/slimpack.hpp"] + '#include "slimpack/io/plan.hpp"\n',
     'must not have #include "slimpack/io/plan.hpp"'),
    ("include/slimpack/slimpack.hpp", None, "slimpack.hpp:1: is missing"),
    ("backends/cpu/include/slimpack_cpu/model.hpp", HEAD + '#include "slimpack/sim/run.hpp"\n', "a backend sees only"),
    ("apps/main.cpp", "int main() {}\n", "apps/main.cpp:1: does not begin with SPDX"),
    ("scripts/run.sh", "#!/usr/bin/env bash\necho\n", "scripts/run.sh:1: does not begin with SPDX"),
]


def breaches(files):
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for name, text in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text, encoding="utf-8")
        return check_layers.check(root)


def main():
    failures = []
    clean = breaches(GOOD)
    if clean:
        failures.append(f"a good tree has breaches: {clean}")
    for name, text, expected in CASES:
        files = {**GOOD, name: text} if text is not None else {k: v for k, v in GOOD.items() if k != name}
        found = breaches(files)
        if not any(expected in line for line in found):
            failures.append(f"{name}: expected '{expected}', found {found}")
    for failure in failures:
        print(failure)
    print(f"{1 + len(CASES) - len(failures)} passed, {len(failures)} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
