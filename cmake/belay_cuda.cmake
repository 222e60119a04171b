# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# belay::cuda, where CMake finds a CUDA toolkit: what a program links that includes belay/backend/cuda/runtime_api.cuh.
# Serves both this project and those who find it installed. The generic headers need no toolkit, and no more than
# belay::belay.
if(NOT TARGET belay::cuda)
  find_package(CUDAToolkit QUIET)
  if(TARGET CUDA::cudart AND TARGET CUDA::cublas)
    add_library(belay_cuda INTERFACE)
    add_library(belay::cuda ALIAS belay_cuda)
    target_link_libraries(belay_cuda INTERFACE belay::belay CUDA::cudart CUDA::cublas)
  endif()
endif()
