#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""scripts/public_names.py finds each kind of public name, and nothing else."""
import pathlib
import sys
import tempfile

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "scripts"))
import public_names  # noqa: E402

HEADER = r'''
// namespace slimpack { class InAComment {}; }
#include <vector>
#define SLIMPACK_MACRO(x) \
  struct x {}
namespace other { class Foreign {}; }
namespace slimpack::sim {
class Declared;
enum class Kind : std::uint8_t { first, second = 4, third };
inline constexpr std::int64_t kMost = std::int64_t{1} << 40U, kText = "class Quoted {};";
template <class Model = Plain>
concept Good = requires(const Model& model) {
  { model.cost() } -> std::same_as<int>;
} && true;
template <Good Model>
  requires std::same_as<Model, int> && (sizeof(Model) > 1)
class [[nodiscard]] Table : public Base<Model> {
 public:
  int member() const { return 1'000; }
};
struct Pair {
  int first = 0;
  friend bool operator==(const Pair&, const Pair&) = default;
};
[[nodiscard]] inline Pair operator+(const Pair& a, const Pair& b) { return a; }
template <Good Model>
[[nodiscard]] SLIMPACK_PLANNERS_API std::vector<Pair> made_of(const Model& model, int count = 3) noexcept;
using Pairs = std::vector<Pair>;
inline int Table<int>::hidden() { return 0; }
namespace detail { struct Hidden {}; }
template <>
inline constexpr std::array<int, 2> kPair{1, 2};
}  // namespace slimpack::sim
'''
EXPECTED = [("class", "Pair"), ("class", "Table"), ("alias", "Pairs"), ("concept", "Good"), ("constant", "kMost"),
            ("constant", "kPair"), ("enum", "Kind"), ("function", "made_of"), ("value", "Kind::first"),
            ("value", "Kind::second"), ("value", "Kind::third")]


def main():
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for name in ("include/slimpack/sim/all.hpp", "include/slimpack/sim/detail/all.hpp"):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(HEADER, encoding="utf-8")
        found = public_names.public_names(root)
    expected = public_names.HEAD + "".join(
        sorted(f"slimpack::sim::{name}  {kind}  slimpack/sim/all.hpp\n" for kind, name in EXPECTED))
    if found != expected:
        print(f"found:\n{found}\nexpected:\n{expected}")
        return 1
    print(f"{len(EXPECTED)} passed, 0 failed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
