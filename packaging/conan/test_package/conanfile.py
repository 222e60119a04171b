# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
import os

from conan import ConanFile
from conan.tools.build import can_run
from conan.tools.cmake import CMake, CMakeToolchain, cmake_layout


class BelayTest(ConanFile):
    settings = "os", "arch", "compiler", "build_type"
    generators = "CMakeDeps"

    def requirements(self):
        self.requires(self.tested_reference_str)

    def layout(self):
        cmake_layout(self)

    def generate(self):
        toolchain = CMakeToolchain(self)
        toolchain.cache_variables["with_mpi"] = self._with("mpi")
        toolchain.cache_variables["with_cuda"] = self._with("cuda") or self._with("nccl") or self._with("cudnn")
        toolchain.cache_variables["with_nccl"] = self._with("nccl")
        toolchain.cache_variables["with_cudnn"] = self._with("cudnn")
        toolchain.generate()

    def build(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.build()

    def test(self):
        if not can_run(self):
            return
        self.run(os.path.join(self.cpp.build.bindir, "test_package"), env="conanrun")
        if self._with("mpi"):  # a job of one rank needs no mpirun
            self.run(os.path.join(self.cpp.build.bindir, "test_package_mpi"), env="conanrun")

    def _with(self, backend):
        return bool(getattr(self.dependencies["belay"].options, f"with_{backend}"))
