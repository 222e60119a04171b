# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# conan create . -s compiler.cppstd=20 -tf packaging/conan/test_package
# Needs nothing from a remote: Belay requires the standard library and threads. With -o belay/*:with_mpi=True it also
# holds the MPI backend, whose users have an MPI of their machine: one from a remote would not be the one of mpirun.
# with_cuda, with_nccl and with_cudnn check that this machine has what belay::cuda, belay::nccl and belay::cudnn are
# linked with; the package is the same.
import os
import re
import shutil

from conan import ConanFile
from conan.errors import ConanInvalidConfiguration
from conan.tools.build import check_min_cppstd
from conan.tools.cmake import CMake, CMakeToolchain, cmake_layout
from conan.tools.files import load

required_conan_version = ">=2.0"


class BelayConan(ConanFile):
    name = "belay"
    license = "Apache-2.0 WITH LLVM-exception"
    description = "C++20 parallelism templates for LLM trainers"
    topics = ("llm", "training", "parallelism", "headers")
    package_type = "header-library"
    settings = "os", "arch", "compiler", "build_type"
    options = {
        "with_mpi": [True, False],
        "with_cuda": [True, False],
        "with_nccl": [True, False],
        "with_cudnn": [True, False],
    }
    default_options = {"with_mpi": False, "with_cuda": False, "with_nccl": False, "with_cudnn": False}
    exports_sources = "include/*", "cmake/*", "CMakeLists.txt", "LICENSE"
    no_copy_source = True

    def set_version(self):
        text = load(self, os.path.join(self.recipe_folder, "include/belay/version.hpp"))
        parts = [re.search(rf"BELAY_VERSION_{part} (\d+)", text).group(1) for part in ("MAJOR", "MINOR", "PATCH")]
        self.version = ".".join(parts)

    def validate(self):
        check_min_cppstd(self, 20)
        if self.options.with_cuda or self.options.with_nccl or self.options.with_cudnn:
            self._expect_header("with_cuda", "cuda_runtime.h", "a CUDA toolkit (CUDA_HOME says where)")
        if self.options.with_nccl:
            self._expect_header("with_nccl", "nccl.h", "NCCL 2.28.9 or later (NCCL_ROOT says where)")
        if self.options.with_cudnn:
            self._expect_header("with_cudnn", "cudnn_backend.h", "cuDNN 9 (cuDNN_ROOT says where)")

    def _expect_header(self, option, header, what):
        nvcc = shutil.which("nvcc")
        named = ("NCCL_ROOT", "cuDNN_ROOT", "CUDAToolkit_ROOT", "CUDA_HOME", "CUDA_PATH")
        roots = [os.environ.get(name) for name in named]
        roots += [os.path.dirname(os.path.dirname(os.path.realpath(nvcc)))] if nvcc else []
        roots += ["/usr/local/cuda", "/usr/local", "/usr"]
        if not any(os.path.exists(os.path.join(root, "include", header)) for root in roots if root):
            raise ConanInvalidConfiguration(f"{option} needs {what} on this machine: there is no {header}")

    def layout(self):
        cmake_layout(self)

    def generate(self):
        toolchain = CMakeToolchain(self)
        for option in ("BELAY_BUILD_TESTS", "BELAY_BUILD_EXAMPLES", "BELAY_BUILD_BENCH", "BELAY_MPI"):
            toolchain.cache_variables[option] = False
        toolchain.cache_variables["BELAY_INSTALL_MPI"] = bool(self.options.with_mpi)
        toolchain.generate()

    def package(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.install()

    def package_id(self):
        self.info.settings.clear()  # one package for all machines; with and without the MPI backend are two
        del self.info.options.with_cuda
        del self.info.options.with_nccl
        del self.info.options.with_cudnn

    def package_info(self):
        # Consumers find the project's own package file, with belay_check_backward in it.
        self.cpp_info.set_property("cmake_find_mode", "none")
        self.cpp_info.builddirs = [os.path.join("share", "cmake", "belay")]
        self.cpp_info.bindirs = []
        self.cpp_info.libdirs = []
