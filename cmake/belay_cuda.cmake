# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# belay::cuda, where CMake finds a CUDA toolkit: what a program links that includes belay/backend/cuda/runtime_api.cuh. It
# adds one source, which CUDA compiles once a program: sorting by CUB. belay::cuda_calls is the same without it, for a
# program that does not route tokens on a device. Serves both this project and those who find it installed. The generic
# headers need no toolkit, and no more than belay::belay.
if(NOT TARGET belay::cuda)
  find_package(CUDAToolkit QUIET)
  if(TARGET CUDA::cudart AND TARGET CUDA::cublas)
    add_library(belay_cuda_calls INTERFACE)
    add_library(belay::cuda_calls ALIAS belay_cuda_calls)
    target_link_libraries(belay_cuda_calls INTERFACE belay::belay CUDA::cudart CUDA::cublas)
    set(belay_include "${CMAKE_CURRENT_LIST_DIR}/../include")
    if(NOT EXISTS "${belay_include}/belay/backend/cuda/sorting.cu")  # installed
      get_target_property(belay_include belay::belay INTERFACE_INCLUDE_DIRECTORIES)
      list(GET belay_include 0 belay_include)
    endif()
    add_library(belay_cuda INTERFACE)
    add_library(belay::cuda ALIAS belay_cuda)
    target_link_libraries(belay_cuda INTERFACE belay_cuda_calls)
    target_sources(belay_cuda INTERFACE "${belay_include}/belay/backend/cuda/sorting.cu")
    unset(belay_include)
  endif()
endif()
