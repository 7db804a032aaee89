# SPDX-License-Identifier: Apache-2.0
"""slimpack as a Conan 2 package, from the tree that this recipe lies in: conan create packaging/conan

Consumers find it by slimpack's own CMake package, as after `cmake --install`. Headers of slimpack/io/ and
slimpack/cost/fit.hpp need nlohmann/json and Eigen: with `dependencies=conan` they come from a remote, with
`system` from the machine.
"""
import os
import re

from conan import ConanFile
from conan.tools.build import check_min_cppstd
from conan.tools.cmake import CMake, CMakeToolchain, cmake_layout
from conan.tools.files import copy, load


class Slimpack(ConanFile):
    name = "slimpack"
    license = "Apache-2.0"
    description = "Plans for training on documents of very different lengths"
    topics = "training", "scheduling", "pipeline-parallelism", "header-only"
    package_type = "static-library"
    settings = "os", "arch", "compiler", "build_type"
    options = {"dependencies": ["conan", "system"]}
    default_options = {"dependencies": "conan"}

    @property
    def _tree(self):
        return os.path.join(self.recipe_folder, "..", "..")

    def set_version(self):
        lines = load(self, os.path.join(self._tree, "include", "slimpack", "core", "version.hpp"))
        self.version = ".".join(re.findall(r"#define SLIMPACK_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", lines))

    def export_sources(self):
        for pattern in ("CMakeLists.txt", "LICENSE", "cmake/*", "include/*", "runtime/*", "report/*", "compiled/*",
                        "backends/cpu/*"):
            copy(self, pattern, src=self._tree, dst=self.export_sources_folder)

    def requirements(self):
        if self.options.dependencies == "conan":
            self.requires("nlohmann_json/3.11.3", transitive_headers=True)
            self.requires("eigen/3.4.0", transitive_headers=True)

    def validate(self):
        check_min_cppstd(self, 20)

    def layout(self):
        cmake_layout(self)

    def generate(self):
        toolchain = CMakeToolchain(self)
        for part in ("TESTS", "BENCH", "EXAMPLES", "APPS"):
            toolchain.cache_variables[f"SLIMPACK_BUILD_{part}"] = False
        toolchain.generate()

    def build(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.build()

    def package(self):
        CMake(self).install()

    def package_info(self):
        self.cpp_info.set_property("cmake_find_mode", "none")
        self.cpp_info.builddirs = [os.path.join("share", "cmake", "slimpack")]
