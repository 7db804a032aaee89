#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""scripts/deps.sh is silent where all is there, and names what is missing where it cannot install."""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

DEPS = str(pathlib.Path(__file__).resolve().parents[2] / "scripts" / "deps.sh")


def run(path, *arguments):
    environment = {**os.environ, "PATH": path}
    environment.pop("CXX", None)
    return subprocess.run([shutil.which("bash"), DEPS, *arguments], env=environment, capture_output=True, text=True,
                          stdin=subprocess.DEVNULL, check=False)


def main():
    failures = []

    def expect(condition, what):
        if not condition:
            failures.append(what)

    complete = run(os.environ["PATH"])
    expect(complete.returncode == 0 and complete.stdout == "" and complete.stderr == "",
           f"with everything there it should be silent: {complete}")
    with tempfile.TemporaryDirectory() as folder:
        for name in ("python3", "cmake", "sed", "sort", "head", "cat"):
            os.symlink(shutil.which(name), os.path.join(folder, name))
        bare = run(folder)
        expect(bare.returncode == 1, f"without compiler and apt-get the status should be 1: {bare}")
        command = bare.stderr.splitlines()[-1].split() if bare.stderr else []
        expect(command[:3] == ["sudo", "apt-get", "install"], f"the command to run should come last: {bare.stderr}")
        for package in ("g++", "ninja-build", "nlohmann-json3-dev", "libeigen3-dev"):
            expect(command.count(package) == 1, f"{package} should be named once: {bare.stderr}")
        expect("cmake" not in command, f"what is there should not be named: {bare.stderr}")
        expect("clang-14" not in command, f"clang is for --ci only: {bare.stderr}")
        release = pathlib.Path("/etc/os-release")
        debian = release.is_file() and "ID=debian" in release.read_text(encoding="utf-8").splitlines()
        asked = run(folder, "--ci").stderr.split()
        for package in ("clang-14", "glpk-utils", *(["chromium"] if debian else [])):
            expect(package in asked, f"--ci should ask for {package}")
        wrong = run(folder, "--pyhton")
        expect(wrong.returncode == 2 and "takes --ci, --python or nothing, got --pyhton" in wrong.stderr,
               f"an option that does not exist should be refused: {wrong}")
        asked = run(folder, "--python").stderr.split()
        for package in ("g++", "nlohmann-json3-dev", "libeigen3-dev", "libfmt-dev", "libcli11-dev"):
            expect(package in asked, f"--python should ask for {package}")
        for package in ("ninja-build", "doctest-dev", "libopenmpi-dev"):
            expect(package not in asked, f"pip needs no {package}")
        os.remove(os.path.join(folder, "cmake"))
        old = os.path.join(folder, "cmake")
        pathlib.Path(old).write_text("#!/bin/sh\necho cmake version 3.18.4\n", encoding="utf-8")
        os.chmod(old, 0o755)
        outdated = run(folder + os.pathsep + os.environ["PATH"])
        expect(outdated.returncode == 1 and "needs CMake 3.24 or newer, found 3.18.4" in outdated.stderr,
               f"an old CMake should be refused by its version: {outdated}")
    for failure in failures:
        print(failure)
    print(f"{len(failures)} failed" if failures else "all passed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
